"""One line on the terminal for every request: what somebody trying it wants to see."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.cli import terminal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestLines:
    """Prints time, request line, status, time to the first byte of the body, time to the last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(f"{scope['method']} {scope['path']}", time.perf_counter())

        async def observed(message: Message) -> None:
            await send(message)
            request.saw(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            request.ended()


class _Request:
    """What was seen of one request so far."""

    def __init__(self, line: str, started: float) -> None:
        self._line = line
        self._started = started
        self._status: int | None = None
        self._first_byte_s: float | None = None
        self._printed = False

    def saw(self, message: Message) -> None:
        """The application sent a part of its response."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        if message.get("body") and self._first_byte_s is None:
            self._first_byte_s = time.perf_counter() - self._started
        if not message.get("more_body"):
            self.ended()

    def ended(self) -> None:
        """The response is complete, or nobody is left to read it."""
        if self._printed:
            return
        self._printed = True
        first_s, total_s = self._first_byte_s, time.perf_counter() - self._started
        first = "" if first_s is None else f"first byte {first_s * 1000:.0f} ms   "
        status = self._status or "client left"
        now = datetime.now().astimezone()
        terminal.show(f"  {now:%H:%M:%S}  {self._line}  {status}  {first}{total_s:.2f} s")
