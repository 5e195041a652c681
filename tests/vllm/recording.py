"""A proxy that notes which ids went to a model server, and which came back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx2
import orjson

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


PROMPTS = {"/v1/completions": "prompt", "/generate": "input_ids"}
"""Where the ids of a prompt are."""


@dataclass
class Exchange:
    """One completion. `cached`: tokens of the prompt that were, if the server tells."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    cached: int | None = None


class Recorder:
    """Passes requests on as they are; understands streams with `token_ids`, and those of SGLang's
    `/generate`: their events have all ids so far, with `--incremental-streaming-output` new ones.
    """

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.exchanges: list[Exchange] = []
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        passing = asyncio.ensure_future(self._pass(scope, await _body(receive), send))
        # A client that hangs up has the server stop, too.
        leaving = asyncio.ensure_future(receive())
        leaving.add_done_callback(lambda _: passing.cancel())
        with suppress(asyncio.CancelledError):
            await passing
        leaving.cancel()

    async def _pass(self, scope: Scope, body: bytes, send: Send) -> None:
        headers = {"content-type": "application/json"} if body else {}
        exchange = None
        if (key := PROMPTS.get(scope["path"])) is not None:
            exchange = Exchange(orjson.loads(body)[key])
            self.exchanges.append(exchange)
        rest = b""
        try:
            async with self._client.stream(
                scope["method"], scope["path"], content=body, headers=headers
            ) as answer:
                kept = [(b"content-type", answer.headers.get("content-type", "").encode())]
                status = answer.status_code
                await send({"type": "http.response.start", "status": status, "headers": kept})
                async for chunk in answer.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if exchange is not None:
                        # Before it is passed on: who has the end of it may look here at once.
                        _note(exchange, lines)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx2.ConnectError:
            await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def _note(exchange: Exchange, lines: list[bytes]) -> None:
    for line in lines:
        data = line.removeprefix(b"data: ")
        if data.startswith(b"{"):
            event = orjson.loads(data)
            meta = event.get("meta_info") or {}
            if ids := event.get("output_ids"):
                is_all = len(ids) == meta.get("completion_tokens")
                exchange.output = ids if is_all else exchange.output + ids
            exchange.cached = meta.get("cached_tokens", exchange.cached)
            for choice in event.get("choices", ()):
                exchange.output += choice.get("token_ids") or []
            told = (event.get("usage") or {}).get("prompt_tokens_details") or {}
            exchange.cached = told.get("cached_tokens", exchange.cached)


async def _lifespan(receive: Receive, send: Send) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body
