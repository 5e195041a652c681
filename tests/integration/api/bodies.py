"""What the tests of the API send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

MODEL = "gpt-oss-20b"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


async def create(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    """The body of a response that was created."""
    answer = await client.post("/v1/responses", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    return created


async def refused(client: httpx2.AsyncClient, status: int, **body: Any) -> dict[str, Any]:
    """The error of a request that was not served with it."""
    answer = await client.post("/v1/responses", json={"model": MODEL, **body})
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")
    return error
