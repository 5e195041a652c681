"""What a grammar binds goes on under a grammar when its backend is lost in the middle of it.

The two backends are two ways to one server, each of which can be broken.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx2
import orjson
import pytest
from jsonschema import Draft202012Validator

from tests.fakes.breaking_proxy import BreakingProxy
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import running_gateway
from tests.fakes.stream import as_events
from tests.vllm.asking import DEFAULTS, answer_of, calls_of
from tests.vllm.conftest import TIMEOUT_S
from tests.vllm.patience import patient_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.event_grammar import Stream
    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

ROWS = 3
_ROW = {
    "type": "object",
    "properties": {
        "city": {"enum": ["San José", "東京", 'the "old" town']},
        "zone": {"type": "integer", "minimum": -12, "maximum": 14},
        "word": {"type": "string", "pattern": "^[a-z]{6,8}$"},
        "sure": {"type": ["boolean", "null"]},
        "more": {"anyOf": [{"type": "string", "maxLength": 24}, {"$ref": "#/$defs/pair"}]},
    },
    "required": ["city", "zone", "word", "sure", "more"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": _ROW, "minItems": ROWS, "maxItems": ROWS},
        "end": {"const": "that is all"},
    },
    "required": ["rows", "end"],
    "additionalProperties": False,
    "$defs": {
        "pair": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    },
}
TRIES = 5
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
DELTAS = ("response.output_text.delta", "response.function_call_arguments.delta")
ANSWER = {
    "text": {"format": {"type": "json_schema", "name": "f", "strict": True, "schema": SCHEMA}}
}
CALL = {
    "tools": [{"type": "function", "name": "report", "strict": True, "parameters": SCHEMA}],
    "tool_choice": "required",
}


@pytest.fixture
async def ways(vllm: Vllm) -> AsyncIterator[list[BreakingProxy]]:
    """Two ways to the server."""
    async with BreakingProxy(vllm.url).serving() as one, BreakingProxy(vllm.url).serving() as other:
        yield [one, other]


@pytest.mark.parametrize("lost_at", [1, 9, 33])
@pytest.mark.parametrize("fields", [ANSWER, CALL], ids=["answer", "call"])
async def test_a_bound_stream_that_loses_its_backend_goes_on_bound(
    ways: list[BreakingProxy],
    model: str,
    database_url_of_all: str,
    fields: dict[str, Any],
    lost_at: int,
) -> None:
    settings = patient_settings(database_url_of_all, [way.url for way in ways])
    async with (
        running_gateway(settings) as gateway,
        httpx2.AsyncClient(
            base_url=gateway.url, headers=gateway.headers, trust_env=False
        ) as client,
    ):
        body = {"model": model, "input": "please tell me the weather", **DEFAULTS, **fields}
        body |= {"max_output_tokens": 2000, "temperature": 1}
        # A fast server has said all of it before the client has read so far: then nothing is lost.
        stream, deltas = await _read(client, body, ways, lost_at)
        for _ in range(TRIES):
            if not any(way.broken for way in ways):
                stream, deltas = await _read(client, body, ways, lost_at)
    assert sum(way.broken for way in ways) == 1
    assert stream.response["status"] == "completed", stream.response
    text = _text(stream.response)
    Draft202012Validator(SCHEMA).validate(json.loads(text))
    assert len(deltas) > lost_at + 5, "the rest was held"
    assert not re.search(r"\s\s", STRING.sub('""', text)), text


def _text(response: dict[str, Any]) -> str:
    calls = calls_of(response)
    return str(calls[0]["arguments"] if calls else answer_of(response)["text"])


async def _read(
    client: httpx2.AsyncClient, body: dict[str, Any], ways: list[BreakingProxy], lost_at: int
) -> tuple[Stream, list[str]]:
    """The whole stream, and its pieces of text; with so many of them there the ways are broken."""
    events: list[dict[str, Any]] = []
    deltas: list[str] = []
    async with client.stream(
        "POST", "/v1/responses", json={**body, "stream": True}, timeout=TIMEOUT_S
    ) as answer:
        assert answer.status_code == 200
        async for event in events_of(answer):
            events.append(event)
            deltas += [event["delta"]] if event["type"] in DELTAS else []
            if len(deltas) == lost_at and event["type"] in DELTAS:
                for way in ways:
                    way.break_off()
    return check_stream(as_events(events)), deltas


async def events_of(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """As they come."""
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield orjson.loads(line.removeprefix("data: "))
