"""One HTTP exchange below Starlette: body in, head and bytes out, hang-ups of either side."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import GatewayError
from gateway.simulator.errors import SimulatedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Send

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
JSON: Final = b"application/json"
_CUT_WAIT_S: Final = 5.0


class ClientGone(GatewayError):
    """The client closed the connection."""


@dataclass(slots=True)
class Line:
    """Whether the client is still there, as far as one exchange knows."""

    cut: bool = False


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[Line]:
    """Cancel the body of the `with` when the client hangs up; it ends quietly then."""
    line = Line()
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_until_gone(receive, line))
            yield line
            watcher.cancel()
    except* ClientGone:
        pass


async def _until_gone(receive: Receive, line: Line) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    line.cut = True
    raise ClientGone("the client closed the connection")


async def read_body(receive: Receive, bytes_max: int) -> bytes:
    """The request's body. Raises `SimulatedError` 413, or `ClientGone`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise SimulatedError(413, f"The body is larger than {bytes_max} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


class Outlet:
    """The response's side."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def open(self, status: int, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
        """The head."""
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", content_type), *headers],
            }
        )

    async def write(self, data: bytes) -> None:
        """A part of the body; waits while the client does not read."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes = b"") -> None:
        """The last part of the body and its proper end."""
        await self._send({"type": "http.response.body", "body": data})

    async def json(self, status: int, document: dict[str, Any]) -> None:
        """A whole response."""
        body = orjson.dumps(document)
        await self.open(status, JSON, (b"content-length", b"%d" % len(body)))
        await self.close(body)

    async def cut(self) -> None:
        """Drop the connection as the kernel does for a process that was killed: no last chunk.

        Waits for the server to notice, which cancels it inside of `while_connected`.

        Under uvicorn `send` is a method of the object that has the transport. Elsewhere the
        response is left without an end, which servers answer by closing too.
        """
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
            await asyncio.sleep(_CUT_WAIT_S)
