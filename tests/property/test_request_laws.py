"""A request that is read like others before it is the one that is read by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.alike import KIND_BYTES_MAX, alike
from gateway.protocol.base import changed
from gateway.protocol.bounds import check_bounds, check_counts
from gateway.protocol.limits import InputLimits
from gateway.protocol.requests import CreateResponse, parse_create
from gateway.protocol.support import check_support

LIMITS = InputLimits(
    json_depth_max=20,
    items_max=10,
    tools_max=10,
    schema_bytes_max=1000,
    text_chars_max=20,
    json_containers_max=100,
)

VALUES: dict[str, list[Any]] = {
    "background": [True, False, 1],
    "conversation": ["conv_1"],
    "frequency_penalty": [0, 0.5, 3.0],
    "include": [[], ["reasoning.encrypted_content"], ["message.output_text.logprobs"], ["?"]],
    "max_output_tokens": [16, 1, 2**70, 20.0],
    "metadata": [{}, {"a": "b"}],
    "parallel_tool_calls": [True, False],
    "previous_response_id": ["resp_1"],
    "prompt": [{"id": "p"}],
    "reasoning": [{}, {"effort": "low"}, {"effort": "?"}, {"context": "all_turns"}],
    "seed": [1],
    "service_tier": ["flex", "?"],
    "store": [True, False],
    "stream": [True, False, "yes"],
    "stream_options": [{"include_obfuscation": False}],
    "temperature": [0, 1, 1.0, -0.0, 2.5, "1"],
    "tools": [[], [{"type": "function", "name": "f", "parameters": {}, "strict": False}]],
    "top_logprobs": [0, 5, 30],
    "top_p": [0.5],
    "truncation": ["auto", "?"],
    "unheard_of": [1],
}
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "developer"]),
            "content": st.text(max_size=20),
        }
    ),
    min_size=1,
    max_size=4,
)
STRANGE_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "assistant", "tool", 1, ["user"]]),
            "content": st.text(max_size=25) | st.just([{"type": "input_text", "text": "hi"}]),
            "phase": st.sampled_from(["commentary", "final_answer", None]),
            "type": st.just("message"),
        },
    )
    | st.just("hi"),
    max_size=12,
)
TEXTS = st.one_of(st.text(max_size=25), MESSAGES, STRANGE_MESSAGES, st.just(1))

UNLIKE = {
    *("conversation", "metadata", "previous_response_id", "prompt"),
    *("seed", "tools", "unheard_of"),
}

plain_documents = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "n"]), "input": st.text(min_size=1, max_size=20) | MESSAGES},
    optional={
        "instructions": st.text(max_size=20),
        **{name: st.sampled_from(VALUES[name]) for name in VALUES if name not in UNLIKE},
    },
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "n", 1, "x" * 300]),
        "input": TEXTS,
        "instructions": TEXTS,
        **{name: st.sampled_from(values) for name, values in VALUES.items()},
    },
)


@given(documents | plain_documents)
def test_a_request_like_others_is_what_it_is_by_itself(document: dict[str, Any]) -> None:
    for _ in range(2):
        request = alike(document, LIMITS)
        if request is None:
            return
        check_counts(document, LIMITS)
        alone = CreateResponse.model_validate(document)
        check_bounds(alone, LIMITS)
        check_support(alone, strict=True, reject_media=True)
        assert request == alone
        assert request.model_fields_set == alone.model_fields_set
        assert request.model_dump_json() == alone.model_dump_json()


def test_the_shortest_request_is_read_like_others() -> None:
    request = alike({"model": "m", "input": "hi", "instructions": "sing"}, LIMITS)
    assert request is not None
    assert request.instructions == "sing"
    assert request.model_dump()["input"][0]["content"] == ({"type": "input_text", "text": "hi"},)


@pytest.mark.parametrize(
    "strange",
    [
        {"model": object()},
        {"include": ["message.input_image.image_url"] * KIND_BYTES_MAX},
        {"input": []},
        {"input": ["hi"]},
        {"instructions": []},
        {"instructions": "x" * 21},
        {"input": [{"role": "user", "content": "hi"}] * 11},
        {"input": [{"role": "user", "content": "hi", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        {"input": "x" * 21},
        {"metadata": {"a": "what a user wrote"}},
        {"stream": "yes"},
        {"background": True, "store": False},
    ],
)
def test_what_is_unlike_the_others_is_read_by_itself(strange: dict[str, Any]) -> None:
    assert alike({"model": "m", "input": "hi"} | strange, LIMITS) is None


def test_a_mistake_is_reported_as_ever() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="temperature"):
            parse_create(b'{"model": "m", "input": "hi", "temperature": 3}', limits=LIMITS)


@given(st.text(), st.booleans())
def test_a_model_is_changed_as_by_a_copy(text: str, with_fields: bool) -> None:
    fields = {"instructions": text, "input": ()} if with_fields else {}
    request = CreateResponse(model="m", temperature=0.5)
    copy = request.model_copy(update=fields)
    made = changed(request, **fields)
    assert made == copy
    assert made.model_fields_set == copy.model_fields_set
    assert made.model_dump() == copy.model_dump()
    assert made.model_copy(update={"model": "n"}).model == "n"
