from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol, cast

import httptools
import httpx2
from typing_extensions import override


class ResponseReader:
    """Reads exactly one response; interim (1xx) responses before it are skipped.

    httptools calls `on_body` for each chunk, hundreds in a read, so it is the `append` of a list.
    """

    __slots__ = (
        "_bare_bytes", "_has_framing", "_head_bytes", "_head_bytes_max", "_header_bytes",
        "_interim", "_parser", "_piece_count", "_pieces", "complete", "headers", "on_body",
        "reusable", "status", "touched",
    )  # fmt: skip

    def __init__(self, head_bytes_max: int) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.touched = False
        self.complete = False
        self.reusable = False
        self._pieces: list[bytes] = []
        self._piece_count = 0
        self.on_body = self._pieces.append
        self._bare_bytes = 0  # since the last of the body
        self._head_bytes = 0  # of reads that brought no end of the head
        self._header_bytes = 0  # of whole headers, which one read may bring
        self._head_bytes_max = head_bytes_max
        self._has_framing = False
        """The headers say where the body ends."""
        self._interim = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse bytes of the answer. Raises RemoteProtocolError if they are not HTTP/1.1."""
        if self._parser is None:
            self.reusable = False
            return
        self.touched = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise httpx2.RemoteProtocolError("backend switched protocols unasked") from error
        except httptools.HttpParserError as error:
            self.reusable = False
            if not self.complete:
                raise httpx2.RemoteProtocolError(f"backend sent no valid HTTP: {error}") from error
        # Bound what is no body: a head, interim ones, trailers, what stands before a chunk.
        if not self.status:
            self._head_bytes += len(data)
        elif self._pieces:
            self._bare_bytes = 0
        else:
            self._bare_bytes += len(data)
        bound = self._head_bytes_max
        if self._head_bytes > bound or self._header_bytes > bound or self._bare_bytes > bound:
            raise httpx2.RemoteProtocolError(f"backend sent more than {bound} bytes of headers")
        if self.complete:
            del self._pieces[self._piece_count :]  # the body of an answer nobody asked for
            self.close()

    @property
    def buffered(self) -> int:
        return sum(map(len, self._pieces))

    def feed_eof(self) -> None:
        """End the answer. Raises RemoteProtocolError unless the body ends with the connection."""
        if self.complete:
            return
        if not self.touched:
            raise httpx2.RemoteProtocolError("backend disconnected without an answer")
        if not self.status or self._has_framing:
            raise httpx2.RemoteProtocolError("backend disconnected in the middle of its answer")
        self.complete = True
        self.close()

    def take(self) -> bytes:
        data = b"".join(self._pieces)  # of one piece it makes no copy
        self._pieces.clear()
        return data

    def close(self) -> None:
        # Breaks the cycle between parser and reader, so that no garbage collection is needed.
        self._parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # trailers, or the head of an answer nobody asked for
        self._header_bytes += len(name) + len(value) + 4
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._parser is None or self.status:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self.headers.clear()
            return
        self.status = status
        self._has_framing = any(_frames_body(name, value) for name, value in self.headers)

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False  # bytes after the end: whatever they are, they are not ours

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self.complete and self._parser is not None:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()
            self._piece_count = len(self._pieces)


def _frames_body(name: bytes, value: bytes) -> bool:
    lowered = name.lower()
    if lowered == b"transfer-encoding":
        return b"chunked" in value.lower()
    return lowered == b"content-length"


_GOOD = 200

HttpTimeouts = Mapping[str, float | None]
"""httpx2's `timeout` extension: seconds for connect, read, write, pool; None or absent: no limit.

Read again at every wait, so the sender may tighten `read` meanwhile.
"""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one answer; one read of the socket (256 KiB) may exceed `buffer_bytes_max`."""

    head_bytes_max: int = 64 * 1024
    buffer_bytes_max: int = 256 * 1024


class BodyListener(Protocol):
    """Receiver of a body, called where it is read from the socket; must not block or raise.

    `end` is called once, after all that came before; with None for a complete body.
    """

    def take(self, data: bytes, /) -> None: ...

    def end(self, error: httpx2.TransportError | None, /) -> None: ...


