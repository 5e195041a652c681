"""What the tests of the chat endpoints send, and how they read the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.fakes.chat_streams import chunks_of

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]

MODEL = "gpt-oss-20b"
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
}
PATCH: Json = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]{1,8}"}},
    },
}
PERSON: Json = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    },
}


def asked(text: str, **fields: Any) -> Json:
    """A chat in which a user says `text`."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


async def chat(client: httpx2.AsyncClient, body: Json) -> Json:
    """The chat completion that answers `body`."""
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    completion: Json = answer.json()
    return completion


async def streamed(client: httpx2.AsyncClient, body: Json) -> list[Json]:
    """The chunks that answer it as a stream, with the usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post("/v1/chat/completions", json={**body, **options})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return chunks_of(answer.text)


def message(completion: Json) -> Json:
    """The only choice's."""
    (choice,) = completion["choices"]
    said: Json = choice["message"]
    return said
