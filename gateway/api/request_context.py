"""The outermost frame of a request: id, headers, log line, metrics, error envelopes."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from starlette.exceptions import HTTPException

from gateway import ids
from gateway.api.access.authentication import OPERATION_PATHS
from gateway.api.access.client_address import is_from_proxy
from gateway.api.client_connection import ClientDisconnected
from gateway.api.error_responses import error_response, routing_error_response
from gateway.api.urls import BASE, loggable_path
from gateway.errors import GatewayError, InvalidRequest, Leaving
from gateway.protocol.documented import (
    CHAT_PARAMETERS,
    COMPACT_PARAMETERS,
    COUNT_PARAMETERS,
    CREATE_PARAMETERS,
)
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.tracing import OtelSpan, Tracing
    from gateway.tenancy import Network

API_VERSION: Final = b"2020-10-01"
CLIENT_GONE: Final = 499
"""Logged if the client left before there was a status."""
SWITCHING_PROTOCOLS: Final = 101
WEBSOCKET: Final = "WEBSOCKET"
"""Logged as the method of requests over a WebSocket, and of its upgrade."""
POLICY_VIOLATION: Final = 1008
"""RFC 6455 §7.4.1."""

CLIENT_REQUEST_ID: Final = "X-Client-Request-Id"
CLIENT_REQUEST_ID_CHARS_MAX: Final = 512
_CLIENT_REQUEST_ID: Final = re.compile(rb"[ -~]{0,%d}" % CLIENT_REQUEST_ID_CHARS_MAX)
"""OpenAI requires ASCII of at most this length; the log needs it printable."""

_LOGGED_PARAMETERS: Final = (
    CREATE_PARAMETERS | COUNT_PARAMETERS | COMPACT_PARAMETERS | CHAT_PARAMETERS
) | {"client_metadata"}
"""Names that clients did not make up. `client_metadata` is Codex's."""
_STATUSES: Final[dict[str, int | None]] = {
    "http.response.start": None,
    "websocket.http.response.start": None,
    "websocket.accept": SWITCHING_PROTOCOLS,
}
"""Messages that start an answer, and their status; None: in the message."""

HTTP_ERROR_MIN: Final = 500
_API_TYPES: Final = {"/v1/responses": "responses", "/v1/chat/completions": "chat_completions"}
_ATTRIBUTES: Final[dict[Literal["tenant", "response_id", "reason"], str]] = {
    "tenant": "harmony.tenant",
    "response_id": "gen_ai.response.id",
    "reason": "harmony.reason",
}

_log = logs.EventLog(__name__)


