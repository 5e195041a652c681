"""How a request is read: what is valid is what its model says, and depth is bounded first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.hosted_tools import FAMILIES
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.create_request import CreateResponse, parse_create

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

documents = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "n", 1, "x" * 300]),
        "input": TEXTS,
        "instructions": TEXTS,
        **{name: st.sampled_from(values) for name, values in VALUES.items()},
    },
)
plain_documents = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "n"]), "input": st.text(min_size=1, max_size=20) | MESSAGES},
    optional={
        "instructions": st.text(max_size=20),
        **{name: st.sampled_from(values) for name, values in VALUES.items()},
    },
)


@pytest.mark.slow
@given(document=documents | plain_documents, strict=st.booleans())
def test_a_request_is_what_its_model_says_or_refused_in_one_way(
    document: dict[str, Any], strict: bool
) -> None:
    body = json.dumps(document).encode()
    read: list[object] = []
    for _ in range(2):
        try:
            request = parse_create(body, limits=LIMITS, strict=strict, served=FAMILIES.values())
        except InvalidRequest as error:
            read.append((str(error), error.code, error.param))
            continue
        known = {name: value for name, value in document.items() if name != "unheard_of"}
        alone = CreateResponse.model_validate(known)
        assert request.model_copy(update={"ignored": (), "rejects_images": False}) == alone
        assert request.ignored == ("unheard_of",) * ("unheard_of" in document)
        read.append(request)
    assert read[0] == read[1]


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
        with pytest.raises(InvalidRequest, match=f"Expected at most {depth} levels"):
            parse_create(body, limits=replace(LIMITS, json_depth_max=depth), strict=strict)
