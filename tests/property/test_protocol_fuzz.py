"""Law: any bytes are a request or an `InvalidRequest`; nothing else is ever raised."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.hosted_tools import FAMILIES
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.create_request import PARAMETERS, CreateResponse, parse_create
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import declared
from tests.fakes.call_items import CALLS, OUTPUTS
from tests.fakes.cases import each
from tests.fakes.create_bodies import SCHEMA, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS: Final = InputLimits(
    json_depth_max=128,
    items_max=10_000,
    tools_max=512,
    schema_bytes_max=262_144,
    text_chars_max=10_485_760,
    json_containers_max=300_000,
)
SERVED: Final = frozenset(FAMILIES.values())
WORDS: Final = (
    *("type", "role", "content", "id", "text", "name", "output", "call_id", "arguments", "status"),
    *("user", "assistant", "message", "reasoning", "function_call", "function_call_output"),
    *("item_reference", "input_text", "output_text", "refusal", "input_image", "summary_text"),
    *("function", "auto", "required", "json_schema", "effort", "format", "parameters", "mode"),
    *("custom", "namespace", "shell", "grammar", "schema", "$ref", "#", "strict", "allowed_tools"),
    *("web_search", "code_interpreter", "mcp", "container", "server_label", "server_url"),
    *("never", "always", "tool_names", "https://a.example", "https://[", "//", "allowed_callers"),
    *("phase", "summary", "annotations", "completed", "high", "[key]", "", "é", "\0", "a b"),
)
RUN_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "web_search",
        "filters": {"allowed_domains": ["https://a.example"]},
        "user_location": {"type": "approximate", "city": "Paris"},
    },
    {
        "type": "code_interpreter",
        "container": {"type": "auto", "network_policy": {"type": "disabled"}},
    },
    {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://a.example:443/x",
        "headers": {"x-key": "k"},
        "allowed_tools": ["a"],
        "require_approval": {"never": {"tool_names": ["a"], "read_only": True}},
    },
]
VALID: Final[dict[str, Any]] = {
    "model": "m",
    "input": [
        {"role": "user", "content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "x"}],
        },
        {"id": "rs_1"},
        *({"call_id": "c", **raw} for raw, *_ in CALLS),
        *({"call_id": "c", **raw} for raw, _ in OUTPUTS),
    ],
    "tools": [*TOOLS, *RUN_TOOLS, {"type": "file_search"}],
    "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {**SCHEMA, "strict": True}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto", "max_tokens": 5},
    "seed": 1,
    "top_k": 5,
    "min_p": 0.5,
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "stream": True,
    "stream_options": {"include_obfuscation": True},
    "max_output_tokens": 64,
    "temperature": 0.5,
}

words = st.sampled_from(WORDS) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
documents = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(words, children, max_size=4),
    max_leaves=15,
)
bodies = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(sorted(PARAMETERS), documents) | {"unknown": documents}
)


def outcome(body: bytes) -> CreateResponse | InvalidRequest:
    """What parsing gives: a request whose echo can be written, or a fit refusal."""
    try:
        request = parse_create(body, limits=LIMITS, served=SERVED)
    except InvalidRequest as error:
        orjson.dumps([error.message, error.code, error.param])
        return error
    fields = echo(request)
    orjson.dumps(fields)
    rules_of(fields)
    declared(request.offered_tools)
    return request


@given(body=st.binary(max_size=200))
def test_random_bytes(body: bytes) -> None:
    outcome(body)


@pytest.mark.slow
@given(body=documents)
def test_any_json(body: Any) -> None:
    outcome(json.dumps(body).encode())


@pytest.mark.slow
@given(body=bodies)
def test_any_json_under_the_names_of_parameters(body: dict[str, Any]) -> None:
    outcome(json.dumps({"model": "m", "input": "x", **body}).encode())


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of the document with each of its keys or indices."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@pytest.mark.slow
@given(data=st.data())
def test_a_valid_request_with_one_value_exchanged(data: st.DataObject) -> None:
    body = json.loads(json.dumps(VALID))
    container, key = data.draw(st.sampled_from(_places(body)))
    container[key] = data.draw(documents)
    outcome(json.dumps(body).encode())


@pytest.mark.slow
@given(data=st.data())
def test_a_valid_request_with_a_few_bytes_exchanged(data: st.DataObject) -> None:
    body = bytearray(orjson.dumps(VALID))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(body))


def test_the_valid_request_is_one() -> None:
    assert isinstance(outcome(orjson.dumps(VALID)), CreateResponse)


def with_schema(schema: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    form = {**SCHEMA, "schema": schema, "strict": strict}
    return {"model": "m", "input": "x", "text": {"format": form}}


def deep_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


HOSTILE: dict[str, Callable[[], bytes]] = {
    "deep arrays": lambda: b'{"model":"m","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": lambda: (
        b'{"model":"m","input":"x","x":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}"
    ),
    "many empty items": lambda: b'{"model":"m","input":[' + b"{}," * 200_000 + b"{}]}",
    "many empty parts": lambda: (
        b'{"model":"m","input":[{"role":"user","content":[' + b"{}," * 200_000 + b"{}]}]}"
    ),
    "many wrong annotations": lambda: (
        b'{"model":"m","input":[{"role":"assistant","content":[{"type":"output_text","text":"",'
        b'"annotations":[' + b"1," * 200_000 + b"1]}]}]}"
    ),
    "many includes": lambda: b'{"model":"m","input":"x","include":[' + b'"x",' * 200_000 + b'"x"]}',
    "more containers than allowed": lambda: (
        b'{"model":"m","input":"x","x":[' + b"[]," * 400_000 + b"[]]}"
    ),
    "many wrong metadata": lambda: orjson.dumps(
        {"model": "m", "input": "x", "metadata": {str(number): 1 for number in range(100_000)}}
    ),
    "a deep schema": lambda: orjson.dumps(with_schema(deep_schema(180))),
    "many references to nowhere": lambda: orjson.dumps(
        with_schema({"anyOf": [{"$ref": "#" + "/anyOf/0" * 10}] * 2_000})
    ),
    "a long type in a strict schema": lambda: orjson.dumps(
        with_schema({"type": ["x" * 10] * 10_000}, strict=True)
    ),
    "references in a long circle": lambda: orjson.dumps(
        with_schema(
            {"$defs": {str(n): {"$ref": f"#/$defs/{(n + 1) % 5_000}"} for n in range(5_000)}}
        )
    ),
    "many unknown parameters": lambda: orjson.dumps(
        {"model": "m", "input": "", **{f"k{number}": 1 for number in range(100_000)}}
    ),
}


@pytest.mark.slow
@each("make", HOSTILE.values())
def test_a_hostile_body_is_refused_with_one_short_error(make: Callable[[], bytes]) -> None:
    error = outcome(make())
    assert isinstance(error, InvalidRequest)
    assert len(error.message) < 500
