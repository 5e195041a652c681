"""Requests to a gateway in front of a real server, and what holds of every answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from openai.types.responses import Response

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, parse_stream

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.event_grammar import Stream

ENDED_WELL = {"completed", "incomplete"}
OUTPUT_TOKENS_MAX = 400
"""A small model may repeat itself until its window is full."""
DEFAULTS = {"temperature": 0, "max_output_tokens": OUTPUT_TOKENS_MAX}
WEATHER_ASKED = "please tell me the weather"
SEARCH_ASKED = "please search"
LONG_ASKED = "please tell me a long story"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location"],
    },
}
SEARCH: dict[str, Any] = {
    "type": "function",
    "name": "search",
    "description": "Search things",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
}
_MANY = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 5000}
_ALL = {
    "type": "object",
    "properties": {"all": _MANY},
    "required": ["all"],
    "additionalProperties": False,
}
ENDLESS: dict[str, Any] = {
    "input": "Hello",
    "text": {"format": {"type": "json_schema", "name": "all", "strict": True, "schema": _ALL}},
}
"""Takes long to answer, where it may not be refused."""
ENDLESS_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "all", "strict": True, "schema": _ALL},
    },
}
LONG_COMPLETION: dict[str, Any] = {"prompt": "long " * 3000 + LONG_ASKED, "temperature": 0}
"""Takes long to read: a completion has no format, and is sent no bias."""
_MARK = "<|"


async def create(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    """The response to a request without a stream."""
    answer = await client.post("/v1/responses", json={**DEFAULTS, **body})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    if response["status"] != "failed":  # their codes are OpenAI's alone
        Response.model_validate(response, strict=True)
    assert _MARK not in json.dumps(response["output"])
    return response


async def streamed(client: httpx2.AsyncClient, **body: Any) -> Stream:
    """The stream of a request, which keeps all laws of streams."""
    answer = await client.post("/v1/responses", json={**DEFAULTS, **body, "stream": True})
    assert answer.status_code == 200, answer.text
    stream = check_stream(as_events(parse_stream(answer.text)))
    assert _MARK not in json.dumps(stream.items)
    return stream


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Its calls of tools."""
    return [item for item in response["output"] if item["type"].endswith("_call")]


def answer_of(response: dict[str, Any]) -> dict[str, Any]:
    """The one part of its answer; fails where there is none."""
    [part] = next(
        item["content"]
        for item in response["output"]
        if item["type"] == "message" and item["phase"] == "final_answer"
    )
    assert isinstance(part, dict)
    return part


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    """What a client sends back for a call of a function."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "17 degrees"}
