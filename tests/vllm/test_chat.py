"""The chat endpoints in front of a real vLLM: they say what the Responses API keeps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_streams import chunks_of
from tests.fakes.stream import texts
from tests.vllm.asking import (
    ENDLESS_CHAT,
    LONG_ASKED,
    LONG_COMPLETION,
    WEATHER,
    WEATHER_ASKED,
    answer_of,
    create,
)
from tests.vllm.chats import USAGE, chat, check_same, check_usage, is_chat
from tests.vllm.controls import ANSWERS, CALLS, CHOICES

if TYPE_CHECKING:
    import httpx2

    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

Json = dict[str, Any]

CONTROLS = {
    name: control
    for name, control in {**CALLS, **ANSWERS, **CHOICES}.items()
    if is_chat(control.fields)
}
LOOP_TURNS_MAX = 6


async def kept(client: httpx2.AsyncClient, response_id: str) -> Json:
    answer = await client.get(f"/v1/responses/{response_id}")
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", ["Hello there", "naïve 東京 🎉?", LONG_ASKED])
async def test_a_chat_says_what_its_response_says(
    client: httpx2.AsyncClient, model: str, text: str, stream: bool
) -> None:
    said = await chat(client, model=model, input=text, temperature=1, store=True, stream=stream)
    assert said.shown is not None, said.error
    check_same(said.shown, await kept(client, said.response_id))
    assert said.shown["model"] == model


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CONTROLS)
async def test_a_control_holds_in_a_chat(
    client: httpx2.AsyncClient, model: str, name: str, stream: bool
) -> None:
    control = CONTROLS[name]
    said = await chat(client, model=model, store=True, stream=stream, **control.fields)
    assert said.shown is not None, said.error
    response = await kept(client, said.response_id)
    check_same(said.shown, response)
    assert response["status"] == "completed", response["output"]
    control.check(response)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_is_billed_as_a_response(
    client: httpx2.AsyncClient, model: str, stream: bool
) -> None:
    body = {"model": model, "input": WEATHER_ASKED, "tools": [WEATHER]}
    response = await create(client, **body, max_output_tokens=16)
    said = await chat(client, **body, max_output_tokens=16, stream=stream)
    assert said.shown is not None, said.error
    assert said.shown["finish_reason"] == "length"
    usage = {**response["usage"], "input_tokens_details": {}}  # the second finds more in the cache
    check_usage(said.shown["usage"], usage)
    assert usage["output_tokens"] == 16


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_of_a_chat_spell_its_content_byte_for_byte(
    client: httpx2.AsyncClient, model: str, stream: bool
) -> None:
    body: Json = {"logprobs": True, "top_logprobs": 4, "temperature": 1, "seed": 4}
    said = await chat(client, model=model, input=LONG_ASKED, stream=stream, store=True, **body)
    assert said.shown is not None, said.error
    entries = said.shown["logprobs"]
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spelled == said.message["content"].encode()
    assert all(entry["logprob"] <= 0 for entry in entries)
    assert all(len(entry["top_logprobs"]) <= 4 for entry in entries)
    assert entries == answer_of(await kept(client, said.response_id))["logprobs"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_of_chats_ends_in_an_answer(
    client: httpx2.AsyncClient, model: str, stream: bool
) -> None:
    messages: list[Json] = [{"role": "user", "content": WEATHER_ASKED}]
    calls = 0
    for _ in range(LOOP_TURNS_MAX):
        body = {"model": model, "input": messages, "tools": [WEATHER]}
        message = (await chat(client, stream=stream, **body)).message
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            calls += 1
            output = {"role": "tool", "tool_call_id": call["id"], "content": "17 degrees"}
            messages.append(output)
    assert calls
    assert messages[-1]["role"] == "assistant"
    assert messages[-1]["content"]


async def test_a_completion_says_what_a_response_says(
    client: httpx2.AsyncClient, model: str
) -> None:
    response = await create(client, model=model, input="Hello there", max_output_tokens=400)
    body: Json = {"model": model, "prompt": "Hello there", "temperature": 0, "max_tokens": 400}
    whole = (await client.post("/v1/completions", json=body)).json()
    *chunks, last = chunks_of((await client.post("/v1/completions", json={**body, **USAGE})).text)
    (choice,) = whole["choices"]
    assert "".join(texts(response)) == choice["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    for usage in (whole["usage"], last["usage"]):
        check_usage(usage, {**response["usage"], "input_tokens_details": {}})


@pytest.mark.parametrize("stream", [True, False])
async def test_the_bounds_of_chats_and_completions_are_exact(
    client: httpx2.AsyncClient, model: str, stream: bool
) -> None:
    """They may be smaller than those of responses."""
    said = await chat(client, model=model, input=LONG_ASKED, max_output_tokens=3, stream=stream)
    assert said.shown is not None, said.error
    assert said.shown["finish_reason"] == "length"
    assert said.shown["usage"]["completion_tokens"] == 3
    body = {"model": model, "prompt": LONG_ASKED, "max_tokens": 3}
    answer = await client.post("/v1/completions", json={**body, **(USAGE if stream else {})})
    usage = (chunks_of(answer.text)[-1] if stream else answer.json())["usage"]
    assert usage["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "asked"), [("chat/completions", ENDLESS_CHAT), ("completions", LONG_COMPLETION)]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_a_chat_frees_the_server(
    blunt_client: httpx2.AsyncClient, vllm: Vllm, path: str, asked: Json, stream: bool
) -> None:
    await vllm.until_idle()
    body = {"model": vllm.model, "stream": stream, **asked}
    asking = asyncio.create_task(blunt_client.post(f"/v1/{path}", json=body))
    await vllm.until_busy()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await vllm.until_idle()