class Connection(asyncio.Protocol):
    """Connection that carries one exchange at a time, driven by one task at a time."""

    __slots__ = (
        "_error", "_expecting", "_expired", "_is_deferred", "_limits", "_listener", "_loop",
        "_on_lost", "_reader", "_reading_paused", "_transport", "_unanswered", "_waiter",
        "_writing_paused", "deadline", "hung_up", "lost", "wait_until",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.lost: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._limits = limits
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._error: httpx2.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._listener: BodyListener | None = None
        self._expecting: BodyListener | None = None
        self.deadline = Deadline(loop, self._expire)
        self.wait_until: Callable[[float], None] = self.deadline.set_at
        """Sets the loop's time of the listener's ReadTimeout. Bytes do not move it: only the
        listener knows which are worth waiting for."""
        self._expired = False
        self._is_deferred = False
        self._reading_paused = False
        self._writing_paused = False
        self._unanswered = b""
        self.hung_up = False
        """By this side: the request is not sent again for that."""

    @property
    def usable(self) -> bool:
        return self._error is None and self._reader is None and not self.lost.done()

    @property
    def answered(self) -> bool:
        return self._reader is not None and self._reader.touched

    def take_back(self) -> bytes:
        """Return and forget the last request, to be sent again; empty once it was answered."""
        request, self._unanswered = self._unanswered, b""
        return request

    @property
    def has_all(self) -> bool:
        return self._reader is not None and self._reader.complete

    async def send(self, data: bytes, timeouts: HttpTimeouts) -> None:
        """Write a request, or as much as the backend reads before it answers.

        Raises WriteTimeout, WriteError or what `head` raises.
        """
        self._reader = reader = ResponseReader(self._limits.head_bytes_max)
        self._unanswered = data
        self.deadline.clear()
        if self._transport is None or self._transport.is_closing():
            raise httpx2.WriteError("connection is closed")
        self._transport.write(data)
        while self._writing_paused and not reader.touched:
            self._raise_error()
            if not await self._wait(timeouts.get("write")):
                raise httpx2.WriteTimeout("backend does not read the request")

    async def head(
        self, timeouts: HttpTimeouts, listener: BodyListener | None = None
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return status and headers; for `listener` see `OriginPool.deliver`.

        Raises ReadTimeout, ReadError or RemoteProtocolError.
        """
        reader = self._current()
        if listener is not None and reader.status == _GOOD:
            self.pour(listener)
        else:
            self._expecting = listener
        read_s = timeouts.get("read")
        until = None if read_s is None else self._loop.time() + read_s
        while not reader.status:
            self._raise_error()
            # For all of it: it may come a line at a time, or behind interim ones.
            is_awake = await self._wait(None if until is None else until - self._loop.time())
            if not is_awake and not reader.status:
                raise httpx2.ReadTimeout("backend does not answer")
        headers, reader.headers = reader.headers, []  # a stream outlives their use by minutes
        return reader.status, headers

    async def read(self, timeouts: HttpTimeouts) -> bytes:
        """Return all body bytes that have arrived, waiting for the first; empty at the end.

        Raises ReadTimeout, ReadError or RemoteProtocolError, after all bytes before it.
        """
        reader = self._current()
        while not reader.buffered:
            if reader.complete:
                return b""
            self._raise_error()
            if not await self._wait(timeouts.get("read")):
                raise httpx2.ReadTimeout("backend fell silent")
        data = reader.take()
        self._resume_reading()
        return data

    @property
    def is_pouring(self) -> bool:
        return self._listener is not None

    def pour(self, listener: BodyListener) -> None:
        self._listener = listener
        self.go_on()

    def hold(self) -> None:
        """Stop reading until `go_on`; no timeout runs meanwhile."""
        self.defer()
        self._pause_reading()

    def defer(self) -> None:
        """Stop passing on the body until `go_on`; no timeout runs meanwhile.

        It is read at most once, and usually nothing comes, so this costs no system call.
        """
        self.deadline.clear()
        self._is_deferred = True

    def go_on(self) -> None:
        self._is_deferred = False
        self._resume_reading()
        self._pour()

    def finish(self) -> bool:
        """End the exchange; True if the connection can be used again."""
        reader = self._current()
        self._listener = self._expecting = None
        self._is_deferred = False
        self.deadline.clear()
        if reader.complete and reader.reusable and not reader.buffered and not self._writing_paused:
            self._reader = None
            if self.usable:
                self._resume_reading()  # it may have been held until the last was heard
                return True
        self.abort()
        return False

    def rest(self, seconds: float) -> None:
        self.deadline.set(seconds)

    def hang_up(self, why: str) -> None:
        """End the exchange with a ReadError, after all bytes that came before."""
        self.hung_up = True
        self._error = self._error or httpx2.ReadError(why)
        self.abort()

    def abort(self) -> None:
        """Close the socket now, by which a backend learns of a cancellation."""
        self.deadline.cancel()
        if self._reader is not None:
            self._reader.close()
        if self._error is None:
            self._error = httpx2.ReadError("connection was aborted")
        if self._transport is not None:
            self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            self.abort()  # between two exchanges there is nothing to say
            return
        self._unanswered = b""
        try:
            reader.feed(data)
        except httpx2.RemoteProtocolError as error:
            self._error = error
            self.abort()
        if self._expecting is not None and reader.status == _GOOD:
            self._listener, self._expecting = self._expecting, None
        if self._listener is not None and not self._is_deferred:
            self._pour()
            return
        if self._is_deferred or reader.buffered > self._limits.buffer_bytes_max:
            self._pause_reading()
        self.wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            self._error = self._reason_of_loss(exc)
        self.deadline.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)
        self._pour()
        self.wake()

    @override
    def pause_writing(self) -> None:
        self._writing_paused = True

    @override
    def resume_writing(self) -> None:
        self._writing_paused = False
        self.wake()

    def _reason_of_loss(self, exc: Exception | None) -> httpx2.TransportError:
        if exc is not None:
            return httpx2.ReadError(f"connection lost: {exc!r}")
        try:
            if self._reader is not None:
                self._reader.feed_eof()
        except httpx2.RemoteProtocolError as error:
            return error
        return httpx2.ReadError("connection is closed")

    def _pour(self) -> None:
        listener, reader = self._listener, self._reader
        if listener is None or reader is None or self._is_deferred:
            return
        if data := reader.take():
            listener.take(data)
            if self._listener is not listener or self._is_deferred:
                return
        if reader.complete:
            self._end(None)
        elif self._error is not None:
            self._end(self._error)

    def _end(self, error: httpx2.TransportError | None) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self.deadline.clear()
            listener.end(error)

    def _pause_reading(self) -> None:
        if self._reading_paused:
            return
        self._reading_paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading_paused:
            return
        self._reading_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _current(self) -> ResponseReader:
        if self._reader is None:
            raise httpx2.LocalProtocolError("no exchange is going on")
        return self._reader

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _wait(self, seconds: float | None) -> bool:
        self._waiter = waiter = self._loop.create_future()
        self._expired = False
        if seconds is not None:
            self.deadline.set(seconds)
        try:
            await waiter
        finally:
            # Whoever listened may have given the connection back meanwhile, and others wait here.
            if self._waiter is waiter:
                self._waiter = None
                if self._listener is None:
                    self.deadline.clear()
        return not self._expired

    def _expire(self) -> None:
        if self._reader is None:
            self.abort()
            return
        self._expired = True
        self._end(httpx2.ReadTimeout("backend fell silent"))
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Deadline:
    """Calls `expire` once when the deadline passes; it is moved at every read.

    Moving it later only stores a number, and the earlier timer starts again for the rest.
    """

    __slots__ = ("_due_at", "_expire", "_loop", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        """Due time of the timer; both are in the loop's time."""
        self.at: float | None = None

    def set(self, seconds: float) -> None:
        self.set_at(self._loop.time() + seconds)

    def set_at(self, at: float) -> None:
        self.at = at
        if self._timer is None or at < self._due_at:
            self._start(at)

    def clear(self) -> None:
        # The timer runs on, because the next `set` may use it.
        self.at = None

    def cancel(self) -> None:
        # Unlike `clear`, it stops the timer too.
        self.at = None
        self._stop()

    def _start(self, at: float) -> None:
        self._stop()
        self._due_at = at
        # In an empty context, or the timer keeps that of the request which happens to start it.
        self._timer = self._loop.call_at(at, self._fire, context=Context())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self.at is None:
            return
        if self.at > self._loop.time():
            self._start(self.at)
            return
        self.at = None
        self._expire()
