"""Streams that are followed, cut off, and resumed; responses that are waited for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import orjson

from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import httpx2

WAIT_S = 60.0
DONE = "data: [DONE]\n\n"


async def frames_of(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    body: dict[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """The frames of a stream as they come, keep-alives left out. Close it to hang up."""
    async with client.stream(method, url, json=body, params=params, headers=headers) as answer:
        text = await answer.aread() if answer.status_code != 200 else b""
        assert answer.status_code == 200, text
        pending = ""
        async for chunk in answer.aiter_text():
            *whole, pending = (pending + chunk).split("\n\n")
            for frame in whole:
                if not frame.startswith(":"):
                    yield f"{frame}\n\n"
    assert pending == ""


def created(
    client: httpx2.AsyncClient, headers: Mapping[str, str] | None = None, **fields: Any
) -> AsyncIterator[str]:
    """The frames of a background response, unless `fields` say otherwise."""
    body = {"model": MODEL, "background": True, "stream": True, **fields}
    return frames_of(client, "POST", "/v1/responses", body=body, headers=headers)


def resumed(
    client: httpx2.AsyncClient, response_id: str, after: int | None = None, **params: str
) -> AsyncIterator[str]:
    """The frames of `GET ?stream=true`."""
    if after is not None:
        params["starting_after"] = str(after)
    url = f"/v1/responses/{response_id}"
    return frames_of(client, "GET", url, params={"stream": "true", **params})


async def listed(frames: AsyncIterator[str]) -> list[str]:
    """All of them."""
    async with asyncio.timeout(WAIT_S):
        return [frame async for frame in frames]


async def taken(frames: Any, until: Callable[[str], bool]) -> list[str]:
    """Those up to the first that is as wanted; then the client hangs up."""
    seen: list[str] = []
    async with asyncio.timeout(WAIT_S), aclosing(frames):
        async for frame in frames:
            seen.append(frame)
            if until(frame):
                return seen
    raise AssertionError(f"the stream ended before: {seen[-2:]}")


def is_delta(frame: str) -> bool:
    """Something was said."""
    return ".delta" in frame.split("\n", 1)[0]


def data_of(frame: str) -> dict[str, Any]:
    """The event in a frame."""
    event: dict[str, Any] = orjson.loads(frame.split("\ndata: ", 1)[1])
    return event


def id_in(frames: list[str]) -> str:
    """The id of the response whose first frame this begins with."""
    return str(data_of(frames[0])["response"]["id"])


async def until(
    client: httpx2.AsyncClient, response_id: str, wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The response once it is as wanted; polls, as clients do."""
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await client.get(f"/v1/responses/{response_id}")
            assert answer.status_code == 200, answer.text
            response: dict[str, Any] = answer.json()
            if wanted(response):
                return response
            await asyncio.sleep(0.01)


async def ended(client: httpx2.AsyncClient, response_id: str) -> dict[str, Any]:
    """The response once it is over."""
    return await until(
        client, response_id, lambda one: one["status"] not in {"queued", "in_progress"}
    )


async def said_something(client: httpx2.AsyncClient, response_id: str) -> dict[str, Any]:
    """The response once there is output to be seen."""
    return await until(client, response_id, lambda one: bool(one["output"]))
