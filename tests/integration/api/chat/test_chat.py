"""Chat completions over the whole gateway: what is asked, generated, shown and kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import Vocabulary
from tests.fakes.chat_streams import as_assembled, assembled_chat
from tests.fakes.http_client import http_client
from tests.integration.api.chat.bodies import (
    MODEL,
    PATCH,
    PERSON,
    WEATHER,
    asked,
    chat,
    message,
    streamed,
)

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

Json = dict[str, Any]

VOCABULARY = Vocabulary.load()
QUESTION = "What is the weather in Paris?"


async def prompt_of(backends: Backends, completion: Json) -> str:
    """What the model was shown for a chat completion."""
    (seen, *_) = await backends.of_response(completion["id"].removeprefix("chatcmpl-"))
    return VOCABULARY.decode(seen["prompt_ids"])


BODIES: dict[str, Json] = {
    "an answer": asked("Hello there"),
    "a call": asked(QUESTION, tools=[WEATHER]),
    "a preamble and a call": asked(f"{QUESTION} With a preamble.", tools=[WEATHER]),
    "two calls": asked("[[sim call=get_weather attack=twice]] Go", tools=[WEATHER]),
    "a custom call": asked("[[sim call=patch]] Go", tools=[PATCH]),
    "a deprecated call": asked(QUESTION, functions=[WEATHER["function"]]),
    "logprobs": asked("Hello there", logprobs=True, top_logprobs=2),
    "JSON": asked("Describe Ada.", response_format=PERSON),
    "a refusal": asked("[[sim drift=refusal]] Describe Ada.", response_format=PERSON),
    "a cut": asked("[[sim think=none tokens=100]] Go", max_tokens=20),
    "a cut in the reasoning": asked("[[sim think=100]] Go", max_completion_tokens=10),
    "a stop": asked("[[sim think=none say=one two three]]", stop=["two"]),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_says_what_a_body_says(client: httpx2.AsyncClient, name: str) -> None:
    body = as_assembled(await chat(client, BODIES[name]))
    stream = assembled_chat(await streamed(client, BODIES[name]))
    assert _comparable(stream) == _comparable(body)


def _comparable(shown: Json) -> Json:
    """Without what two runs never share."""
    calls = [
        {name: value for name, value in call.items() if name != "id"}
        for call in shown["message"].get("tool_calls", ())
    ]
    told = {name: value for name, value in shown.items() if name not in {"id", "created"}}
    usage = {**shown["usage"], "prompt_tokens_details": None}
    return {**told, "message": {**shown["message"], "tool_calls": calls}, "usage": usage}


@pytest.mark.slow
async def test_what_the_cases_are_named_after_happens(client: httpx2.AsyncClient) -> None:
    shown = {name: as_assembled(await chat(client, body)) for name, body in BODIES.items()}
    finishes = {name: each["finish_reason"] for name, each in shown.items()}
    messages = {name: each["message"] for name, each in shown.items()}
    assert finishes == {
        "an answer": "stop",
        "a call": "tool_calls",
        "a preamble and a call": "tool_calls",
        "two calls": "tool_calls",
        "a custom call": "tool_calls",
        "a deprecated call": "function_call",
        "logprobs": "stop",
        "JSON": "stop",
        "a refusal": "stop",
        "a cut": "length",
        "a cut in the reasoning": "length",
        "a stop": "stop",
    }
    assert messages["a call"]["content"] is None
    assert len(messages["two calls"]["tool_calls"]) == 2
    assert messages["a preamble and a call"]["content"]
    assert messages["a deprecated call"]["function_call"]["name"] == "get_weather"
    assert set(messages["a custom call"]["tool_calls"][0]["custom"]["input"]) <= set("abc")
    assert set(json.loads(messages["JSON"]["content"])) == {"name", "age"}
    assert messages["a refusal"]["refusal"]
    assert messages["a cut in the reasoning"]["content"] == ""
    assert messages["a cut in the reasoning"]["reasoning_content"]
    assert messages["a stop"]["content"] == "one "
    spelled = b"".join(bytes(entry["bytes"]) for entry in shown["logprobs"]["logprobs"])
    assert spelled.decode() == messages["logprobs"]["content"]


async def test_a_bound_below_that_of_the_responses_api_holds(client: httpx2.AsyncClient) -> None:
    completion = await chat(client, asked("Hello", max_tokens=1))
    assert completion["usage"]["completion_tokens"] == 1
    headers = {"idempotency-key": "chat-durable-bound"}
    body = asked("Hello", max_tokens=1, store=True)
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.json()["usage"]["completion_tokens"] == 1


async def test_a_tool_loop_goes_on_where_it_was(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    body = BODIES["a preamble and a call"]
    first = await chat(client, body)
    said = message(first)
    (call,) = said["tool_calls"]
    output = {"role": "tool", "tool_call_id": call["id"], "content": "17 degrees"}
    messages = [*body["messages"], said, output]
    second = await chat(client, {**body, "messages": messages})
    assert "17 degrees" in message(second)["content"]
    shown = await prompt_of(backends, second)
    (before,) = await backends.of_response(first["id"].removeprefix("chatcmpl-"))
    prompt = VOCABULARY.decode(before["prompt_ids"])
    thought, preamble = f"analysis{said['reasoning_content']}", f"commentary{said['content']}"
    assert shown.startswith(f"{prompt}{thought}assistant{preamble}assistantcommentary")
    assert shown.index(preamble) < shown.index("to=functions.get_weather") < shown.index("17 deg")


async def test_reasoning_is_not_shown_again_once_there_was_an_answer(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    body = asked("My name is Ada.")
    said = message(await chat(client, body))
    messages = [*body["messages"], said, {"role": "user", "content": "What is my name?"}]
    second = await chat(client, {**body, "messages": messages})
    assert "Ada" in message(second)["content"]
    assert said["reasoning_content"] not in await prompt_of(backends, second)


async def test_system_and_developer_messages_instruct(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    messages = [
        {"role": "system", "content": "Speak like a pirate."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hi"},
    ]
    prompt = await prompt_of(backends, await chat(client, {"model": MODEL, "messages": messages}))
    assert prompt.index("# Instructions") < prompt.index("Speak like a pirate.")
    assert prompt.index("Speak like a pirate.") < prompt.index("Be brief.") < prompt.index("Hi")


async def test_what_cannot_be_read_is_named_to_the_model(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
    ]
    body = {"model": MODEL, "messages": [{"role": "user", "content": parts}]}
    prompt = await prompt_of(backends, await chat(client, body))
    assert "[image omitted" in prompt
    assert "[file omitted" in prompt
    assert "AAAA" not in prompt


async def test_effort_and_sampling_reach_the_backend(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    body = asked("Hi", reasoning_effort="high", temperature=0.25, seed=7, max_tokens=123)
    completion = await chat(client, body)
    (seen,) = await backends.of_response(completion["id"].removeprefix("chatcmpl-"))
    assert "Reasoning: high" in VOCABULARY.decode(seen["prompt_ids"])
    assert seen["max_tokens"] == 123


async def test_nothing_is_kept_unless_it_is_asked_for(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=asked("Hello there"))
    assert "x-gateway-response-id" not in answer.headers
    response_id = answer.json()["id"].replace("chatcmpl-", "resp_")
    assert (await client.get(f"/v1/responses/{response_id}")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_stored_is_a_response_and_can_be_continued(
    client: httpx2.AsyncClient, stream: bool
) -> None:
    body = asked("My name is Ada.", store=True, metadata={"a": "b"}, stream=stream)
    answer = await client.post("/v1/chat/completions", json=body)
    response_id = answer.headers["x-gateway-response-id"]
    assert response_id.replace("resp_", "chatcmpl-") in answer.text
    response = (await client.get(f"/v1/responses/{response_id}")).json()
    assert (response["status"], response["metadata"]) == ("completed", {"a": "b"})
    more = {"model": MODEL, "input": "What is my name?", "previous_response_id": response_id}
    assert "Ada" in (await client.post("/v1/responses", json=more)).text


async def test_a_key_stands_for_the_same_completion(client: httpx2.AsyncClient) -> None:
    headers = {"idempotency-key": "chat-once"}
    body = asked("Hello there", store=True)
    first, second = [
        await client.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)
    ]
    assert second.json() == first.json()
    assert second.headers["idempotent-replayed"] == "true"
    streams = [
        await client.post(
            "/v1/chat/completions",
            json={**body, "stream": True},
            headers={"idempotency-key": "chat-stream-once"},
        )
        for _ in range(2)
    ]
    frames = [
        [frame for frame in stream.text.split("\n\n") if frame[:1] != ":"] for stream in streams
    ]
    assert frames[0] == frames[1]


async def test_what_has_no_effect_is_named_in_a_header(client: httpx2.AsyncClient) -> None:
    body = asked("Hi", chat_template_kwargs={}, prediction={"type": "content", "content": "x"})
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["x-ignored-parameters"] == "chat_template_kwargs, prediction"


async def test_the_dialect_of_a_path_changes_nothing(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/openresponses/v1/chat/completions", json=asked("Hello there"))
    assert answer.json()["object"] == "chat.completion"


async def test_chats_are_counted_and_need_a_key(gateway: RunningGateway) -> None:
    async with http_client(gateway.url) as nobody:
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = await nobody.post(path, json=asked("Hi"))
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_images_that_the_model_is_not_shown_are_named_in_a_header(
    client: httpx2.AsyncClient,
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [image]}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["x-gateway-dropped-input"] == "input_image;count=1"
