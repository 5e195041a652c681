"""One line for every request, for somebody who watches the server in a terminal."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH: Final = "/:@!$&'()*+,;="
"""What stands in a path as it is, besides letters, digits and `-._~`."""


class AccessLog:
    """ASGI middleware that writes one line for each HTTP request when its answer is complete.

    The line has the time of day, the method and path, the status, the seconds until the answer
    began and until it ended. A stream begins with its first event.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], None]) -> None:
        """`write` is called with each line, which has no line feed."""
        self._app = app
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
            now = datetime.now().astimezone()
            # As in a URL: a client's line breaks and escape sequences are none of the terminal's.
            request = f"{scope['method']} {quote(scope['path'], safe=_PATH, errors='replace')}"
            self._write(f"  {now:%H:%M:%S}  {request}  {status}  {first}{total_s:.2f} s")
