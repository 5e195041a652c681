"""Streams of chunks: frames, silence, failures, and clients that leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.fakes.chat_streams import chunks_of
from tests.integration.api.chat.bodies import asked, streamed

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

Json = dict[str, Any]

BROKEN = "[[sim think=none error_after=5]] Go"


async def test_frames_are_data_alone_and_padded(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=asked("Hello there", stream=True))
    chunks = chunks_of(answer.text)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        has_text = choice["delta"].get("content") or choice["delta"].get("reasoning_content")
        assert ("obfuscation" in chunk) == bool(has_text)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


async def test_a_client_may_do_without_padding(client: httpx2.AsyncClient) -> None:
    body = asked("Hello there", stream=True, stream_options={"include_obfuscation": False})
    answer = await client.post("/v1/chat/completions", json=body)
    assert "obfuscation" not in answer.text
    assert "usage" not in answer.text


async def test_the_usage_comes_last_and_alone(client: httpx2.AsyncClient) -> None:
    *before, last = await streamed(client, asked("Hello there"))
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


async def test_what_fails_before_the_first_token_has_a_status(client: httpx2.AsyncClient) -> None:
    for stream in (False, True):
        body = asked("[[sim status=503]] Go", stream=stream)
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "server_is_overloaded"


async def test_what_fails_later_ends_with_an_error(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=asked(BROKEN, stream=True))
    assert answer.status_code == 200
    frames = [frame for frame in answer.text.split("\n\n") if frame and frame[0] != ":"]
    assert frames[-1] == "data: [DONE]"
    error = orjson.loads(frames[-2].removeprefix("data: "))["error"]
    assert (error["type"], error["param"]) == ("server_error", None)
    assert 'finish_reason":"' not in answer.text


async def test_a_body_that_fails_is_an_error(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=asked(BROKEN))
    assert answer.status_code == 502
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_model_that_does_not_obey_is_an_error(client: httpx2.AsyncClient) -> None:
    schema = {"name": "p", "schema": {"type": "object"}, "strict": True}
    body = asked(
        "[[sim think=none drift=prose grammar_ids=none]] Go",
        response_format={"type": "json_schema", "json_schema": schema},
    )
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_structured_output")
    assert "response_format" in error["message"]
    assert "max_completion_tokens" in error["message"]


EMPTY = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "chat/completions",
            asked(
                "Go",
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "p", "schema": EMPTY, "strict": True},
                },
            ),
            "response_format.json_schema.schema",
        ),
        (
            "responses",
            {
                "model": asked("Go")["model"],
                "input": "Go",
                "text": {
                    "format": {"type": "json_schema", "name": "p", "schema": EMPTY, "strict": True}
                },
            },
            "text.format.schema",
        ),
    ],
)
async def test_a_schema_that_nothing_can_satisfy_is_refused_before_anything_is_generated(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_json_schema")
    assert "at /properties/a/minimum" in error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_client_that_leaves_stops_the_backend(
    client: httpx2.AsyncClient, backends: Backends, path: str
) -> None:
    text = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
    body = {**asked(text), "stream": True}
    if path == "completions":
        del body["messages"]
        body["prompt"] = text
    async with client.stream("POST", f"/v1/{path}", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                uuid = orjson.loads(line.removeprefix("data: "))["id"].partition("-")[2]
                break
    await backends.until(
        lambda rows: [r["aborted"] for r in rows if str(r["request_id"]).startswith(uuid)] == [True]
    )
