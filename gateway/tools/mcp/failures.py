"""Failures of requests to MCP servers, in the form that clients and the model read.

The SDK reports neither the status of an HTTP answer nor whether a request was sent, so the HTTP
client's hooks write both into an `HttpTrace`.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import httpx2

from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import CURRENT
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import BodyTooLong, EncodedBody

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gateway.tools.egress.transport import EgressClient

ErrorType = Literal["mcp_protocol_error", "http_error"]

INTERNAL_ERROR: Final = -32603
METHOD_NOT_FOUND: Final = -32601
INVALID_REQUEST: Final = -32600
PARSE_ERROR: Final = -32700
REQUEST_TIMEOUT: Final = -32001
CONNECTION_CLOSED: Final = -32000
HEADER_MISMATCH: Final = -32020
URL_ELICITATION: Final = -32042
"""JSON-RPC's codes, and MCP's."""
CODE_BITS_MAX: Final = 31
"""Clients read an error code into an integer."""
NEEDS_USER: Final = "the tool asks its user for input, which nobody can give here"
LOST: Final = "the connection to the server was lost"
UNREADABLE: Final = "the server's answer is too long, or cannot be read"
_ASKS_USER: Final = re.compile(r"elicitation|sampling|roots", re.IGNORECASE)
"""The SDK's names for requests to clients: this one serves none."""
_STATUS_STAND_INS: Final = frozenset(
    {"Server returned an error response", "Not Found", "Session terminated"}
)
"""The SDK's messages for an HTTP error."""
_CLOSED: Final = ("Connection closed", "SSE stream ended")
"""The SDK's messages for a lost connection. Its code -32000 is also servers' own for any error."""
_UNREAD: Final = ("Unexpected content type", "server answered a request with 202 Accepted")
"""The SDK's messages about an answer that it did not read."""

_log = EventLog(__name__)


class McpError(Exception):
    """Failure. `code` is JSON-RPC's, or HTTP's. `sent` False: certainly not sent."""

    def __init__(self, type_: ErrorType, code: int, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.type: ErrorType = type_
        self.code = code
        self.sent = sent


class HttpTrace:
    """Progress of the HTTP requests that one request takes."""

    __slots__ = ("_on_trouble", "is_sent", "status")

    def __init__(self, on_trouble: Callable[[], None] | None = None) -> None:
        # `on_trouble` is called when a request failed or was refused.
        self.is_sent = False
        self.status: int | None = None
        """Status of the last answer, if an error or a redirect."""
        self._on_trouble = on_trouble

    async def trace(self, event: str, _info: Mapping[str, Any]) -> None:
        # httpcore2 calls this for each event of the connection.
        if event.endswith("send_request_headers.started"):
            self.is_sent = True
        elif event.endswith(".failed") and self._on_trouble is not None:
            self._on_trouble()

    def answered(self, status: int) -> None:
        self.status = status if status >= httpx2.codes.MULTIPLE_CHOICES else None
        if self.status is not None and self._on_trouble is not None:
            self._on_trouble()


EXCHANGE: Final[ContextVar[HttpTrace]] = ContextVar("mcp_exchange")


def watch(http: EgressClient, before: Callable[[httpx2.Request], Awaitable[None]]) -> None:
    """Await `before` each request, record it in its `EXCHANGE`, and name its span."""
    http.event_hooks = {"request": [before, _follow], "response": [_note]}


async def _follow(request: httpx2.Request) -> None:
    exchange = EXCHANGE.get(None)
    if exchange is not None:
        request.extensions = {**request.extensions, "trace": exchange.trace}
    if (span := CURRENT.get()) is not None:
        # A `tracestate` is for our own side alone.
        request.headers.setdefault("traceparent", span.headers["traceparent"])


async def _note(response: httpx2.Response) -> None:
    exchange = EXCHANGE.get(None)
    if exchange is not None:
        exchange.answered(response.status_code)


def translated(error: BaseException, exchange: HttpTrace) -> McpError:
    """Translate a failure; of an exception group, the first meaningful one."""
    if isinstance(error, McpError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return translated(_first(error.exceptions), exchange)
    code = getattr(error, "code", None)
    if isinstance(code, int):  # the SDK's MCPError
        return _protocol_error(code, str(error), exchange)
    if isinstance(error, httpx2.HTTPStatusError):
        return _http_error(error.response.status_code)
    for kind, status, message in _FAILURES:
        if isinstance(error, kind):
            return McpError("http_error", status, message or str(error), sent=exchange.is_sent)
    _log.warning("an answer of an MCP server could not be read", error=error)
    return McpError("http_error", 0, UNREADABLE, sent=exchange.is_sent)


def _protocol_error(code: int, message: str, exchange: HttpTrace) -> McpError:
    # The SDK makes some of these errors itself.
    status, sent = exchange.status, exchange.is_sent
    if status == httpx2.codes.NOT_FOUND and code != METHOD_NOT_FOUND and message != "Not Found":
        # Servers before 2026 answer so where they do not know the session: nothing was executed.
        return McpError("http_error", 0, "the server has forgotten the session", sent=False)
    if status is not None and (message in _STATUS_STAND_INS or not _may_hold_an_error(status)):
        return _http_error(status)
    if code == PARSE_ERROR or message.startswith("SSE stream failed"):
        return McpError("http_error", 0, UNREADABLE, sent=sent)
    if message.startswith(_UNREAD):
        # The server may have executed the request all the same.
        return McpError("http_error", 0, message, sent=sent)
    if code == CONNECTION_CLOSED and message.startswith(_CLOSED):
        return McpError("http_error", 0, LOST, sent=sent)
    if code == URL_ELICITATION or (code == INVALID_REQUEST and _ASKS_USER.search(message)):
        message = NEEDS_USER
    shown_code = code if code.bit_length() <= CODE_BITS_MAX else INTERNAL_ERROR
    return McpError("mcp_protocol_error", shown_code, message, sent=sent)


def _may_hold_an_error(status: int) -> bool:
    # Modern servers send JSON-RPC errors with these statuses.
    return status in {400, 404, 422, 500}


def _http_error(status: int) -> McpError:
    if httpx2.codes.is_redirect(status):
        message = "the server redirects elsewhere, where its requests are not sent"
    else:
        message = f"the server answered {status}"
    return McpError("http_error", status, message)


_FAILURES: Final[Sequence[tuple[type[BaseException], int, str]]] = (
    (EgressRefused, 403, ""),
    (httpx2.ConnectError, 0, "the server cannot be reached"),
    (httpx2.ConnectTimeout, 0, "the server cannot be reached"),
    (httpx2.SSEError, 0, UNREADABLE),
    (httpx2.TransportError, 0, LOST),
    (anyio.BrokenResourceError, 0, LOST),
    (anyio.ClosedResourceError, 0, LOST),
    (asyncio.CancelledError, 0, LOST),
    (TimeoutError, REQUEST_TIMEOUT, "the server did not answer in time"),
    (BodyTooLong, 0, ""),
    (EncodedBody, 0, ""),
)


def _first(errors: Sequence[BaseException]) -> BaseException:
    failures = [one for one in errors if not isinstance(one, asyncio.CancelledError)]
    return (failures or errors)[0]
