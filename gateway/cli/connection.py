"""uvicorn's HTTP protocol with bounds on what a client may send, and for how long.

What is refused before the application sees it is answered as the application would: with an
envelope and a request id, which is logged.

One request is read at a time. What comes behind it is kept, up to a bound, until it is answered: so
a request is answered whatever follows it, and many that come at once take turns with other
connections.

A client that has ended its side only (a half-close) cannot be told from one that has gone before
something is sent to it. A complete request is answered all the same, and meanwhile the client is
sent what every client skips: one that has gone answers with a reset, which ends the work for it.
"""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from typing_extensions import override
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.auth import PROBES
from gateway.api.body import WHOLE_BODY
from gateway.api.connection import CONNECTION, TRUST
from gateway.api.errors import OVERLOADED, SERVER_ERROR
from gateway.api.writing import BODY_PART
from gateway.cli.admission import Admission, Room
from gateway.cli.answering import Answer
from gateway.cli.flow import Flow
from gateway.cli.head import HeadBounds, RequestHead
from gateway.cli.refusals import BUSY, REFUSE_ONE_MORE, Refused, refusal
from gateway.cli.websocket import PatientWebSocketProtocol
from gateway.runs import eager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Scope
    from uvicorn._types import ASGI3Application

    from gateway.cli.framing import Framing
    from gateway.settings import Server as ServerSettings

ABSENCE_CHECKS_S: Final = (0.05, 0.1, 1.0, 11.0)
"""Between the end of a client's side and what it is sent to find out whether it is there."""
UNHEARD_MS: Final = 10_000
"""A client that confirms nothing for so long after it ended its side has gone."""


