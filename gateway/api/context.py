"""The outermost frame of a request: its id, its headers, its one log line, its errors.

Pure ASGI. An error before the response started becomes an envelope; after that the stream has its
own way to say so, and what still escapes can only be logged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypedDict

from gateway import ids, telemetry
from gateway.api.body import ClientDisconnected
from gateway.api.errors import error_response
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.telemetry import Metrics

API_VERSION: Final = b"2020-10-01"
"""What OpenAI answers in `openai-version`."""
CLIENT_GONE: Final = 499
"""Logged when a client left before there was a status."""

_log = telemetry.EventLog("gateway.api")


class RequestContext:
    """Numbers requests, times them, translates what they raise."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["exchange"] = exchange = Exchange(send)
        telemetry.unbind_all()
        telemetry.bind(request_id=exchange.request_id)
        self._metrics.request_started()
        try:
            await self._app(scope, receive, exchange.send)
        except ClientDisconnected:
            self._metrics.client_disconnected()
            exchange.facts["reason"] = "the client left"
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            if not isinstance(error, GatewayError):
                _log.error("unexpected error", path=scope["path"], error=error)
            if not exchange.started:
                await error_response(error)(scope, receive, exchange.send)
        finally:
            self._finish(scope, exchange)

    def _finish(self, scope: Scope, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.began
        model = exchange.facts.get("model", "")
        self._metrics.request_finished(status=exchange.status, model=model, seconds=seconds)
        if "principal" in scope:
            exchange.facts["tenant"] = scope["principal"].tenant_name
        _log.info(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=exchange.status,
            seconds=round(seconds, 4),
            **exchange.facts,
        )


class Facts(TypedDict, total=False):
    """What an endpoint adds to the log line of its request."""

    tenant: str
    model: str
    response_id: str
    first_token_s: float
    reason: str


class Exchange:
    """One request's answer on its way out; `scope["exchange"]` of every HTTP request.

    `began` is in seconds of `time.perf_counter`. `facts["model"]` must be one that is served: it
    is a metric's label, too.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began = time.perf_counter()
        self.request_id = ids.new_request_id()
        self.status = CLIENT_GONE
        self.facts: Facts = {}

    @property
    def started(self) -> bool:
        return self.status != CLIENT_GONE

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            milliseconds = int((time.perf_counter() - self.began) * 1000)
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"openai-version", API_VERSION),
                (b"openai-processing-ms", b"%d" % milliseconds),
            ]
        await self._send(message)
