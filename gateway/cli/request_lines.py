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
        started = time.perf_counter()
        status: int | None = None
        first_s: float | None = None

        async def observed(message: Message) -> None:
            nonlocal status, first_s
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message.get("body") and first_s is None:
                first_s = time.perf_counter() - started
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            total_s = time.perf_counter() - started
            first = "" if first_s is None else f"first byte {first_s * 1000:.0f} ms   "
            terminal.out.print(
                f"  {datetime.now().astimezone():%H:%M:%S}  {scope['method']} {scope['path']}  "
                f"{status or 'client left'}  {first}{total_s:.2f} s"
            )
