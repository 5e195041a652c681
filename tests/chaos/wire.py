"""HTTP/1.1 and server-sent events as bytes, so that nothing between us and the socket is guessed.

Every exchange has a connection of its own. Nothing here raises for a server that is gone: the
connection then says that there was no answer, or where the stream broke off.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from tests.chaos.history import Frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.chaos.history import Connection

DONE: Final = b"[DONE]"
GONE: Final = (ConnectionError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
_DATA: Final = b"data: "
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent; `headers` beside those of every request."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self, key: str) -> bytes:
        """As bytes, for a connection that is closed afterwards."""
        lines = [
            f"{self.method} {self.path} HTTP/1.1",
            *("host: gateway", "connection: close", f"authorization: Bearer {key}"),
            *("content-type: application/json", f"content-length: {len(self.body)}"),
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


async def exchange(
    url: str,
    key: str,
    request: Request,
    connection: Connection,
    *,
    silence_max_s: float,
    stop: Callable[[Connection], bool] = lambda _: False,
) -> None:
    """Send the request and read all of the answer into `connection`.

    Returns when the server closes, when nothing came for `silence_max_s`, or, having hung up, as
    soon as `stop` says so; it is asked after every read.
    """
    address = urlsplit(url)
    connection.opened_s = time.monotonic()
    writer = None
    try:
        async with asyncio.timeout(silence_max_s) as silence:
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(request.encoded(key))
            async for size in _answer(reader, connection):
                silence.reschedule(asyncio.get_running_loop().time() + silence_max_s)
                if size and stop(connection):
                    connection.left = True
                    return
    except (TimeoutError, *GONE):
        return
    finally:
        if writer is not None:
            writer.transport.abort() if connection.left else writer.close()


async def _answer(reader: asyncio.StreamReader, connection: Connection) -> AsyncIterator[int]:
    """Yields after every read, with its size."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    connection.status = int(first.split(" ")[1])
    connection.headers = {
        name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)
    }
    yield len(head)
    streamed = connection.headers.get("content-type", "").startswith("text/event-stream")
    pending = b""
    async for part in _content(reader, connection.headers):
        if streamed:
            pending = _take_frames(pending + part, connection)
        else:
            connection.body += part
        yield len(part)


async def _content(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") != "chunked":
        left = int(headers.get("content-length", "0"))
        while left > 0:
            part = await reader.read(min(left, _READ_BYTES))
            if not part:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(part)
            yield part
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]


def _take_frames(content: bytes, connection: Connection) -> bytes:
    """Enter the whole frames; what is left is the beginning of the next one."""
    now = time.monotonic()
    *whole, rest = content.split(b"\n\n")
    for text in whole:
        data = next(
            (line[len(_DATA) :] for line in text.split(b"\n") if line.startswith(_DATA)), None
        )
        if data == DONE:
            connection.done = True
        elif data is not None:
            connection.frames.append(Frame(data, now))
    return rest


def json_body(connection: Connection) -> dict[str, Any]:
    """The body of an answer that is no stream; {} when there was none."""
    if not connection.body:
        return {}
    document: dict[str, Any] = orjson.loads(connection.body)
    return document
