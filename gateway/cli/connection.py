"""uvicorn's HTTP protocol with bounds on the head of a request, which it does not have itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHeadProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers are too many bytes or come too slowly."""

    head_bytes_max: int
    head_timeout_s: float
    _head_bytes = 0
    _reading_head = True
    _head_timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if self._reading_head:
            self._head_bytes += len(data)
            self._start_head_timer()
        super().data_received(data)
        if self._reading_head and self._head_bytes > self.head_bytes_max:
            self.transport.write(TOO_LARGE)
            self.transport.close()

    @override
    def on_headers_complete(self) -> None:
        self._reading_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    @override
    def on_message_complete(self) -> None:
        self._reading_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def bounded(head_bytes_max: int, head_timeout_s: float) -> type[BoundedHeadProtocol]:
    """The protocol class with these bounds: uvicorn wants a class."""
    bounds = {"head_bytes_max": head_bytes_max, "head_timeout_s": head_timeout_s}
    return type("BoundedHeadProtocol", (BoundedHeadProtocol,), bounds)
