"""Create requests for tests: limits as the defaults of the settings, and short ways to parse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.hosted_tools import NO_FAMILIES
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.create_request import parse_create

if TYPE_CHECKING:
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.responses.create_request import CreateResponse

LIMITS = InputLimits(
    json_depth_max=128,
    items_max=1_000,
    tools_max=64,
    schema_bytes_max=16_384,
    text_chars_max=5_000,
    json_containers_max=500_000,
)
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {}}
STRICT: dict[str, Any] = {
    "type": "function",
    "name": "s",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "c", "description": "Runs code."}
GRAMMAR: dict[str, Any] = {
    "type": "custom",
    "name": "g",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'},
}
NAMESPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "ns",
    "description": "Some tools.",
    "tools": [{**FUNCTION, "name": "m"}, {**CUSTOM, "name": "n"}],
}
SHELLS: list[dict[str, Any]] = [{"type": kind} for kind in ("local_shell", "shell", "apply_patch")]
TOOLS: list[dict[str, Any]] = [FUNCTION, STRICT, CUSTOM, GRAMMAR, NAMESPACE, *SHELLS]
"""One of every type that is served."""
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "name": "answer",
    "schema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}},
}
CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
}

Row = tuple[dict[str, Any], str | None, str | None, str]
"""Fields of a body, and the code, param and message of its refusal."""


def body_of(fields: dict[str, Any]) -> dict[str, Any]:
    """A complete body; `...` as a value leaves the key out."""
    body = {"model": "gpt-oss-20b", "input": "hi", **fields}
    return {name: value for name, value in body.items() if value is not ...}


def parse(
    *, strict: bool = False, served: frozenset[HostedFamily] = NO_FAMILIES, **fields: Any
) -> CreateResponse:
    """The parsed request of a body with these fields, where these tools are served."""
    body = json.dumps(body_of(fields)).encode()
    return parse_create(body, limits=LIMITS, strict=strict, served=served)


def refusal(
    *, strict: bool = False, served: frozenset[HostedFamily] = NO_FAMILIES, **fields: Any
) -> tuple[str | None, str | None, str]:
    """Code, param and message of what parsing such a body raises."""
    with pytest.raises(InvalidRequest) as caught:
        parse(strict=strict, served=served, **fields)
    return caught.value.code, caught.value.param, str(caught.value)
