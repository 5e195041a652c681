"""uvicorn's HTTP protocol with bounds on what a client may send and for how long.

One request is read at a time: what comes behind it is kept, up to a bound, until it is answered.

A client that has ended its side only (a half-close) cannot be told from one that has gone before
something is sent to it. A complete request is answered all the same; meanwhile the client is sent
bytes that every client skips, and one that has gone answers with a reset, which ends the work.
"""

from __future__ import annotations

import asyncio
import socket
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from typing_extensions import override
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.api.access.authentication import PROBES
from gateway.api.client_connection import EXTENSION
from gateway.concurrency import ResettableEvent
from gateway.errors import TooManyConnections
from gateway.server.admission import Admission, Room
from gateway.server.refusals import Refused, response_bytes, too_many_connections
from gateway.server.request_parser import HeadBounds, IncomingRequest
from gateway.server.websocket_protocol import BoundedWebSocketProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Scope
    from uvicorn._types import ASGI3Application, ASGISendEvent

    from gateway.settings import Server as ServerSettings

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT: Final = b":\n\n"
ABSENCE_CHECKS_S: Final = (0.05, 0.1, 1.0, 11.0)
"""Gaps between a half-close and each test whether the client is there."""
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
UNHEARD_MS: Final = 10_000
"""A half-closed client that acknowledges nothing for this long has gone."""


class BoundedFlowControl(FlowControl):
    """uvicorn's flow control without its lock of 700 bytes."""

    __slots__ = ("_takes", "is_full")

    def __init__(self, transport: asyncio.Transport) -> None:
        # Not uvicorn's, which would make the lock.
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self.is_full = False
        """Reading stays paused, whoever resumes it: too much was read already."""
        self._takes = ResettableEvent()
        self._takes.set()

    @override
    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()

    @override
    async def drain(self) -> None:
        await self._takes.wait()

    @override
    def pause_writing(self) -> None:
        self.write_paused = True
        self._takes.clear()

    @override
    def resume_writing(self) -> None:
        self.write_paused = False
        self._takes.set()


CONNECTIONS_RESERVED_MAX: Final = 64
"""Beyond `connections_max`, for the probes."""
HEAD_BOUNDS: Final = HeadBounds(bytes_max=65_536, fields_max=256)
LINGER_S: Final = 2.0
"""Seconds of reading after an answer that did not wait for its whole request."""
PARTS_TOGETHER: Final = 16
"""A token waits for less than a millisecond."""
FIRST_REQUEST_S: Final = 1.0
"""Wait of a stopping server for a connection's first request: a proxy does not resend one."""


