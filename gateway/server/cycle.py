"""uvicorn's request-response cycle and flow control, with what an event stream and a half-closed
client need.

What goes over the wire is written by uvicorn. Added here are the ASGI extension of
`gateway.api.client_connection` (write a part of the body without a message, be called when the
client has left, tell that it has a key), answers for HTTP/1.0, an end that leaves the connection
open while its request still arrives, and bytes that every client skips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.concurrency import Event

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Scope
    from uvicorn._types import ASGISendEvent
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT: Final = b":\n\n"


class Cycle(RequestResponseCycle):
    """One request and its response; a `gateway.api.client_connection.ClientConnection`."""

    def __init__(
        self,
        protocol: HttpToolsProtocol,
        scope: Scope,
        *,
        expects_continue: bool,
        keep_alive: bool,
        trust: Callable[[], None],
    ) -> None:
        """`protocol` is of the connection; `trust` is called when the client has shown a key."""
        super().__init__(
            scope=scope,  # type: ignore[arg-type]
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=protocol.server_state.default_headers,
            message_event=Event(),  # type: ignore[arg-type]  # an Event takes ten times the memory
            expect_100_continue=expects_continue,
            keep_alive=keep_alive,
            on_response=protocol.on_response_complete,
        )
        self.trust = trust
        self._is_http_1_0 = scope["http_version"] == "1.0"
        self._is_event_stream = False
        self._has_parts = False
        self._ends_with_connection = False
        self._on_disconnect: Callable[[], None] | None = None

    def release(self) -> None:
        """The application has returned: drop what refers to this cycle, and what that refers to."""
        self.scope = {}  # type: ignore[typeddict-item]
        self.trust = self.on_response = _nothing
        self._on_disconnect = None

    @override
    async def send(self, message: ASGISendEvent) -> None:
        # What follows must not wait, so that it is decided for the state that it is written in.
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
                # Where another request would begin on this connection is not known.
                self.keep_alive = False
            if self._is_http_1_0 and not has_length:
                # HTTP/1.0 has no chunks: such a body ends with its connection (RFC 9112, 6.3).
                self.chunked_encoding = False
                self._ends_with_connection = True
            await super().send(message)
            self._has_parts = bool(self.chunked_encoding) and self.scope["method"] != "HEAD"
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
        """Write a part of the body, and not its last, as `send` does. False, and nothing was
        written: `send` would wait, or there is no chunked body at this point.
        """
        if (
            not self._has_parts
            or self.flow.write_paused
            or self.disconnected
            or self.response_complete
            or not part
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def watch(self, on_disconnect: Callable[[], None] | None) -> None:
        """Have `on_disconnect` called once when the client has gone, or now; None: no more."""
        self._on_disconnect = on_disconnect
        if self.disconnected:
            self.disconnect()

    @property
    def is_watched(self) -> bool:
        """Whether work is done that ends with the client."""
        return self._on_disconnect is not None

    def disconnect(self) -> None:
        """Note that the client has left, and tell the application."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()
        on_disconnect, self._on_disconnect = self._on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()

    def probe(self) -> bool:
        """Send what every client skips: one that has gone answers it with a reset. False: there is
        no such thing at this point of the answer. True also where something waits to be read.
        """
        if self.flow.write_paused or (self.response_started and not self._is_event_stream):
            return True
        if self.response_started:
            if not self.write_part(COMMENT):
                self.transport.write(COMMENT)
        elif not self._is_http_1_0:
            self.transport.write(CONTINUE)
        return self.response_started or not self._is_http_1_0


def _nothing() -> None:
    """What a released cycle calls in place of its callbacks."""


class BoundedFlowControl(FlowControl):
    """Whether a connection is read from, and takes what is written.

    It takes less memory than uvicorn's, whose lock has 700 bytes: each stream has a connection.
    """

    __slots__ = ("_takes", "is_full")

    def __init__(self, transport: asyncio.Transport) -> None:
        # Not uvicorn's, which would make the lock.
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self.is_full = False
        """While what was read already is too much, nobody has more read, whatever they wait for."""
        self._takes = Event()
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
