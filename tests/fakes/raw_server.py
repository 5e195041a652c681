"""A TCP server that plays back scripted bytes, and knows what its clients did."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self

from tests.fakes.raw_http import reset

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence
    from types import TracebackType


class Act(Enum):
    """What a script can do besides sending bytes."""

    CLOSE = "close"  # FIN
    RESET = "reset"  # RST
    STALL = "stall"  # say nothing until the client hangs up


@dataclass
class Gate:
    """The script waits here: `reached` tells the test so, which sets `opened` to let it go on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


Step = bytes | Act | Gate
Script = Iterable[Step]


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    head: bytes
    body: bytes

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(": ") for line in lines if line)
        return {name.lower(): value for name, _, value in pairs}


@contextmanager
def silent_address(port: int) -> Iterator[str]:
    """An address of this machine at which packets to the port are dropped."""
    address = "127.0.0.2"
    with socket.socket() as listener, socket.socket() as waiting:
        listener.bind((address, port))
        listener.listen(0)
        waiting.connect((address, port))  # nobody accepts it, and there is room for no other
        yield address


class RawServer:
    """`routes` are scripts by path, one for each request; the last one is repeated.

    `"*"` is for every path without a route of its own. With `reads_bodies=False` the body of a
    request is left where it is.
    """

    def __init__(
        self,
        routes: dict[str, Sequence[Script]],
        *,
        tls: ssl.SSLContext | None = None,
        reads_bodies: bool = True,
    ) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.hung_up = asyncio.Event()
        self.port = 0
        self._tls = tls
        self._reads_bodies = reads_bodies
        self._scripts = {path: list(scripts) for path, scripts in routes.items()}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._stopped = False
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls, limit=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse new connections, break off the others."""
        self._stopped = True
        if self._server is not None:
            # asyncio loses the transport of a connection that was accepted in the round in which
            # the server closes: accept no more, and give those that were a round.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._idle.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped:  # accepted before it stopped, told of only now
            writer.transport.abort()
            return
        self.connections += 1
        self._writers.add(writer)
        self._idle.clear()
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            if not self._writers:
                self._idle.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        received = Received(head, b"")
        if self._reads_bodies:
            length = int(received.headers.get("content-length", "0"))
            received = Received(head, await reader.readexactly(length))
        self.requests.append(received)
        for step in self._next_script(received.path):
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                await asyncio.sleep(0)  # let the client read, as another process would
            elif isinstance(step, Gate):
                step.reached.set()
                await step.opened.wait()
            elif step is Act.STALL:
                await self._wait_for_hang_up(reader)
                return False
            else:
                await self._finish(writer, step)
                return False
        return True

    def _next_script(self, path: str) -> Script:
        scripts = self._scripts.get(path) or self._scripts["*"]
        return scripts.pop(0) if len(scripts) > 1 else scripts[0]

    async def _wait_for_hang_up(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(65536):
            pass
        self.hung_up.set()

    async def _finish(self, writer: asyncio.StreamWriter, act: Act) -> None:
        if act is Act.RESET:
            reset(writer)
        else:
            writer.close()
            await writer.wait_closed()


def response(
    body: bytes, *, status: int = 200, content_type: str = "application/json", headers: str = ""
) -> bytes:
    """A whole HTTP response with a content-length."""
    return (
        f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\n{headers}"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)
