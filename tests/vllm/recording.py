"""A proxy that notes which ids went to a model server, and which came back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    import httpx2
    from starlette.types import Receive, Scope, Send


@dataclass
class Exchange:
    """One completion."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)


class Recorder:
    """Passes requests on as they are; understands only streams with `token_ids`."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.exchanges: list[Exchange] = []
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        body = await _body(receive)
        headers = {"content-type": "application/json"} if body else {}
        async with self._client.stream(
            scope["method"], scope["path"], content=body, headers=headers
        ) as answer:
            kept = [(b"content-type", answer.headers.get("content-type", "").encode())]
            status = answer.status_code
            await send({"type": "http.response.start", "status": status, "headers": kept})
            received = b""
            async for chunk in answer.aiter_bytes():
                received += chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if scope["path"] == "/v1/completions":
                self._note(body, received)
            await send({"type": "http.response.body", "body": b""})

    def _note(self, body: bytes, received: bytes) -> None:
        exchange = Exchange(orjson.loads(body)["prompt"])
        for line in received.splitlines():
            data = line.removeprefix(b"data: ")
            if data.startswith(b"{"):
                for choice in orjson.loads(data)["choices"]:
                    exchange.output += choice.get("token_ids") or []
        self.exchanges.append(exchange)


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
