"""Law: any bytes are a chat, or a completion, or an `InvalidRequest` in its own words."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.chat_conversion import (
    CHAT_PARAMETERS,
    COMPLETION_PARAMETERS,
    parse_chat,
    parse_completion,
)
from gateway.protocol.responses.response_object import echo
from tests.fakes.chat_bodies import CALLING, CUSTOM, FUNCTION, GRAMMAR, HI, OUTPUT
from tests.fakes.create_bodies import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.protocol.chat_conversion import Converted

WORDS: Final = (
    *("type", "role", "content", "id", "text", "name", "url", "arguments", "input", "detail"),
    *("user", "assistant", "tool", "function", "system", "image_url", "input_audio", "file"),
    *("tool_calls", "tool_call_id", "function_call", "custom", "refusal", "reasoning", "data"),
    *("auto", "required", "json_schema", "schema", "strict", "allowed_tools", "mode", "tools"),
    *("grammar", "format", "syntax", "definition", "effort", "low", "", "é", "\0", "a b"),
)
VALID: Final[dict[str, Any]] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "x"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x"},
                {"type": "image_url", "image_url": {"url": "x", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
                {"type": "file", "file": {"file_id": "x"}},
            ],
        },
        {**CALLING, "reasoning_content": "x", "refusal": "x"},
        OUTPUT,
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "x"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "c", "input": "x"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        HI,
    ],
    "tools": [FUNCTION, CUSTOM, GRAMMAR],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "max_tokens": 5,
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "reasoning_effort": "low",
    "reasoning": {"max_tokens": 5},
    "stop": ["x"],
    "modalities": ["text"],
    "logit_bias": {},
}

words = st.sampled_from(WORDS) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
documents = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(words, children, max_size=4),
    max_leaves=15,
)
_FOREIGN: Final = re.compile(r"(input\[|input$|text\.|max_output_tokens|reasoning\.effort$)")


def outcome(body: bytes) -> None:
    """Parse as both; a refusal names nothing that only the Responses API has."""
    for parse in (parse_chat, parse_completion):
        error = refusal(parse, body)
        if error is not None:
            orjson.dumps([error.message, error.code, error.param])
            has_both = '"reasoning"' in body.decode(errors="replace")
            assert has_both or not _FOREIGN.match(error.param or "")


def refusal(parse: Callable[..., Converted], body: bytes) -> InvalidRequest | None:
    """What it is refused with; None for what is accepted, and whose echo can be written."""
    try:
        asked = parse(body, limits=LIMITS)
    except InvalidRequest as error:
        return error
    orjson.dumps(echo(asked.request))
    return None


@given(body=st.binary(max_size=200))
def test_random_bytes(body: bytes) -> None:
    outcome(body)


@pytest.mark.slow
@given(
    body=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(sorted(CHAT_PARAMETERS | COMPLETION_PARAMETERS), documents)
    )
)
def test_any_json_under_the_names_of_parameters(body: dict[str, Any]) -> None:
    outcome(json.dumps({"model": "m", "messages": [HI], "prompt": "x", **body}).encode())


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of the document with each of its keys or indices."""
    if not isinstance(value, dict | list):
        return []
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@pytest.mark.slow
@given(data=st.data())
def test_a_valid_chat_with_one_value_exchanged(data: st.DataObject) -> None:
    body = json.loads(json.dumps(VALID))
    del body[data.draw(st.sampled_from(["stop", "response_format"]))]
    container, key = data.draw(st.sampled_from(_places(body)))
    container[key] = data.draw(documents)
    outcome(json.dumps(body).encode())


_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
ODD: Final[tuple[Any, ...]] = (None, 5, "", [], {}, [5], {"type": "x"})


def _leads_somewhere(param: str, body: Any) -> bool:
    """Whether all of a path is there, but for its last step. One text stands for a list of one."""
    *steps, _ = _STEP.finditer(param)
    for index, name in (step.groups() for step in steps):
        if index is not None:
            body = [body] if isinstance(body, str) else body
            if not isinstance(body, list) or int(index) >= len(body):
                return False
            body = body[int(index)]
        elif isinstance(body, dict) and name in body:
            body = body[name]
        else:
            return False
    return True


@pytest.mark.slow
def test_what_is_wrong_is_told_where_the_client_wrote_it() -> None:
    told: set[str] = set()
    for at in range(len(_places(VALID))):
        for odd in ODD:
            body = json.loads(json.dumps(VALID))
            container, key = _places(body)[at]
            container[key] = odd
            error = refusal(parse_chat, json.dumps(body).encode())
            if error is not None and error.param is not None:
                assert _leads_somewhere(error.param, body), (error.param, key, odd)
                told.add(error.param)
    assert {"messages[4].function_call.name", "messages[2].tool_calls[0].function.name"} <= told
