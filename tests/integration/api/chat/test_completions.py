"""Completions over the whole gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_streams import chunks_of
from tests.integration.api.chat.bodies import MODEL

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]


async def completed(client: httpx2.AsyncClient, prompt: str, **fields: Any) -> Json:
    body = {"model": MODEL, "prompt": prompt, **fields}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    completion: Json = answer.json()
    return completion


async def test_a_stream_says_what_the_body_says(client: httpx2.AsyncClient) -> None:
    completion = await completed(client, "Hello there")
    (choice,) = completion["choices"]
    assert "Hello there" in choice["text"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    body = {"model": MODEL, "prompt": "Hello there", "stream": True}
    options = {"stream_options": {"include_usage": True}}
    answer = await client.post("/v1/completions", json={**body, **options})
    *chunks, last = chunks_of(answer.text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    assert last["usage"]["completion_tokens"] == completion["usage"]["completion_tokens"]
    assert {chunk["object"] for chunk in [*chunks, last, completion]} == {"text_completion"}


async def test_a_bound_cuts_it_off(client: httpx2.AsyncClient) -> None:
    prompt = "[[sim think=none tokens=100]] Go"
    completion = await completed(client, prompt, max_tokens=20)
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 20


@pytest.mark.slow
async def test_what_is_not_text_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": [1, 2, 3]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_a_prompt_that_does_not_fit_is_named(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "word " * 140_000}
    answer = await client.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