class BoundedHttpProtocol(HttpToolsProtocol):
    head_bounds: HeadBounds
    head_timeout_s: float
    linger_s: float
    admission: Admission
    part_writes: PartWrites
    flow: BoundedFlowControl
    cycle: Cycle | None  # type: ignore[assignment]

    # With these and uvicorn's attributes, instances would have too many to share the keys of their
    # dicts: each connection would hold a dict of its own, of 800 bytes.
    __slots__ = (
        *("_ignores_input", "_incoming", "_is_half_closed", "_is_last", "_is_new"),
        *("_is_read_scheduled", "_peer", "_timer", "_unread", "_unstarted", "is_lost"),
    )

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn's parser, a kilobyte, is not used: each head has a parser of its own.
        self.parser = self.pipeline = None  # type: ignore[assignment]
        self.flow = BoundedFlowControl(transport)
        self._peer = self.client[0] if self.client else None
        self._unread = b""
        self._incoming: IncomingRequest | None = None
        """Its head is incomplete where `cycle` is None."""
        self._unstarted: tuple[Cycle, ASGI3Application] | None = None
        """Its head was read in this call."""
        self.is_lost = False
        self._is_new = True
        self._is_last = False
        """The server stops: the next request is the last one."""
        self._ignores_input = False
        self._is_half_closed = False
        self._is_read_scheduled = False
        self._timer = self.loop.call_later(self.head_timeout_s, self.close)
        """The next deadline: mostly a close."""
        if not self.admission.enter(self, self._peer):
            self._write_last(response_bytes(TooManyConnections()))

    def abort(self) -> None:
        self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self.admission.leave(self, self._peer)
        super().connection_lost(exc)
        self.is_lost = True
        self._ignore_input()
        if self.cycle is not None:
            self.cycle.disconnect()

    def _ignore_input(self) -> None:
        self._ignores_input = True
        if self._incoming is not None:
            self._incoming.close()
        self._unread, self._incoming = b"", None

    @override
    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unread += data
        if not self._is_read_scheduled:
            self._parse_unread()

    def _parse_unread(self) -> None:
        # At most one request, and only after the one before is answered.
        try:
            if self.cycle is None:
                self._read_head()
            if self.cycle is not None and self._incoming is not None:
                self._read_body(self.cycle, self._incoming)
        except Refused as refused:
            self._refuse(refused)
            return
        self.flow.is_full = len(self._unread) > HIGH_WATER_LIMIT
        if self.flow.is_full:
            self.flow.pause_reading()
        if self._unread and self._incoming is not None:
            self._schedule_read()
        if self._unstarted is not None:
            # Not before all of the read is parsed: what follows the head may have to be refused.
            (cycle, app), self._unstarted = self._unstarted, None
            task = self.loop.create_task(cycle.run_asgi(app))
            self.tasks.add(task)
            task.add_done_callback(cycle.finished)
        if self._is_half_closed:
            self.loop.call_soon(self._answer_half_closed)

    def _schedule_read(self) -> None:
        if not self._is_read_scheduled:
            self._is_read_scheduled = True
            self.loop.call_soon(self._read_scheduled)

    def _read_scheduled(self) -> None:
        self._is_read_scheduled = False
        if not self._ignores_input:
            self._parse_unread()
            if self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT:
                self.flow.resume_reading()

    def _read_head(self) -> None:
        # Raises `Refused`.
        is_begun = self._incoming is not None
        head = self._incoming = self._incoming or IncomingRequest(self.head_bounds)
        rest = head.feed_head(self._unread)
        self._unread = rest or b""
        if rest is None:
            if not is_begun:
                self._set_timer(self.head_timeout_s, self.close)
            return
        self._timer.cancel()
        self._is_new = False
        self.admission.head_received(self)
        path = head.path.decode("ascii")
        # ASGI HTTP 2.3, without a state: with one key more and those that the application adds the
        # dict would take 800 bytes more.
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": head.headers,
            "method": head.method,
            "path": self.root_path + (unquote(path) if "%" in path else path),
            "raw_path": self.root_path.encode("ascii") + head.path,
            "query_string": head.query,
        }
        app, is_probe = self.app, scope["path"] in PROBES
        if not self.admission.has_room_for(self, is_probe=is_probe, requests=len(self.tasks)):
            app = cast("ASGI3Application", too_many_connections)
        elif head.is_upgrade and self._upgrade(head, scope):
            return
        self.cycle = cycle = Cycle(self, scope, head)
        cycle.keep_alive &= not self._is_last
        scope["extensions"] = {EXTENSION: {"connection": cycle}}
        self._unstarted = cycle, app

    def _read_body(self, cycle: Cycle, request: IncomingRequest) -> None:
        part = b""
        if not request.is_complete:
            part, self._unread = request.feed_body(self._unread)
        cycle.body += part
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if request.is_complete:
            request.close()
            self._incoming = None
            cycle.more_body = False
            cycle.message_event.set()
            self.admission.request_received(self)
        elif part:
            cycle.message_event.set()

    def _upgrade(self, head: IncomingRequest, scope: Scope) -> bool:
        # False if the request is no valid upgrade.
        self.headers = head.headers
        if not self._should_upgrade():
            return False
        self.url, self.scope = head.url, scope  # type: ignore[assignment]  # what uvicorn looks at
        self.handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, BoundedWebSocketProtocol), "no other is configured"
        protocol.upgraded_from(
            trust=partial(self.admission.trust, self),
            lost=partial(self.admission.leave, self, self._peer),
        )
        self.admission.request_received(self)
        self._ignore_input()
        return True

    @override
    def shutdown(self) -> None:
        if self._is_new and not self._ignores_input:
            self._is_last = True
            self._set_timer(FIRST_REQUEST_S, self.close)
        else:
            super().shutdown()

    @override
    def on_response_complete(self) -> None:
        cycle, self.cycle = self.cycle, None
        assert cycle is not None, "it calls this, once"
        is_open = not self.transport.is_closing()
        is_idle = is_open and not (cycle.more_body or self._unread or self._is_half_closed)
        self.admission.answered(self, is_idle=is_idle)
        if not is_open:
            self._ignore_input()
            return
        self.flow.resume_reading()
        if cycle.more_body:
            self._linger()
        elif self._unread:
            self._schedule_read()
        elif self._is_half_closed:
            self.close()
        else:
            self._set_timer(self.timeout_keep_alive, self.close)

    @override
    def pause_writing(self) -> None:
        # The client does not take its answer: the connection may be closed for others again.
        super().pause_writing()
        self.admission.answered(self, is_idle=False)

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        # The connection stays open only if a complete request is still to be answered.
        is_request_left = self.cycle is not None or self._is_read_scheduled
        if self._ignores_input or self._incoming is not None or not is_request_left:
            return False
        self._is_half_closed = True
        connection = self.transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
        self.loop.call_soon(self._answer_half_closed)
        return True

    def _answer_half_closed(self) -> None:
        # A request that has just begun has had a turn, so that a client with a short answer is not
        # sent anything else.
        if self.is_lost or self.transport.is_closing():
            return
        if self.cycle is not None:
            self._set_timer(ABSENCE_CHECKS_S[0], self._probe, ABSENCE_CHECKS_S[1:])
        elif not self._is_read_scheduled:
            self.close()

    def _probe(self, gaps_s: Sequence[float]) -> None:
        # A client that can be sent nothing yet counts as gone if work is done that ends with the
        # client.
        if self.cycle is None:
            return
        if not self.cycle.probe() and self.cycle.is_watched:
            self.abort()
        elif gaps_s:
            self._set_timer(gaps_s[0], self._probe, gaps_s[1:])

    def _refuse(self, refused: Refused) -> None:
        if self._unstarted is not None:
            self._unstarted[0].scope = {}  # type: ignore[typeddict-item]  # which refers to it
            self._unstarted = self.cycle = None
        elif self.cycle is not None:
            self.cycle.disconnect()
            if self.cycle.response_started:
                # In the middle of another answer it would be a part of that.
                self.close()
                return
        self._write_last(response_bytes(refused))

    def _write_last(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self._linger()

    def _linger(self) -> None:
        # Read on for a moment: closing while more input comes resets the connection, and the client
        # may lose the answer.
        self._ignore_input()
        self.flow.is_full = False
        self.flow.resume_reading()
        self.transport.write_eof()
        self._set_timer(0 if self._is_half_closed else self.linger_s, self.close)

    def close(self) -> None:
        self._ignore_input()
        self.part_writes.flush()
        self.transport.close()
        self._set_timer(self.timeout_keep_alive, self.abort)

    def _set_timer(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(delay_s, action, *arguments)


class PartWrites:
    """Parts of responses that are written together at the end of the event loop's turn.

    An engine's step brings a token to each of its streams. A write evicts from the processor's
    caches what the next token needs: tokens and then their writes take about a tenth less CPU than
    in turn. What one client is sent in a turn is one write.
    """

    def __init__(self) -> None:
        self._parts: dict[asyncio.Transport, list[bytes]] = {}
        self._count = 0

    def add(self, transport: asyncio.Transport, part: bytes) -> None:
        if not self._count:
            asyncio.get_running_loop().call_soon(self.flush, context=Context())
        self._parts.setdefault(transport, []).append(part)
        self._count += 1
        if self._count >= PARTS_TOGETHER:
            self.flush()

    def write(self, transport: asyncio.Transport, rest: bytes = b"") -> None:
        """Write `rest` now, behind the parts for its transport."""
        data = b"".join([*self._parts.pop(transport, ()), rest])
        if data and not transport.is_closing():
            transport.write(data)

    def flush(self) -> None:
        self._count = 0
        parts, self._parts = self._parts, {}
        for transport, pieces in parts.items():
            if not transport.is_closing():
                transport.write(b"".join(pieces))


class ResponseTransport:
    """Transport that uvicorn writes one response to: its head waits for what follows."""

    __slots__ = ("_part_writes", "_transport", "writes_head")

    def __init__(self, transport: asyncio.Transport, part_writes: PartWrites) -> None:
        self._transport = transport
        self._part_writes = part_writes
        self.writes_head = False

    def write(self, data: bytes) -> None:
        write = self._part_writes.add if self.writes_head else self._part_writes.write
        write(self._transport, data)

    def close(self) -> None:
        self._part_writes.write(self._transport)
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Cycle(RequestResponseCycle):
    """Request and its response; a `gateway.api.client_connection.ClientConnection`."""

    def __init__(self, protocol: BoundedHttpProtocol, scope: Scope, head: IncomingRequest) -> None:
        # `scope` is what the application is called with.
        self._output = ResponseTransport(protocol.transport, protocol.part_writes)
        super().__init__(
            scope=scope,  # type: ignore[arg-type]
            transport=self._output,  # type: ignore[arg-type]
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=protocol.server_state.default_headers,
            message_event=ResettableEvent(),  # type: ignore[arg-type]  # an Event takes ten times the memory
            expect_100_continue=head.expects_continue,
            keep_alive=head.keeps_alive,
            on_response=protocol.on_response_complete,
        )
        self._protocol = protocol
        self._is_http_1_0 = head.version == "1.0"
        self._is_event_stream = False
        self._has_parts = False
        self._ends_with_connection = False
        self._on_disconnect: Callable[[], None] | None = None

    def finished(self, task: asyncio.Task[None]) -> None:
        """Release what refers to this cycle, so that no garbage collection is needed."""
        protocol = self._protocol
        protocol.tasks.discard(task)
        self.scope, self._on_disconnect = {}, None  # type: ignore[typeddict-item]
        if protocol.cycle is self:
            protocol.cycle = None
        if protocol.transport.is_closing() and not protocol.is_lost:
            protocol.close()

    @override
    async def run_asgi(self, app: ASGI3Application) -> None:
        async def run(*arguments: Any) -> None:
            try:
                await app(*arguments)
            except asyncio.CancelledError:
                # The server's grace is over; uvicorn would log it as a defect.
                self.transport.close()
                self.disconnected = True

        await super().run_asgi(run)

    def trust(self) -> None:
        self._protocol.admission.trust(self._protocol)

    @override
    async def send(self, message: ASGISendEvent) -> None:
        # The rest must not wait, so that decisions and writes see the same state.
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if message["type"] == "http.response.start" and not self.response_started:
            has_length = False
            for name, value in message.get("headers", ()):
                lowered = name.lower()
                if lowered == b"content-type":
                    self._is_event_stream = value.startswith(b"text/event-stream")
                has_length |= lowered == b"content-length"
            if self.more_body:
                # The request's body has not ended, so the begin of a next request is unknown.
                self.keep_alive = False
            if self._is_http_1_0 and not has_length:
                # HTTP/1.0 has no chunks: such a body ends with its connection (RFC 9112, 6.3).
                self.chunked_encoding = False
                self._ends_with_connection = True
            has_body = self.scope["method"] != "HEAD"
            self._output.writes_head = has_body
            await super().send(message)
            self._output.writes_head = False
            self._has_parts = bool(self.chunked_encoding) and has_body
            return
        if message["type"] == "http.response.body":
            if self._ends_with_connection:
                self.expected_content_length = len(message.get("body", b""))
            if self.more_body and not message.get("more_body", False):
                # A close while more comes would be a reset, and the client might not see the
                # answer: the protocol reads on and closes then (`on_response_complete`).
                self.keep_alive = True
        await super().send(message)

    def write_part(self, part: bytes) -> bool:
        """Write a part of a chunked body in this turn of the loop. Return False if that is
        impossible now.
        """
        if (
            not self._has_parts
            or self.flow.write_paused
            or self.disconnected
            or self.response_complete
            or not part
        ):
            return False
        chunk = b"%x\r\n%b\r\n" % (len(part), part)
        self._protocol.part_writes.add(self._protocol.transport, chunk)
        return True

    def watch(self, on_disconnect: Callable[[], None] | None) -> None:
        """Call `on_disconnect` once when the client disconnects, or now if it has; None: stop."""
        self._on_disconnect = on_disconnect
        if self.disconnected:
            self.disconnect()

    @property
    def is_watched(self) -> bool:
        return self._on_disconnect is not None

    def disconnect(self) -> None:
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()
        on_disconnect, self._on_disconnect = self._on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()

    def probe(self) -> bool:
        """Send bytes that every client skips. Return False if nothing can be sent at this point."""
        if self.flow.write_paused or (self.response_started and not self._is_event_stream):
            return True
        if self.response_started:
            if not self.write_part(COMMENT):
                self.transport.write(COMMENT)
        elif not self._is_http_1_0:
            self.transport.write(CONTINUE)
        return self.response_started or not self._is_http_1_0


def when_read(action: Callable[[], None]) -> None:
    """Call `action` when each connection has been read from: at the end of this turn or in the
    next.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, action)


def room(settings: ServerSettings) -> Room:
    return Room(
        settings.connections_max, CONNECTIONS_RESERVED_MAX, settings.connections_per_peer_max
    )


def bounded(settings: ServerSettings, clock: Callable[[], float]) -> type[BoundedHttpProtocol]:
    bounds = {
        "head_bounds": HEAD_BOUNDS,
        "head_timeout_s": settings.head_timeout_s,
        "linger_s": LINGER_S,
        "admission": Admission(room(settings), clock, when_read),
        "part_writes": PartWrites(),
    }
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), bounds)