class RequestContext:
    """Middleware that counts, logs and traces requests, and answers their exceptions.

    As `scope["app"]` it shows its `routes` to the router and to 404 messages.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        routes: Sequence[BaseRoute] = (),
        *,
        tracing: Tracing | None = None,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._app = app
        self._metrics = metrics
        self.routes = routes
        self._tracing = tracing
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        scope["record"] = record = RequestRecord(scope)
        send = partial(record.send, send)
        logs.bind_anew(request_id=record.request_id)
        record.is_counted = scope["path"] not in OPERATION_PATHS
        self._metrics.requests_in_flight += record.is_counted
        if self._tracing is not None:
            record.span = self._begin_span(self._tracing, scope, record.method)
        try:
            _note_client_request_id(scope, record)
            await self._app(scope, receive, send)
        except ClientDisconnected:
            self._metrics.client_disconnected()
            record.facts["reason"] = "the client left"
        except asyncio.CancelledError:
            # The server's grace is over: a client that leaves raises `ClientDisconnected`.
            if record.started:
                raise
            await _refuse(Leaving(), scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            if not isinstance(error, GatewayError | HTTPException):
                _log.error("unexpected error", path=record.path, error=error)
            if not record.started:
                await _refuse(error, scope, receive, send)
        finally:
            record.finish(self._metrics)
            # Break the reference cycle: it would last until the next garbage collection.
            del scope["record"]

    def _begin_span(self, tracing: Tracing, scope: Scope, method: str) -> OtelSpan | None:
        # Probes are not traced.
        if f"{BASE}/" not in scope["path"]:
            return None
        trusts_parent = is_from_proxy(scope, self._trusted_proxies)
        return tracing.request(method, scope["headers"], trusts_parent=trusts_parent)


async def _refuse(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    # If the server cannot answer an upgrade over HTTP, closing the WebSocket sends a 403.
    if scope["type"] == "http" or "websocket.http.response" in (scope.get("extensions") or ()):
        if isinstance(error, HTTPException):
            response = routing_error_response(scope, error)
        else:
            response = error_response(error)
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})


class Facts(TypedDict, total=False):
    tenant: str
    client_request_id: str
    model: str
    response_id: str
    first_token_s: float
    reason: str
    connection: str
    ignored_parameters: str


def loggable_names(ignored: str) -> str:
    """Count unknown names instead of returning them: they may contain content."""
    names = ignored.split(", ")
    loggable = [name for name in names if name in _LOGGED_PARAMETERS]
    if len(loggable) < len(names):
        loggable.append(f"{len(names) - len(loggable)} unknown")
    return ", ".join(loggable)


class RequestRecord:
    """Record of a request, for log and metrics.

    `began` is in seconds of `time.perf_counter`. `facts["model"]` must be a served model: it is a
    metric label.
    """

    __slots__ = (
        "_is_finished", "_scope", "began", "facts", "is_counted", "method", "request_id", "span",
        "status",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._is_finished = False
        self.is_counted = True
        self.began = time.perf_counter()
        self.method: str = scope.get("method", WEBSOCKET)
        self.request_id = ids.new_request_id()
        self.status = CLIENT_GONE
        self.facts: Facts = {}
        self.span: OtelSpan | None = None

    @property
    def started(self) -> bool:
        return self.status != CLIENT_GONE

    @property
    def path(self) -> str:
        """Return the path for the log, without content if nothing of the caller's may be kept."""
        path: str = self._scope["path"]
        principal = self._scope.get("principal")
        if principal is None or not principal.keeps_nothing:
            return path
        return loggable_path(path, self._scope["app"].routes)

    def note_ignored(self, parameters: Sequence[str]) -> None:
        if parameters:
            self.facts["ignored_parameters"] = ", ".join(parameters)

    def send(self, send: Send, message: Message) -> Awaitable[None]:
        # Not a coroutine: most messages are parts of a body, and pass through.
        if message["type"] not in _STATUSES:
            return send(message)
        self.status = _STATUSES[message["type"]] or int(message["status"])
        milliseconds = int((time.perf_counter() - self.began) * 1000)
        headers = [
            *message.get("headers", ()),
            (b"x-request-id", self.request_id.encode()),
            (b"openai-version", API_VERSION),
            (b"openai-processing-ms", b"%d" % milliseconds),
        ]
        if "principal" in self._scope:
            tenant = self._scope["principal"].tenant_name
            headers.append((b"openai-organization", tenant.encode("ascii", "replace")))
        if "ignored_parameters" in self.facts:
            ignored = self.facts["ignored_parameters"].encode("ascii", "replace")
            headers.append((b"x-ignored-parameters", ignored))
        message["headers"] = headers
        return send(message)

    def finish(self, metrics: Metrics) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        seconds = time.perf_counter() - self.began
        log = _log.info
        if self.is_counted:
            model = self.facts.get("model", "")
            trace_id = "" if self.span is None else self.span.trace_id
            metrics.request_finished(
                status=self.status, model=model, seconds=seconds, trace_id=trace_id
            )
        else:
            # Probes come each second, and a replica that drains answers them with 503.
            log = _log.debug
        if "principal" in self._scope:
            principal = self._scope["principal"]
            self.facts["tenant"] = principal.tenant_name
            metrics.tenant_requested(principal.tenant_id.hex, principal.tenant_name, self.status)
            if principal.keeps_nothing:
                # Clients may write content into it.
                self.facts.pop("client_request_id", None)
        if "ignored_parameters" in self.facts:
            self.facts["ignored_parameters"] = loggable_names(self.facts["ignored_parameters"])
        log(
            "request",
            method=self.method,
            path=self.path,
            status=self.status,
            seconds=round(seconds, 4),
            **self.facts,
        )
        if self.span is not None:
            if self.span.is_recorded:
                self._describe(self.span)
            self.span.end()

    def _describe(self, span: OtelSpan) -> None:
        # Use the route's path: clients may write content into theirs.
        method, route = self.method, self._scope.get("route")
        described: dict[str, str | int] = {
            "http.request.method": method,
            "http.response.status_code": self.status,
            "harmony.request_id": self.request_id,
        }
        if route is not None:
            span.rename(f"{method} {route.path}")
            described["http.route"] = route.path
        if route is not None and route.path in _API_TYPES:
            described["openai.api.type"] = _API_TYPES[route.path]
        for fact, attribute in _ATTRIBUTES.items():
            if fact in self.facts:
                described[attribute] = self.facts[fact]
        span.set(described)
        if self.status >= HTTP_ERROR_MIN:
            span.fail(str(self.status))


def _note_client_request_id(scope: Scope, record: RequestRecord) -> None:
    for name, value in scope["headers"]:
        if name == b"x-client-request-id":
            if not _CLIENT_REQUEST_ID.fullmatch(value):
                raise InvalidRequest(
                    f"Invalid '{CLIENT_REQUEST_ID}': expected at most "
                    f"{CLIENT_REQUEST_ID_CHARS_MAX} printable ASCII characters. Send another, or "
                    "leave the header out.",
                    code="invalid_value",
                    param=CLIENT_REQUEST_ID,
                )
            record.facts["client_request_id"] = value.decode("ascii")
