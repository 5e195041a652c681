from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH: Final = "/:@!$&'()*+,;="
"""Characters of a path that `quote` leaves, besides letters, digits and `-._~`."""
_LAST_EVENTS: Final = {"response.completed", "response.incomplete", "response.failed"}


class AccessLog:
    """ASGI middleware that writes one line for each HTTP request, and for each response over a
    WebSocket.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], None]) -> None:
        # `write` is called with each line, which has no line feed.
        self._app = app
        self._write = write
        self.is_paused = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._app(scope, receive, _ObservedTurns(self._line_of(scope, "WS"), send))
        else:
            await self._app(scope, receive, send)

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status: int | str = "client left"
        begun_s = None

        async def observed(message: Message) -> None:
            nonlocal status, begun_s
            await send(message)
            if message["type"] == "http.response.start":
                status, begun_s = message["status"], time.perf_counter() - started

        try:
            await self._app(scope, receive, observed)
        finally:
            first = "" if begun_s is None else f"first byte {begun_s * 1000:.0f} ms   "
            total_s = time.perf_counter() - started
            self._line_of(scope, scope["method"])(f"{status}  {first}{total_s:.2f} s")

    def _line_of(self, scope: Scope, method: str) -> Callable[[str], None]:
        # Quoted as in a URL, so that a client's line breaks and escape sequences do not reach the
        # terminal.
        request = f"{method} {quote(scope['path'], safe=_PATH, errors='replace')}"

        def write(outcome: str) -> None:
            if not self.is_paused:
                self._write(f"  {datetime.now().astimezone():%H:%M:%S}  {request}  {outcome}")

        return write


class _ObservedTurns:
    """Wrapper of a WebSocket's `send`. Turns may overlap, each with its own `stream_id`."""

    def __init__(self, write: Callable[[str], None], send: Send) -> None:
        self._write = write
        self._send = send
        self._begun: dict[Any, float] = {}

    async def __call__(self, message: Message) -> None:
        await self._send(message)
        if message["type"] == "websocket.http.response.start":
            self._write(str(message["status"]))
        elif message["type"] == "websocket.send":
            self._observe(orjson.loads(message["text"]))

    def _observe(self, event: dict[str, Any]) -> None:
        kind, lane = event["type"], event.get("stream_id")
        if kind == "error":
            self._write(f"error {event['status']}")
            self._begun.pop(lane, None)
        elif kind in _LAST_EVENTS:
            seconds = time.perf_counter() - self._begun.pop(lane, time.perf_counter())
            self._write(f"{kind.removeprefix('response.')}  {seconds:.2f} s")
        elif kind == "response.created":
            self._begun[lane] = time.perf_counter()
