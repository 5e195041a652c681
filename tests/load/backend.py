"""A server that replays ready-made vLLM streams at a given pace: `python -m tests.load.backend`.

It costs a fraction of what it loads, which is why it is not the simulator. The model's name is the
pace: `paced-50` gives every stream 50 ids a second, all streams in one step as an engine does;
`unpaced` as fast as the client takes them. `max_tokens` is the exact length of the answer.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, cast

import orjson
import uvloop
from typing_extensions import override

from tests.load.playback import Playback

UNPACED: Final = "unpaced"
PACE_PER_S: Final = 50
PACED: Final = f"paced-{PACE_PER_S}"
CONTEXT_LENGTH: Final = 131_072
BUFFER_BYTES_MAX: Final = 256 * 1024
"""What may wait for a slow reader of one stream."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One request after the other; each answer is `pieces`, of which `next_piece` writes one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._closing = b""
        self._at = 0
        self.is_writable = True

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self._transport = None

    @override
    def pause_writing(self) -> None:
        self.is_writable = False

    @override
    def resume_writing(self) -> None:
        self.is_writable = True
        self._server.wake()

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        while (request := self._next_request()) is not None:
            self._answer(*request)

    def answer(self, body: dict[str, Any]) -> None:
        """Send a whole document."""
        encoded = orjson.dumps(body)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._write(head % len(encoded) + encoded)

    def begin(self, opening: bytes, pieces: list[bytes], closing: bytes) -> None:
        """Send the opening; `next_piece` sends the others, the last one with the closing."""
        self._pieces, self._closing, self._at = pieces, closing, 0
        self._write(opening)

    def next_piece(self) -> bool:
        """Write one; False when it was the last."""
        piece = self._pieces[self._at]
        self._at += 1
        is_last = self._at == len(self._pieces)
        self._write(piece + self._closing if is_last else piece)
        return not is_last

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _next_request(self) -> tuple[bytes, bytes] | None:
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        head = bytes(self._received[:head_end])
        length = _LENGTH.search(head)
        end = head_end + 4 + (int(length[1]) if length else 0)
        if end > BODY_BYTES_MAX:
            raise ValueError("the request is too large")
        if len(self._received) < end:
            return None
        body = bytes(self._received[head_end + 4 : end])
        del self._received[:end]
        return head, body

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/completions":
            self._server.complete(self, orjson.loads(body))
        elif path == b"/v1/models":
            rows = [{"id": name, "max_model_len": CONTEXT_LENGTH} for name in (UNPACED, PACED)]
            self.answer({"object": "list", "data": rows})
        else:
            self.answer({"version": "0.33.0"})


class Server:
    """Gives every stream its turn."""

    def __init__(self, playback: Playback, loop: asyncio.AbstractEventLoop) -> None:
        self._playback = playback
        self._loop = loop
        self._unpaced: dict[Connection, None] = {}
        self._paced: dict[Connection, None] = {}
        self._is_awake = False
        self._next_step_at = 0.0

    def complete(self, connection: Connection, request: dict[str, Any]) -> None:
        """Start to answer a request for a streamed completion of ids."""
        length, prompt = request["max_tokens"], request["prompt"]
        is_paced = request["model"] == PACED
        recording = self._playback.recording(length)
        connection.begin(
            self._playback.opening(length, prompt),
            recording.frames if is_paced else recording.blocks,
            self._playback.closing(length, prompt),
        )
        if is_paced:
            if not self._paced:
                self._next_step_at = self._loop.time() + 1 / PACE_PER_S
                self._loop.call_at(self._next_step_at, self._step)
            self._paced[connection] = None
        else:
            self._unpaced[connection] = None
            self.wake()

    def forget(self, connection: Connection) -> None:
        """The client is gone."""
        self._unpaced.pop(connection, None)
        self._paced.pop(connection, None)

    def wake(self) -> None:
        """There may be something to write without a pace."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_awake = False
        for connection in list(self._unpaced):
            if not connection.is_writable:
                continue
            if connection.next_piece():
                self.wake()
            else:
                self.forget(connection)

    def _step(self) -> None:
        for connection in list(self._paced):
            if not connection.next_piece():
                self.forget(connection)
        if self._paced:
            self._next_step_at += 1 / PACE_PER_S
            self._loop.call_at(self._next_step_at, self._step)


async def serve() -> None:
    """Listen on a free loopback port, say which, and serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = Server(Playback(), loop)
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=2048)
    port = listening.sockets[0].getsockname()[1]
    print(f"listening on http://127.0.0.1:{port}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
