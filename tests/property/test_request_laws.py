"""A request that is read like others before it is the one that is read by itself."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.alike import COMMON_BYTES_MAX, KIND_BYTES_MAX, KINDS_BYTES_MAX, alike
from gateway.protocol.base import changed
from gateway.protocol.bounds import check_bounds, check_counts
from gateway.protocol.json_body import check_shape
from gateway.protocol.limits import InputLimits
from gateway.protocol.requests import CreateResponse, parse_create
from gateway.protocol.support import check_support

OURS = b"ours"
LIMITS = InputLimits(
    json_depth_max=20,
    items_max=10,
    tools_max=10,
    schema_bytes_max=1000,
    text_chars_max=20,
    json_containers_max=100,
)

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
CUSTOM = {"type": "custom", "name": "c", "format": GRAMMAR}
NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}
FORMAT = {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "object"}}

VALUES: dict[str, list[Any]] = {
    "background": [True, False, 1],
    "conversation": ["conv_1"],
    "context_management": [[{"type": "compaction"}]],
    "frequency_penalty": [0, 0.5, 3.0],
    "include": [[], ["reasoning.encrypted_content"], ["message.output_text.logprobs"], ["?"]],
    "max_output_tokens": [16, 1, 2**70, 20.0],
    "metadata": [
        *({}, {"a": "b"}, {"a": 1}, {"a" * 65: "b"}, {"a": "b" * 513}, [], "a"),
        {str(at): "" for at in range(17)},
    ],
    "parallel_tool_calls": [True, False],
    "previous_response_id": ["resp_1", "", 1, "x" * 513],
    "prompt": [{"id": "p"}],
    "prompt_cache_key": ["a session", "x" * 65, 1],
    "reasoning": [{}, {"effort": "low"}, {"effort": "?"}, {"context": "all_turns"}],
    "safety_identifier": ["somebody", "x" * 129],
    "seed": [1],
    "service_tier": ["flex", "?"],
    "store": [True, False],
    "stream": [True, False, "yes"],
    "stream_options": [{"include_obfuscation": False}],
    "temperature": [0, 1, 1.0, -0.0, 2.5, "1"],
    "text": [{"format": {"type": "text"}}, {"format": FORMAT}, {"format": {"type": "?"}}],
    "tool_choice": ["auto", "none", "required", {"type": "function", "name": "f"}, "?"],
    "tools": [
        *([], [FUNCTION], [FUNCTION, FUNCTION], [CUSTOM, NAMESPACE], [{"type": "web_search"}]),
        *([{**FUNCTION, "name": "no name"}], [{"type": "?"}], [{**FUNCTION, "type": "custom"}]),
        *([{**FUNCTION, "strict": True}], [{**FUNCTION, "parameters": {"a": "x" * 1000}}]),
    ],
    "top_logprobs": [0, 5, 30],
    "top_p": [0.5],
    "truncation": ["auto", "?"],
    "user": ["somebody", 1],
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
PARTS = st.lists(
    st.sampled_from(
        [
            {"type": "input_text", "text": "hi"},
            {"type": "output_text", "text": "hi"},
            {"type": "output_text", "text": "hi", "annotations": []},
            {"type": "input_text", "text": "x" * 21},
            {"type": "input_text", "text": 1},
            {"type": "input_text"},
            {"type": "input_image", "image_url": "data:"},
            {"type": "refusal", "refusal": "no"},
            "hi",
        ]
    ),
    max_size=3,
)
ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c", "name": "no name", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "function_call_output", "call_id": "c", "output": "x" * 21},
    {"type": "compaction_trigger"},
    {"type": "item_reference", "id": "msg_1"},
]
STRANGE_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from(["msg_1", "", "m\n", "x" * 513, None]),
            "role": st.sampled_from(["user", "assistant", "tool", 1, ["user"]]),
            "content": st.text(max_size=25) | PARTS,
            "phase": st.sampled_from(["commentary", "final_answer", None]),
            "type": st.sampled_from(["message", "?", None]),
        },
    )
    | st.sampled_from(["hi", *ITEMS]),
    max_size=12,
)
TEXTS = st.one_of(st.text(max_size=25), MESSAGES, STRANGE_MESSAGES, st.just(1))

UNLIKE = {"context_management", "conversation", "prompt", "seed", "unheard_of"}

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


@given(document=documents | plain_documents, strict=st.booleans(), rejects_media=st.booleans())
def test_a_request_like_others_is_what_it_is_by_itself(
    document: dict[str, Any],
    strict: bool,
    rejects_media: bool,
) -> None:
    limits = replace(LIMITS, rejects_media=rejects_media)
    for _ in range(2):
        request = alike(document, limits, strict=strict, scope=OURS)
        if request is None:
            return
        check_shape(document, limits)
        check_counts(document, limits)
        alone = CreateResponse.model_validate(document)
        check_bounds(alone, limits)
        check_support(alone, strict=strict, reject_media=rejects_media)
        assert request == alone
        assert request.model_fields_set == alone.model_fields_set
        assert request.model_dump_json() == alone.model_dump_json()


@given(document=documents | plain_documents, strict=st.booleans())
def test_no_request_is_read_otherwise_for_being_like_others(
    document: dict[str, Any],
    strict: bool,
) -> None:
    body = json.dumps(document).encode()
    read: list[object] = []
    for scope in (b"", OURS, OURS):
        try:
            read.append(parse_create(body, limits=LIMITS, strict=strict, scope=scope))
        except InvalidRequest as error:
            read.append((str(error), error.code, error.param))
    assert read[0] == read[1] == read[2]


def test_the_shortest_request_is_read_like_others() -> None:
    request = alike({"model": "m", "input": "hi", "instructions": "sing"}, LIMITS)
    assert request is not None
    assert request.instructions == "sing"
    assert request.model_dump()["input"][0]["content"] == ({"type": "input_text", "text": "hi"},)


@pytest.mark.parametrize(
    "strange",
    [
        {"model": object()},
        {"input": []},
        {"input": ["hi"]},
        {"instructions": []},
        {"instructions": "x" * 21},
        {"input": [{"role": "user", "content": "hi"}] * 11},
        {"input": "x" * 21},
        {"stream": "yes"},
        {"background": True, "store": False},
        {"seed": 1},
        {"tools": [{"type": "function"}]},
        {"input": [{"role": "user", "content": "hi", "id": "a b"}]},
        {"input": [{"role": "user", "content": "hi", "id": 1}]},
        {"input": [{"role": "tool", "content": "hi"}]},
        {"input": [{"role": "user", "content": ["hi"]}]},
        {"input": [{"role": "user", "content": 1}]},
        {"metadata": {"a": 1}},
        {"user": 1},
    ],
)
def test_what_is_unlike_the_others_is_read_by_itself(strange: dict[str, Any]) -> None:
    assert alike({"model": "m", "input": "hi"} | strange, LIMITS, scope=OURS) is None


@pytest.mark.parametrize(
    "said",
    [
        {"tools": [FUNCTION]},
        {"include": ["message.input_image.image_url"] * COMMON_BYTES_MAX},
    ],
)
def test_what_a_user_wrote_is_kept_for_those_of_its_scope(said: dict[str, Any]) -> None:
    document = {"model": "m", "input": "hi"} | said
    assert alike(document, LIMITS) is None
    ours, again = alike(document, LIMITS, scope=OURS), alike(document, LIMITS, scope=OURS)
    theirs = alike(document, LIMITS, scope=b"theirs")
    assert ours is not None
    assert again is not None
    assert theirs is not None
    assert ours.kind is again.kind
    assert ours.kind is not theirs.kind


@pytest.mark.parametrize(
    "said",
    [
        [{"type": "message", "id": "msg_1", "role": "user", "content": "hi"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "hi"}] * 2}],
        [{"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
        [{"role": "assistant", "content": [{"type": "input_text", "text": "hi"}]}],
        [ITEMS[0], ITEMS[1], ITEMS[3], ITEMS[5]],
        [{"role": "user", "content": []}],
    ],
)
def test_any_input_is_read_with_what_is_kept(said: list[Any]) -> None:
    document = {"model": "m", "input": said, "tools": [FUNCTION]}
    request = alike(document, LIMITS, scope=OURS)
    assert request is not None
    assert request.input == CreateResponse.model_validate(document).input


def test_every_session_is_of_the_same_kind() -> None:
    document = {"model": "m", "tools": [FUNCTION]}
    first = alike(document | {"input": "a", "prompt_cache_key": "1"}, LIMITS, scope=OURS)
    second = alike(document | {"input": "b", "metadata": {"session": "2"}}, LIMITS, scope=OURS)
    assert first is not None
    assert second is not None
    assert first.kind is second.kind


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


def test_other_limits_make_another_kind() -> None:
    document = {"model": "m", "input": "hi", "tools": [FUNCTION]}
    narrow = replace(LIMITS, schema_bytes_max=5)
    assert alike(document, LIMITS, scope=OURS) is not None
    assert alike(document, narrow, scope=OURS) is None
    first, second = (alike(document, replace(LIMITS), scope=OURS) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.kind is second.kind


@pytest.mark.parametrize(
    "said",
    [
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        {"input": "hi", "unheard_of": [[[[]]]]},
        {"input": "hi", "metadata": {"a": "b"}, "tools": [{**FUNCTION, "parameters": {"a": {}}}]},
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_nested_too_deeply_is_refused_as_such(said: dict[str, Any], strict: bool) -> None:
    body = json.dumps({"model": "m"} | said).encode()
    for depth in range(1, 4):
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=f"Expected at most {depth} levels"):
                parse_create(
                    body, limits=replace(LIMITS, json_depth_max=depth), strict=strict, scope=OURS
                )


def test_a_kind_that_would_drive_out_all_others_is_read_by_itself() -> None:
    limits = replace(LIMITS, schema_bytes_max=KIND_BYTES_MAX, text_chars_max=KIND_BYTES_MAX)
    tool = {**FUNCTION, "description": "x" * KIND_BYTES_MAX}
    document = {"model": "m", "input": "hi", "tools": [tool]}
    assert alike(document, limits, scope=OURS) is None
    request = parse_create(json.dumps(document).encode(), limits=limits, scope=OURS)
    assert request.kind is None


def test_a_kind_weighs_more_the_more_is_made_of_its_json() -> None:
    def weight(*tools: Any) -> int:
        request = alike({"model": "m", "input": "hi", "tools": tools}, LIMITS, scope=OURS)
        assert request is not None
        assert request.kind is not None
        return request.kind.weight_bytes - request.kind.json_bytes

    many = {**FUNCTION, "parameters": {"a": [[]] * 9}}
    hosted = {"type": "web_search"}
    assert weight() < weight(hosted) < weight(hosted, FUNCTION) < weight(hosted, many)
    assert weight(NAMESPACE) < weight({**NAMESPACE, "tools": [FUNCTION, {**FUNCTION, "name": "g"}]})


def test_a_kind_that_is_not_kept_any_more_needs_no_garbage_collection() -> None:
    limits = replace(LIMITS, text_chars_max=KIND_BYTES_MAX)
    documents: list[dict[str, Any]] = [
        {"model": "m", "input": "hi", "tools": [{**FUNCTION, "description": f"{at:x}" * 200_000}]}
        for at in range(KINDS_BYTES_MAX // 200_000 + 1)
    ]
    gc.collect()
    gc.disable()
    try:
        first = alike(documents[0], limits, scope=OURS)
        assert first is not None
        common = weakref.ref(first.tools[0])
        del first
        assert common() is not None
        for document in documents[1:]:
            assert alike(document, limits, scope=OURS) is not None
        assert common() is None
    finally:
        gc.enable()
