"""Chat requests for tests, and short ways to read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.chat_conversion import parse_chat, parse_completion
from gateway.protocol.hosted_tools import NO_FAMILIES
from tests.fakes.create_bodies import LIMITS

if TYPE_CHECKING:
    from gateway.protocol.chat_conversion import Converted
    from gateway.protocol.hosted_tools import HostedFamily

Json = dict[str, Any]

HI: Json = {"role": "user", "content": "hi"}
CALLING: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ],
}
OUTPUT: Json = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
FUNCTION: Json = {"type": "function", "function": {"name": "f", "parameters": {}}}
CUSTOM: Json = {"type": "custom", "custom": {"name": "c", "description": "Runs code."}}
GRAMMAR: Json = {
    "type": "custom",
    "custom": {
        "name": "g",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"+'}},
    },
}


def chat(
    *, strict: bool = False, served: frozenset[HostedFamily] = NO_FAMILIES, **fields: Any
) -> Converted:
    """The chat request of a body with these fields; `...` leaves one out."""
    body = _body({"messages": [HI], **fields})
    return parse_chat(body, limits=LIMITS, strict=strict, served=served)


def completion(*, strict: bool = False, **fields: Any) -> Converted:
    """The same for a completion."""
    return parse_completion(_body({"prompt": "hi", **fields}), limits=LIMITS, strict=strict)


def items(*messages: Json) -> list[Json]:
    """What a chat of these messages is converted as."""
    return [item.model_dump(exclude_none=True) for item in chat(messages=messages).request.input]


Row = tuple[Json, str | None, str | None, str]
"""Fields of a body, and the code, param and (part of the) message of its refusal."""


def check_refusal(row: Row, *, strict: bool = False, of_completion: bool = False) -> None:
    """A body with the row's fields is refused as the row says."""
    fields, code, param, message = row
    with pytest.raises(InvalidRequest) as caught:
        (completion if of_completion else chat)(strict=strict, **fields)
    error = caught.value
    assert (error.code, error.param) == (code, param)
    assert message in error.message


def _body(fields: Json) -> bytes:
    body = {"model": "gpt-oss-20b", **fields}
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()
