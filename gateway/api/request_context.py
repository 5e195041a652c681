"""The outermost frame of a request: its id, its headers, its one log line, its errors.

Pure ASGI. An error before the response started becomes an envelope; after that the stream has its
own way to say so, and what still escapes can only be logged.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from starlette.exceptions import HTTPException

from gateway import ids
from gateway.api.access.client_address import is_from_proxy
from gateway.api.client_connection import ClientDisconnected
from gateway.api.error_responses import error_response, routing_error_response
from gateway.api.urls import BASE, loggable_path
from gateway.errors import GatewayError, InvalidRequest
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
"""Value of OpenAI's header `openai-version`."""
CLIENT_GONE: Final = 499
"""Status in the log when a client left before there was one."""
SWITCHING_PROTOCOLS: Final = 101
WEBSOCKET: Final = "WEBSOCKET"
"""Method in the log of requests over a WebSocket connection, and of its upgrade."""
POLICY_VIOLATION: Final = 1008
"""The close code of a connection that is refused (RFC 6455 §7.4.1)."""

CLIENT_REQUEST_ID: Final = "X-Client-Request-Id"
"""A client's own name for a request, for the logs."""
CLIENT_REQUEST_ID_CHARS_MAX: Final = 512
_CLIENT_REQUEST_ID: Final = re.compile(rb"[ -~]{0,%d}" % CLIENT_REQUEST_ID_CHARS_MAX)
"""Pattern of such a name: OpenAI's rule is ASCII of this length; a log has no use for what cannot
be printed."""

_LOGGED_PARAMETERS: Final = (
    CREATE_PARAMETERS | COUNT_PARAMETERS | COMPACT_PARAMETERS | CHAT_PARAMETERS
) | {"client_metadata"}
"""Names that clients did not make up; the last one is Codex's."""
_STATUSES: Final[dict[str, int | None]] = {
    "http.response.start": None,
    "websocket.http.response.start": None,
    "websocket.accept": SWITCHING_PROTOCOLS,
}
"""The messages that an answer starts with, and their status; None: they say it themselves."""

HTTP_ERROR_MIN: Final = 500
"""Statuses from here on are errors of the gateway, not of its clients."""
_API_TYPES: Final = {"/v1/responses": "responses", "/v1/chat/completions": "chat_completions"}
_ATTRIBUTES: Final[dict[Literal["tenant", "response_id", "reason"], str]] = {
    "tenant": "harmony.tenant",
    "response_id": "gen_ai.response.id",
    "reason": "harmony.reason",
}
"""Facts of the log line that the span has, too."""

_log = logs.EventLog(__name__)


class RequestContext:
    """ASGI application around another: gives every request an id, counts and logs it, answers its
    exceptions. For the router and for the message of a 404 it is the application, with the
    `routes`.
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
        # `tracing` None: no request is traced.
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
        self._metrics.requests_in_flight += 1
        if self._tracing is not None:
            record.span = self._begin_span(self._tracing, scope)
        try:
            _note_client_request_id(scope, record)
            await self._app(scope, receive, send)
        except ClientDisconnected:
            self._metrics.client_disconnected()
            record.facts["reason"] = "the client left"
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            if not isinstance(error, GatewayError | HTTPException):
                _log.error("unexpected error", path=record.path, error=error)
            if not record.started:
                await _refuse(error, scope, receive, send)
        finally:
            record.finish(self._metrics)
            # The two refer to each other, and would stay until a collection finds that out.
            del scope["record"]

    def _begin_span(self, tracing: Tracing, scope: Scope) -> OtelSpan | None:
        # Probes are not traced.
        if f"{BASE}/" not in scope["path"]:
            return None
        trusts_parent = is_from_proxy(scope, self._trusted_proxies)
        return tracing.request(_method(scope), scope["headers"], trusts_parent=trusts_parent)


def _method(scope: Scope) -> str:
    method: str = scope.get("method", WEBSOCKET)
    return method


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
    """Facts that endpoints add to the log line of a request."""

    tenant: str
    client_request_id: str
    model: str
    response_id: str
    first_token_s: float
    reason: str
    connection: str
    ignored_parameters: str


def loggable_names(ignored: str) -> str:
    """Return parameter names for the log; undocumented ones are only counted.

    A client may write content into a name.
    """
    names = ignored.split(", ")
    loggable = [name for name in names if name in _LOGGED_PARAMETERS]
    if len(loggable) < len(names):
        loggable.append(f"{len(names) - len(loggable)} unknown")
    return ", ".join(loggable)


class RequestRecord:
    """Record of one request for log and metrics, whatever carries it; `scope["record"]` of every
    HTTP request and upgrade.

    `began` is in seconds of `time.perf_counter`. `facts["model"]` must be one that is served: it is
    a metric's label, too. `span` is that of the request, and ends with it; None: it is not traced.
    """

    __slots__ = ("_is_finished", "_scope", "began", "facts", "request_id", "span", "status")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._is_finished = False
        self.began = time.perf_counter()
        self.request_id = ids.new_request_id()
        self.status = CLIENT_GONE
        self.facts: Facts = {}
        self.span: OtelSpan | None = None

    @property
    def started(self) -> bool:
        return self.status != CLIENT_GONE

    @property
    def path(self) -> str:
        """Return the path for the log, without content that a client may have written into it."""
        path: str = self._scope["path"]
        principal = self._scope.get("principal")
        if principal is None or not principal.keeps_nothing:
            return path
        return loggable_path(path, self._scope["app"].routes)

    def note_ignored(self, parameters: Sequence[str]) -> None:
        # They are logged, and named in a header.
        if parameters:
            self.facts["ignored_parameters"] = ", ".join(parameters)

    def send(self, send: Send, message: Message) -> Awaitable[None]:
        """Send a message; the first one of an answer gets the common headers.

        They include ignored parameters, so that nothing is lost silently. The organization is the
        key's, not the one that the client names. Its status is recorded.
        """
        # Not a coroutine of its own: most messages are a part of a body, and pass through.
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
        """Count and log the request. Repeating it is safe."""
        if self._is_finished:
            return
        self._is_finished = True
        seconds = time.perf_counter() - self.began
        model = self.facts.get("model", "")
        trace_id = "" if self.span is None else self.span.trace_id
        metrics.request_finished(
            status=self.status, model=model, seconds=seconds, trace_id=trace_id
        )
        if "principal" in self._scope:
            principal = self._scope["principal"]
            self.facts["tenant"] = principal.tenant_name
            metrics.tenant_requested(principal.tenant_id.hex, principal.tenant_name, self.status)
            if principal.keeps_nothing:
                # Clients may write anything into it, which is content then.
                self.facts.pop("client_request_id", None)
        if "ignored_parameters" in self.facts:
            self.facts["ignored_parameters"] = loggable_names(self.facts["ignored_parameters"])
        _log.info(
            "request",
            method=_method(self._scope),
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
        # The path is that of the route: what clients write into theirs may be content.
        method, route = _method(self._scope), self._scope.get("route")
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
    # The id goes into the log line, so only printable ASCII is allowed.
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
