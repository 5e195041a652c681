"""The simulated server's chat endpoint, read as its clients read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_streams import chunks_of
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

PATH = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
}
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL = {"name": "get_weather", "arguments": '{"location": "Paris"}'}


@pytest.fixture(scope="module", params=["vllm", "sglang"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[httpx2.AsyncClient]:
    options = WaywardOptions(engine=request.param)
    async with serving(create_simulator(options)) as url, http_client(url) as client:
        yield client


async def asked(server: httpx2.AsyncClient, text: str = "", **fields: Any) -> httpx2.Response:
    messages = [{"role": "user", "content": text}] if text else WEATHER
    return await server.post(
        PATH, json={"model": "gpt-oss-20b", "messages": messages, **fields}, timeout=60
    )


def thought_of(message: dict[str, Any]) -> str:
    thought: str = message.get("reasoning") or message["reasoning_content"]
    return thought


async def test_a_turn_has_a_thought_and_an_answer(server: httpx2.AsyncClient) -> None:
    body = (await asked(server, "Say hello [[sim say=Hello]]")).json()
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hello"
    assert "I look at the whole conversation" in thought_of(choice["message"])
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] > 0


async def test_a_stream_says_what_a_body_says(server: httpx2.AsyncClient) -> None:
    for fields in ({}, {"tools": [TOOL]}, {"logprobs": True, "top_logprobs": 2}):
        whole = (await asked(server, **fields)).json()
        options = {"include_usage": True}
        stream = await asked(server, stream=True, stream_options=options, **fields)
        *chunks, end = chunks_of(stream.text)
        said: dict[str, Any] = {"role": "", "content": "", "tool_calls": []}
        likely: list[Any] = []
        for choice in (chunk["choices"][0] for chunk in chunks):
            likely += (choice["logprobs"] or {}).get("content", [])
            for name, value in choice["delta"].items():
                said[name] = said.get(name, "" if name != "tool_calls" else []) + value
        message = whole["choices"][0]["message"]
        assert (said["content"] or None) == message["content"]
        assert thought_of(said) == thought_of(message)
        arguments = "".join(one["function"]["arguments"] for one in said["tool_calls"])
        assert arguments == "".join(one["function"]["arguments"] for one in message["tool_calls"])
        assert likely == ((whole["choices"][0]["logprobs"] or {}).get("content") or [])
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert end["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_call_is_made_and_its_result_quoted(server: httpx2.AsyncClient) -> None:
    (choice,) = (await asked(server, tools=[TOOL])).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]) == ("tool_calls", CALL)
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "17 degrees"}
    (choice,) = (await asked(server, tools=[TOOL], messages=[*WEATHER, said, result])).json()[
        "choices"
    ]
    assert "17 degrees" in choice["message"]["content"]


async def test_what_is_demanded_is_done(server: httpx2.AsyncClient) -> None:
    (choice,) = (await asked(server, "Hello", tools=[TOOL], tool_choice="required")).json()[
        "choices"
    ]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    schema |= {"additionalProperties": False}
    format_ = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    drift = "How many? [[sim drift=types]]"
    (choice,) = (await asked(server, drift, response_format=format_)).json()["choices"]
    assert isinstance(json.loads(choice["message"]["content"])["n"], int)


async def test_how_likely_each_token_of_an_answer_was(server: httpx2.AsyncClient) -> None:
    body = (await asked(server, "Hi [[sim say=né 🙂]]", logprobs=True, top_logprobs=2)).json()
    told = body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in told for byte in one["bytes"]).decode() == "né 🙂"
    assert all(len(one["top_logprobs"]) == 2 for one in told)


async def test_a_turn_ends_where_it_is_told_to(server: httpx2.AsyncClient) -> None:
    body = (await asked(server, max_tokens=5)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 5


async def test_faults_are_those_of_every_endpoint(server: httpx2.AsyncClient) -> None:
    assert (await asked(server, "[[sim status=503]] Hello")).status_code == 503
    cut = await asked(server, "[[sim error_after=5]] Hello", stream=True)
    *_, last = chunks_of(cut.text)
    assert "error" in last


@pytest.mark.parametrize(
    "fields", [{"messages": []}, {"messages": "Hello"}, {"tools": 3}, {"max_tokens": "five"}]
)
async def test_what_means_nothing_is_refused(server: httpx2.AsyncClient, fields: Any) -> None:
    assert (await asked(server, **fields)).status_code == 400
    assert (await server.get(PATH)).status_code == 405
