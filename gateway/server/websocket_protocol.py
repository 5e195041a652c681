from __future__ import annotations

from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from gateway.api.client_connection import EXTENSION
from gateway.api.request_body import ARRIVING_BYTES_MAX
from gateway.errors import RateLimited
from gateway.held_bytes import HeldBytes
from gateway.server.refusals import response_bytes, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn._types import ASGISendEvent
    from websockets.frames import Frame
    from websockets.http11 import Request

TOLERATED: Final = 2
"""Longest frame that is refused with a reason, as a multiple of the largest request."""
FRAGMENTS_MAX: Final = 16_384
"""Fragments of a message: empty ones would never add up to too many bytes."""
FREE_BYTES: Final = 65_536
"""Bytes of an arriving message that are not counted."""
FULL: Final = "too many large frames arrive at once"
LINGER_S: Final = 1.0
"""Seconds that input is ignored after a client broke a rule."""
NO_UPGRADE: Final = (
    "This server cannot read the upgrade. It must be a GET without a body, of version 13 and with "
    "a Sec-WebSocket-Key, with at most 128 headers of at most 8 KiB each."
)
"""Rules and bounds of the `websockets` package."""


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with bounds. When the server stops, the application closes
    connections at rest: uvicorn would cut answers off.
    """

    arriving = HeldBytes(ARRIVING_BYTES_MAX, FULL)
    """Bytes of messages that have begun, on all connections of the process."""
    _arrival: ExitStack | None = None
    _hold: Callable[[int], None]
    _held_bytes = 0
    _fragment_bytes = 0
    _trust: Callable[[], None] | None = None
    _lost: Callable[[], None] | None = None

    def upgraded_from(self, *, trust: Callable[[], None], lost: Callable[[], None]) -> None:
        """Set the callbacks: the client has shown a valid API key, the client has gone."""
        self._trust = trust
        self._lost = lost

    def trust(self) -> None:
        # Called through `gateway.api.client_connection.ClientConnection`.
        if self._trust is not None:
            self._trust()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._let_go()
        if self._lost is not None:
            self._lost()

    @override
    def shutdown(self) -> None:
        if self.close_sent or not self.handshake_complete:
            super().shutdown()

    @override
    async def run_asgi(self) -> None:
        # A client that does not read, so that the application gave up on it, is not waited for.
        self.scope.setdefault("extensions", {})[EXTENSION] = {"connection": self}
        await super().run_asgi()
        del self.scope["extensions"][EXTENSION]  # it refers to this, and this to the scope
        if not self.writable.is_set():
            self.transport.abort()

    @override
    def keepalive_timeout(self) -> None:
        # A client that answers no ping reads nothing: do not wait for it to take the rest.
        super().keepalive_timeout()
        self.transport.abort()

    @override
    def handle_connect(self, event: Request) -> None:
        # uvicorn would answer a faulty upgrade in words of the package: `data_received` does.
        if self.conn.accept(event).status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            super().handle_connect(event)

    @override
    def data_received(self, data: bytes) -> None:
        # Reject requests that are not upgrades; uvicorn would leave the connection open.
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # RFC 6455, section 4.2.2: the versions that would be accepted.
            self.transport.write(response_bytes(unreadable(NO_UPGRADE), sec_websocket_version="13"))
            self.transport.close()
        self._hold_arriving()

    def _hold_arriving(self) -> None:
        size = self._fragment_bytes + len(self.conn.reader.buffer)
        if size <= FREE_BYTES or self.close_sent or not self.handshake_complete:
            self._let_go()
            return
        if self._arrival is None:
            self._arrival = ExitStack()
            principal = cast("dict[str, Any]", self.scope).get("principal")
            tenant = principal and principal.tenant_id
            self._hold = self._arrival.enter_context(self.arriving.one(tenant))
        more, self._held_bytes = size - self._held_bytes, max(size, self._held_bytes)
        if more > 0:
            try:
                self._hold(more)
            except RateLimited:
                self._break_off(CloseCode.TRY_AGAIN_LATER, FULL)
                self._let_go()

    def _let_go(self) -> None:
        if self._arrival is not None:
            self._arrival.close()
            self._arrival, self._held_bytes = None, 0

    @override
    async def send(self, message: ASGISendEvent) -> None:
        # A refusal over HTTP is an answer, too; uvicorn would log that there was none.
        await super().send(message)
        self.handshake_complete |= self.close_sent

    @override
    def handle_ping(self) -> None:
        # A client that does not read gets no pong: pongs would pile up here.
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    @override
    def handle_text(self, event: Frame) -> None:
        self._fragment_bytes = len(event.data)
        super().handle_text(event)

    @override
    def handle_bytes(self, event: Frame) -> None:
        self._fragment_bytes = len(event.data)
        super().handle_bytes(event)

    @override
    def handle_cont(self, event: Frame) -> None:
        self._fragment_bytes += len(event.data)
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
        else:
            self._break_off(CloseCode.MESSAGE_TOO_BIG, "too many fragments")

    @override
    def send_receive_event_to_app(self) -> None:
        # Invalid UTF-8 is the client's mistake; uvicorn would log an error of the server.
        self._fragment_bytes = 0
        self.frames = [b"".join(self.frames)]
        if self.curr_msg_data_type == "bytes" or _is_text(self.frames[0]):
            super().send_receive_event_to_app()
        else:
            self._break_off(CloseCode.INVALID_DATA, "invalid UTF-8")

    def _break_off(self, code: int, reason: str) -> None:
        self.frames = []
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    @override
    def handle_parser_exception(self) -> None:
        # Say why, and read on for a moment: closing while more input comes resets the connection,
        # and the client never learns why.
        if self.close_sent:
            return
        close = self.conn.close_sent
        assert close is not None, "what breaks a rule is answered with a close"
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
        )
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)


def _is_text(message: bytes) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
