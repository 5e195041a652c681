"""A proxy in front of a real server, whose connections a test can break."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_READ_BYTES: Final = 1 << 16
_GENERATING = (b"POST /v1/completions", b"POST /generate")
_END: Final = b"data: [DONE]"


class BreakingProxy:
    """Hands bytes on in both directions; `url` is where it listens. While it `is_cut` it resets
    every new connection.
    """

    def __init__(self, server_url: str) -> None:
        self.url = ""
        self.is_cut = False
        self.broken = 0
        """How many connections were broken while their answer was on its way."""
        self._server = urlsplit(server_url)
        self._clients: set[asyncio.StreamWriter] = set()
        self._answering: set[asyncio.StreamWriter] = set()

    def break_off(self) -> None:
        """Reset every connection over which an answer is on its way."""
        for writer in self._answering:
            writer.transport.abort()
            self.broken += 1
        self._answering.clear()

    def cut(self) -> None:
        """Reset every connection, and each new one until `is_cut` is False again."""
        self.is_cut = True
        for writer in self._clients:
            writer.transport.abort()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[BreakingProxy]:
        """Until the end of the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self
            for writer in self._clients:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        upstream_reader, upstream = await asyncio.open_connection(
            self._server.hostname, self._server.port
        )
        self._clients.add(writer)
        asking = asyncio.create_task(self._ask(reader, writer, upstream))
        try:
            with suppress(ConnectionError):
                last = b""
                while part := await upstream_reader.read(_READ_BYTES):
                    if _END in last + part:
                        self._answering.discard(writer)
                    last = part[-len(_END) :]
                    writer.write(part)
                    await writer.drain()
        finally:
            self._clients.discard(writer)
            self._answering.discard(writer)
            asking.cancel()
            upstream.transport.abort()
            writer.close()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamWriter,
    ) -> None:
        with suppress(ConnectionError):
            while part := await reader.read(_READ_BYTES):
                if any(path in part for path in _GENERATING) or writer in self._answering:
                    self._answering.add(writer)
                else:
                    self._answering.discard(writer)
                upstream.write(part)
                await upstream.drain()
        upstream.transport.abort()
