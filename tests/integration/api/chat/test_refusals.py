"""Refusals of chats, in their own words, from wherever in the gateway they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.api.chat.bodies import MODEL, WEATHER, asked

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]

CALLING = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": MODEL}, "missing_required_parameter", "messages"),
        (asked("Hi", n=3), "unsupported_parameter", "n"),
        (asked("Hi", temperature="hot"), "invalid_type", "temperature"),
        (asked("Hi", messages=[CALLING]), None, "messages[0].tool_calls[0]"),
        (asked("word " * 140_000), "context_length_exceeded", "messages"),
        (
            asked("Hi", tools=[{"type": "function", "function": {"name": "a b"}}]),
            "invalid_value",
            "tools[0].function.name",
        ),
        (
            asked("Hi", tools=[WEATHER], tool_choice={"type": "function"}),
            "missing_required_parameter",
            "tool_choice.function",
        ),
        (asked("Hi", reasoning_effort="huge"), "unsupported_value", "reasoning_effort"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_parameter_that_cannot_be_honoured_is_named(
    client: httpx2.AsyncClient, body: Json, code: str | None, param: str, stream: bool
) -> None:
    answer = await client.post("/v1/chat/completions", json={**body, "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)


async def test_an_unknown_model_is_not_found(client: httpx2.AsyncClient) -> None:
    for path, body in (
        ("/v1/chat/completions", asked("Hi")),
        ("/v1/completions", {"prompt": "Hi"}),
    ):
        answer = await client.post(path, json={**body, "model": "gpt-9"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


async def test_a_key_needs_something_that_is_kept(client: httpx2.AsyncClient) -> None:
    headers = {"idempotency-key": "chat-not-kept"}
    answer = await client.post("/v1/chat/completions", json=asked("Hi"), headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_only_post_is_served(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/v1/chat/completions")).status_code == 405
