"""The outermost frame of a request: its id, its headers, its one log line, its errors.

Pure ASGI. An error before the response started becomes an envelope; after that the stream has its
own way to say so, and what still escapes can only be logged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.api.body import ClientDisconnected
from gateway.api.errors import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.telemetry import Metrics

API_VERSION: Final = b"2020-10-01"
"""What OpenAI answers in `openai-version`."""


class RequestContext:
    """Numbers requests, times them, translates what they raise."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = ids.new_request_id()
        scope["request_id"] = request_id
        status = 499

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                milliseconds = int((time.perf_counter() - started) * 1000)
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"openai-version", API_VERSION),
                    (b"openai-processing-ms", b"%d" % milliseconds),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnected:
            self._metrics.client_disconnected()
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            self._log_unexpected(error, scope)
            if status == 499:
                await error_response(error)(scope, receive, send_with_headers)
        finally:
            self._log(scope, status, time.perf_counter() - started)