class BoundedProtocol(HttpToolsProtocol):
    """Reads requests one after the other, and closes a connection that is not worth its place."""

    head_bounds: HeadBounds
    head_timeout_s: float
    linger_s: float
    admission: Admission
    _timer: asyncio.TimerHandle | None = None
    """What is done unless something else comes first."""
    _held = b""
    """What has come and is not read yet."""
    _head: RequestHead | None = None
    _body: Framing | None = None
    """What is still to come of the request that is read, or answered."""
    _is_deaf = False
    """Whatever comes now is of no use."""
    _is_half_closed = False
    _is_turn_due = False
    _is_lost = False
    _peer: str | None = None
    _when_lost: Callable[[], None] | None = None
    _to_begin: tuple[Answer, ASGI3Application] | None = None
    flow: Flow
    cycle: Answer | None  # type: ignore[assignment]

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = None  # type: ignore[assignment]  # each head has its own
        self.flow = Flow(transport)
        self._peer = self.client[0] if self.client else None
        if self.admission.enter(self, self._peer):
            self._start_head_timer()
        else:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            self._say_last(refusal(status, BUSY, type=SERVER_ERROR, code=OVERLOADED))

    def abort(self) -> None:
        """`gateway.cli.admission.Connection`: there is no room for it."""
        self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.admission.leave(self, self._peer)
        super().connection_lost(exc)
        self._is_lost = self._is_deaf = True
        self._forget()
        self._lose()

    def _forget(self) -> None:
        """What was not read yet will not be."""
        if self._head is not None:
            self._head.close()
        self._held, self._body, self._head = b"", None, None

    def _lose(self) -> None:
        """There is nobody to answer."""
        if self.cycle is not None:
            self.cycle.lose()
        when_lost, self._when_lost = self._when_lost, None
        if when_lost is not None:
            when_lost()

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._held += data
        if not self._is_turn_due:
            self._read_on()

    def _read_on(self) -> None:
        """Read what is held: of one request, and only when the one before is answered."""
        data, self._held = self._held, b""
        try:
            rest = self._read(data)
        except Refused as refused:
            self._refuse(refused)
            return
        self._held = rest
        self.flow.hold(is_full=len(rest) > HIGH_WATER_LIMIT)
        if rest and self._body is not None:
            self._take_turns()
        self._begin()
        if self._is_half_closed:
            self._see_to_half_closed()

    def _read(self, data: bytes) -> bytes:
        """What is not to be read yet. Raises `Refused`."""
        if self._body is None:
            if self._is_answering:
                return data
            rest = self._read_head(data)
            if rest is None:
                return b""
            data = rest
        return data if self._body is None else self._read_body(self._body, data)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _take_turns(self) -> None:
        """Go on when other connections have had a turn."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        if not self._is_deaf:
            self._read_on()
            if not (self.cycle and self._is_answering and len(self.cycle.body) > HIGH_WATER_LIMIT):
                self.flow.resume_reading()

    def _read_head(self, data: bytes) -> bytes | None:
        """What stands behind the head, if it is complete."""
        if self._head is None:
            self._head = RequestHead(self.head_bounds)
            self._start_head_timer()
        rest = self._head.feed(data)
        if rest is None:
            return None
        head, self._head = self._head, None
        self._stop_timer()
        self.admission.refresh(self)
        self._take_up(head)
        return rest

    def _take_up(self, head: RequestHead) -> None:
        """Have the request answered that has this head."""
        version = head.version()
        framing = head.framing(version)
        scope = self._new_scope(head, version)
        app = self.app if self._may_ask(scope["path"]) else REFUSE_ONE_MORE
        if head.is_upgrade and app is self.app and self._upgrade(head, scope):
            return
        self.cycle = answer = Answer(
            scope,
            self.transport,
            self.flow,
            default_headers=self.server_state.default_headers,
            expects_continue=head.expects_continue,
            keep_alive=head.keeps_alive,
            on_response=self.on_response_complete,
            logger=self.logger,
            loop=self.loop,
        )
        scope["extensions"] = {
            BODY_PART: {"write": answer.write_part},
            CONNECTION: {"watch": self._watch},
            WHOLE_BODY: {"take": answer.take_body},
        }
        if self.admission.is_keyless(self):
            scope["extensions"][TRUST] = {"trust": self._trust}
        self._body = None if framing.is_complete else framing
        answer.more_body = not framing.is_complete
        if not answer.more_body:
            self.admission.owe(self)
            answer.message_event.set()
        self._to_begin = answer, app

    def _new_scope(self, head: RequestHead, version: str) -> Scope:
        """The scope of a request (ASGI HTTP 2.3)."""
        raw_path, query = head.target()
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": head.headers,
            "state": self.app_state.copy(),
            "method": head.method,
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
        }

    def _may_ask(self, path: str) -> bool:
        """Whether there is room for the request. Those of clients that have gone may still be at
        work, so there may be more of them than connections.
        """
        if not self.admission.is_keyless(self):
            return True
        if not self.admission.may_owe():
            return False
        if path in PROBES:
            return True
        limit = self.limit_concurrency
        has_room = limit is None or len(self.tasks) < limit
        return has_room and self.admission.has_room_for(self)

    def _trust(self) -> None:
        self.admission.trust(self)

    def _read_body(self, body: Framing, data: bytes) -> bytes:
        """What stands behind the part of the body that was read."""
        part, rest = body.feed(data)
        answer = self.cycle
        assert answer is not None, "it has a body"
        answer.body += part
        if len(answer.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if body.is_complete:
            self._body = None
            answer.more_body = False
            if not answer.response_complete:
                self.admission.owe(self)
        if part or body.is_complete:
            answer.message_event.set()
        return rest

    def _upgrade(self, head: RequestHead, scope: Scope) -> bool:
        """Whether this is a WebSocket from now on."""
        self.headers = head.headers
        if not self._should_upgrade():
            return False
        self.url, self.scope = head.url, scope  # type: ignore[assignment]  # what uvicorn looks at
        self.handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, PatientWebSocketProtocol), "no other is configured"
        protocol.tell(trusted=self._trust, lost=self._leave)
        self.admission.owe(self)
        self._is_deaf = True
        return True

    def _leave(self) -> None:
        self.admission.leave(self, self._peer)

    def _watch(self, when_lost: Callable[[], None] | None) -> None:
        """`gateway.api.connection.Watch`: requests of one connection come one after the other."""
        self._when_lost = when_lost
        if self._is_lost and when_lost is not None:
            when_lost()

    def _begin(self) -> None:
        """Begin an answer once all of the read is parsed, for the body may be in it, and at once:
        what is asked of a backend must not wait until the loop has heard everybody else.
        """
        if self._to_begin is None:
            return
        (answer, app), self._to_begin = self._to_begin, None
        task = eager.start(answer.run_asgi(app))  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self._is_done)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        """A client that does not take the end of its answer is not waited for without end."""
        self.tasks.discard(task)
        if self.transport.is_closing() and not self._is_lost:
            self._close()

    @override
    def on_response_complete(self) -> None:
        """Read the next request, or wait for it."""
        self.server_state.total_requests += 1
        self.admission.settle(self)
        if self.transport.is_closing() or self.cycle is None:
            return
        self.flow.resume_reading()
        if self.cycle.more_body:
            self._linger()
        elif self._held:
            self._take_turns()
        elif self._is_half_closed:
            self._close()
        else:
            self.admission.rest(self)
            self._set_timer(self.timeout_keep_alive, self._close)

    @override
    def pause_writing(self) -> None:
        """Its client does not take what it asked for."""
        super().pause_writing()
        self.admission.settle(self)

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open because a complete request is still to be answered."""
        if self._is_deaf or self._body is not None or not (self._is_answering or self._is_turn_due):
            return False
        self._is_half_closed = True
        connection = self.transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
        self._see_to_half_closed()
        return True

    def _see_to_half_closed(self) -> None:
        """Nothing more comes: what is still to be answered is all there is."""
        if self._is_answering:
            self._set_timer(ABSENCE_CHECKS_S[0], self._probe, ABSENCE_CHECKS_S[1:])
        elif not self._is_turn_due:
            self._close()

    def _probe(self, gaps_s: Sequence[float]) -> None:
        """Find out whether there is a client. One that can be sent nothing yet counts as gone if
        that matters to what is done for it.
        """
        if not self._is_answering or self.cycle is None:
            return
        if not self.cycle.probe() and self._when_lost is not None:
            self.abort()
        elif gaps_s:
            self._set_timer(gaps_s[0], self._probe, gaps_s[1:])

    def _refuse(self, refused: Refused) -> None:
        """Answer what is no request, or what was taken for one until now."""
        if self._body is not None and self._to_begin is None:
            assert self.cycle is not None, "it has a body"
            is_begun = self.cycle.response_started
            self._lose()
            if is_begun:
                # In the middle of another answer it would be a part of that.
                self._close()
                return
        if self._to_begin is not None:
            self._to_begin[0].drop()
            self._to_begin = self.cycle = None
        self._say_last(refusal(refused.status, refused.message))

    def _say_last(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self._linger()

    def _linger(self) -> None:
        """Close it, but read on for a moment, to no purpose: what is closed while more comes is
        reset, and its client may never see the answer.
        """
        self._is_deaf = True
        self._forget()
        self.flow.hold(is_full=False)
        self.flow.resume_reading()
        self.transport.write_eof()
        self._set_timer(0 if self._is_half_closed else self.linger_s, self._close)

    def _close(self) -> None:
        """When its client has taken what is left for it, for which it has a while."""
        self.transport.close()
        self._set_timer(self.timeout_keep_alive, self.abort)

    def _start_head_timer(self) -> None:
        self._set_timer(self.head_timeout_s, self._close)

    def _set_timer(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(delay_s, action, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def when_read(action: Callable[[], None]) -> None:
    """Call it when each connection there is has been read from once. Of those that were made in
    this turn of the loop the first bytes are read at the end of this one or in the next.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, action)


def bounded(settings: ServerSettings, clock: Callable[[], float]) -> type[BoundedProtocol]:
    """The protocol class of one server: uvicorn wants a class."""
    room = Room(
        settings.connections_max,
        settings.connections_reserved_max,
        settings.connections_per_peer_max,
    )
    bounds = {
        "head_bounds": HeadBounds(settings.head_bytes_max, settings.head_fields_max),
        "head_timeout_s": settings.head_timeout_s,
        "linger_s": settings.linger_s,
        "admission": Admission(room, clock, when_read),
    }
    return type("BoundedProtocol", (BoundedProtocol,), bounds)
