"""One request's body on its way in, and its answer on its way out: uvicorn's cycle in fewer steps.

What goes over the wire, what is refused and how is what uvicorn's own `RequestResponseCycle` does,
message by message; a test compares the two. What differs is what a request costs: a head leaves in
one write with the first of its body, and an application may take a whole body, write a part and
learn of a lost connection without a message for it (`gateway.api.{body,writing,connection}`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.runs.moment import Signal

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.types import Message, Receive, Scope, Send
    from uvicorn.protocols.http.flow_control import FlowControl

    Headers = Iterable[tuple[bytes, bytes]]

_NO_NAME: Final = re.compile(b'[\x00-\x1f\x7f()<>@,;:\\[\\]={} \t\\\\"]')
_NO_VALUE: Final = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})
"""The headers of an answer that say where it, or its connection, ends."""
_BODYLESS: Final = frozenset({204, 304})
_CRASH: Final = b"Internal Server Error"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT: Final = b":\n\n"
_SIZES_MAX: Final = 1024
"""The lines of so many sizes are kept."""


class Answer:
    """What uvicorn calls a cycle: its connection sets `body`, `more_body` and `keep_alive`.

    An answer that is complete while its request is not leaves the end of the connection to that.

    It does not refer to its scope once it runs, because the scope refers to it: both are gone when
    the application has returned.
    """

    __slots__ = (
        "_content_left",
        "_default_headers",
        "_has_no_body",
        "_head",
        "_is_chunked",
        "_is_event_stream",
        "_knows_interim",
        "_loop",
        "_on_response",
        "_waits_to_continue",
        "body",
        "disconnected",
        "flow",
        "keep_alive",
        "logger",
        "message_event",
        "more_body",
        "response_complete",
        "response_started",
        "scope",
        "transport",
    )

    def __init__(  # noqa: PLR0913 - what a request is, and what its connection has
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        default_headers: list[tuple[bytes, bytes]],
        expects_continue: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`on_response` is called when the answer is complete."""
        self.scope: Scope | None = scope
        self.transport = transport
        self.flow = flow
        self.logger = logger
        self.message_event = Signal()
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.keep_alive = keep_alive
        self.response_started = False
        self.response_complete = False
        self._loop = loop
        self._default_headers = default_headers
        self._waits_to_continue = expects_continue
        self._on_response: Callable[[], None] | None = on_response
        self._has_no_body = scope["method"] == "HEAD"
        # What has no length ends with the connection where the client knows no chunks (RFC 9112,
        # section 6.1), which uvicorn sends it all the same.
        is_old = scope.get("http_version") == "1.0"
        self._knows_interim = not is_old
        self._is_event_stream = False
        self._is_chunked: bool | None = False if is_old else None
        self._content_left: int | None = None if is_old else 0
        self._head = b""

    def drop(self) -> None:
        """It is never made: let go what refers to it."""
        self.scope = self._on_response = None

    async def run_asgi(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        """Have the request answered; what the application fails to do is made up for."""
        scope, self.scope = self.scope, None
        assert scope is not None, "an answer is made once"
        try:
            await app(scope, self.receive, self.send)
        except BaseException:
            self.logger.exception("Exception in ASGI application\n")
            await self._make_up(is_broken=True)
        else:
            await self._make_up(is_broken=False)
        finally:
            self._on_response = None

    async def _make_up(self, *, is_broken: bool) -> None:
        """An answer that was not begun becomes a 500, one that was not ended is cut off."""
        if not self.response_started and (is_broken or not self.disconnected):
            self._complain("without starting response", is_broken=is_broken)
            await self._crash()
        elif is_broken:
            self._close()
        elif not self.response_complete and not self.disconnected:
            self._complain("without completing response", is_broken=is_broken)
            self._close()

    def _complain(self, how: str, *, is_broken: bool) -> None:
        if not is_broken:
            self.logger.error("ASGI callable returned %s.", how)

    async def _crash(self) -> None:
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(_CRASH)),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _CRASH})

    @property
    def is_midway(self) -> bool:
        """It has begun and not ended."""
        return self.response_started and not self.response_complete

    def lose(self) -> None:
        """Its connection is gone."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()

    def probe(self) -> bool:
        """Say what every client skips: one that has gone answers it with a reset. Whether there is
        such a thing at this point, or need not be because something waits to be read.
        """
        if self.flow.write_paused or (self.response_started and not self._is_event_stream):
            return True
        if self.response_started:
            self._write(_chunk(_COMMENT) if self._is_chunked else _COMMENT)
        elif self._knows_interim:
            self.transport.write(_CONTINUE)
        return self.response_started or self._knows_interim

    def take_body(self) -> bytes | None:
        """`gateway.api.body.TakeBody`: all of the body, if it has come."""
        if self.more_body or self._waits_to_continue or self.disconnected or self.response_complete:
            return None
        body, self.body = self.body, bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return bytes(body)

    async def receive(self) -> Message:
        """The next of the body that has come; a disconnect at the end of everything."""
        if self._waits_to_continue and not (self.disconnected or self.transport.is_closing()):
            self.transport.write(_CONTINUE)
            self._waits_to_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, bytearray()
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Write one message of the answer. Waits while the client does not read.

        Raises `RuntimeError` for a message that cannot stand here.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._expect(message, "http.response.start")
            self._begin(message["status"], message.get("headers", ()))
        elif not self.response_complete:
            self._expect(message, "http.response.body")
            self._go_on(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(
                f"Unexpected ASGI message '{message['type']}' sent, after response already "
                "completed."
            )

    def _expect(self, message: Message, kind: str) -> None:
        if message["type"] != kind:
            raise RuntimeError(f"Expected ASGI message '{kind}', but got '{message['type']}'.")

    def _begin(self, status: int, headers: Headers) -> None:
        """Keep the head until there is some of the body, or this turn of the loop ends: so the two
        leave in one system call, which is a good part of what a short answer costs.
        """
        self.response_started = True
        self._waits_to_continue = False
        if self.more_body:
            # Where another request would begin on this connection is not known.
            self.keep_alive = False
        lines = [STATUS_LINE[status]]
        is_closing = False
        all_headers = [*self._default_headers, *headers]
        _check(all_headers)
        for name, value in all_headers:
            lowered = name.lower()
            if lowered in _FRAMING:
                is_closing |= self._frame(lowered, value)
            elif lowered == b"content-type":
                self._is_event_stream = value.startswith(b"text/event-stream")
            lines += (lowered, b": ", value, b"\r\n")
        if not self.keep_alive and not is_closing:
            lines.append(b"connection: close\r\n")
        if self._is_chunked is None and not self._has_no_body and status not in _BODYLESS:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self._loop.call_soon(self._let_go)

    def _frame(self, name: bytes, value: bytes) -> bool:
        """Heed a header that frames the answer; whether it says that the connection ends."""
        is_unframed = self._is_chunked is None or self._content_left is None
        if name == b"content-length" and is_unframed:
            self._content_left, self._is_chunked = int(value), False
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            self._content_left, self._is_chunked = 0, True
        elif name == b"connection" and b"close" in map(_token, value.split(b",")):
            self.keep_alive = False
            return True
        return False

    def _go_on(self, part: bytes, *, is_last: bool) -> None:
        if self._has_no_body:
            self._content_left = 0
        elif self._is_chunked:
            self._write(_chunk(part) + b"0\r\n\r\n" if is_last else _chunk(part))
        elif self._content_left is None:
            self._write(part)
        else:
            if len(part) > self._content_left:
                raise RuntimeError("Response content longer than Content-Length")
            self._content_left -= len(part)
            self._write(part)
        if is_last:
            self._end()

    def _end(self) -> None:
        if self._content_left:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive and not self.more_body:
            self._close()
        elif self._head:
            self._let_go()
        if self._on_response is not None:
            self._on_response()

    def write_part(self, part: bytes) -> bool:
        """`gateway.api.writing.WritePart`: what `send` does with a chunk of an answer's body."""
        if (
            self.flow.write_paused
            or self.disconnected
            or not self._is_chunked  # the head is not written, or says how long the body is
            or self._has_no_body
            or self.response_complete
            or not part
        ):
            return False
        chunk = b"".join((_size_lines[len(part)], part, b"\r\n"))
        if self._head:
            self._let_go(chunk)
        else:
            self.transport.write(chunk)
        return True

    def _write(self, data: bytes) -> None:
        if self._head:
            self._let_go(data)
        else:
            self.transport.write(data)

    def _let_go(self, data: bytes = b"") -> None:
        head, self._head = self._head, b""
        if head and not self.transport.is_closing():
            self.transport.write(head + data)

    def _close(self) -> None:
        self._let_go()
        self.transport.close()


def _check(headers: list[tuple[bytes, bytes]]) -> None:
    """All at once: what stands between two of them is allowed in both. Raises `RuntimeError`."""
    if not headers:
        return
    names, values = zip(*headers, strict=True)
    if _NO_NAME.search(b"-".join(names)):
        raise RuntimeError("Invalid HTTP header name.")
    if _NO_VALUE.search(b" ".join(values)):
        raise RuntimeError("Invalid HTTP header value.")


class _SizeLines(dict[int, bytes]):
    """The line before a chunk, by its size: nearly all are of deltas, whose sizes are few."""

    def __missing__(self, size: int) -> bytes:
        line = b"%x\r\n" % size
        if size < _SIZES_MAX:
            self[size] = line
        return line


_size_lines: Final = _SizeLines()


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part) if part else b""


def _token(value: bytes) -> bytes:
    return value.lower().strip()
