"""Exceptions → HTTP: status, type, code and error envelope.

Never 409 or 422: OpenAI's SDKs retry the first by themselves and know the second from no OpenAI
route. Only the message of a `RequestError` is for the caller; that of an upstream, a database or a
bug is for the operator's log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response

from gateway import errors
from gateway.api.urls import path_of, unknown_url
from gateway.errors import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.exceptions import HTTPException
    from starlette.types import Scope

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
OVERLOADED: Final = "server_is_overloaded"
CONNECTOR_ERROR: Final = "external_connector_error"
CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
INSUFFICIENT_QUOTA: Final = "insufficient_quota"

RETRY_AFTER_S_MAX: Final = 120
"""OpenAI's SDKs ignore a longer `Retry-After`."""

LIMIT_RETRY_AFTER_S_MAX: Final = 60
"""A client that waits longer for a limit looks as if it hung."""

_TRY_AGAIN: Final = "Please try again."
_BUG: Final = (
    "The server had an error while processing your request. Please try again; if it stays, report "
    "the x-request-id of this response to the operator."
)
_WEBSOCKET: Final = ("GET", "/v1/responses")
_NO_UPGRADE: Final = (
    " A WebSocket begins with `Connection: Upgrade` and `Upgrade: websocket`; a proxy has to pass "
    "both on."
)
"""Hint about two headers that many proxies drop by default."""
_NO_ORIGINS: Final = (
    " A browser asks so before a page of another origin may call: the operator of this server "
    "allows origins with the setting `server.cors_origins`."
)


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """Status and envelope of one class of exceptions.

    `code`, `message` and `retry_after_s` are defaults. `retry=False` keeps OpenAI's SDKs from
    retrying.
    """

    status: int
    type: str
    code: str | None = None
    message: str | None = None
    retry_after_s: int | None = None
    retry: bool = True
    retry_after_ms: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    message: str
    code: str | None = None
    param: str | None = None


ERROR_STATUSES: Final[Mapping[type[BaseException], ErrorStatus]] = {
    **dict.fromkeys(
        (
            *(errors.RequestError, errors.InvalidRequest, errors.ContextLengthExceeded),
            *(errors.PreviousResponseNotFound, errors.ConversationLocked, errors.DataHeld),
        ),
        ErrorStatus(400, INVALID_REQUEST),
    ),
    **dict.fromkeys(
        (errors.AuthenticationError, errors.TokenRefused, errors.TokenNotAdmitted),
        ErrorStatus(401, INVALID_REQUEST),
    ),
    **dict.fromkeys(
        (errors.ModelNotFound, errors.ModelNotServed, errors.ResourceNotFound),
        ErrorStatus(404, INVALID_REQUEST),
    ),
    **dict.fromkeys(
        (
            *(BaseException, errors.GatewayError, errors.StoreError, errors.StoreConflict),
            *(errors.StartupError, errors.ConfigError, errors.VocabularyError),
            *(errors.DatabaseInUse, errors.SinkFailed, errors.SinkRefused),
        ),
        ErrorStatus(500, SERVER_ERROR, message=_BUG),
    ),
    errors.PayloadTooLarge: ErrorStatus(413, INVALID_REQUEST),
    errors.UnsupportedEncoding: ErrorStatus(415, INVALID_REQUEST),
    errors.PermissionDenied: ErrorStatus(403, INVALID_REQUEST, retry=False),
    errors.ConnectorFailed: ErrorStatus(424, CONNECTOR_ERROR),
    errors.RateLimited: ErrorStatus(429, "requests", "rate_limit_exceeded", retry_after_s=1),
    errors.UpstreamError: ErrorStatus(
        502, SERVER_ERROR, message=f"The model server had an error. {_TRY_AGAIN}"
    ),
    errors.UpstreamUnavailable: ErrorStatus(
        503,
        SERVER_ERROR,
        OVERLOADED,
        f"No server for this model could take the request. {_TRY_AGAIN}",
        retry_after_s=1,
    ),
    errors.UpstreamLost: ErrorStatus(
        502,
        SERVER_ERROR,
        message=f"The model server was lost before it said anything. {_TRY_AGAIN}",
    ),
    errors.UpstreamRejected: ErrorStatus(
        502,
        SERVER_ERROR,
        message="The model server refused the request. Sending it again will not help; change it, "
        "or report the x-request-id of this response to the operator.",
        retry=False,
    ),
    errors.ContextOverflow: ErrorStatus(
        400,
        INVALID_REQUEST,
        CONTEXT_LENGTH_EXCEEDED,
        "Your input exceeds the context window of this model. Please adjust your input and try "
        "again.",
    ),
    errors.UpstreamFailed: ErrorStatus(
        502, SERVER_ERROR, message=f"The model server broke off while generating. {_TRY_AGAIN}"
    ),
    errors.UpstreamRecalled: ErrorStatus(
        502, SERVER_ERROR, message=f"The model server broke off while generating. {_TRY_AGAIN}"
    ),
    errors.NoUpstreamAvailable: ErrorStatus(
        503,
        SERVER_ERROR,
        OVERLOADED,
        "No server for this model is available at the moment. Please try again in a few seconds.",
        retry_after_s=2,
    ),
    errors.Overloaded: ErrorStatus(
        503,
        SERVER_ERROR,
        OVERLOADED,
        "The servers for this model have more to do than they can at the moment. Please try again "
        "after the time that Retry-After tells.",
        retry_after_s=2,
    ),
    errors.StoreUnavailable: ErrorStatus(
        503,
        SERVER_ERROR,
        message="The server's storage is not available at the moment. Please try again in a few "
        "seconds.",
        retry_after_s=2,
    ),
    errors.KeyTaken: ErrorStatus(
        503,
        SERVER_ERROR,
        message="Another request with this Idempotency-Key is being accepted. Send it again to "
        "get the same response.",
        retry_after_s=1,
    ),
    errors.ContentSealed: ErrorStatus(
        403,
        INVALID_REQUEST,
        "external_key_unavailable",
        "What is stored here is encrypted with a key that is not available any more. Ask the "
        "operator of this server, or whoever holds the key of your organization.",
        retry=False,
    ),
    errors.ClaimLost: ErrorStatus(
        503,
        SERVER_ERROR,
        message="The server was away for too long, and this response was ended without it. "
        "Please try again.",
        retry_after_s=1,
    ),
    errors.SummaryFailed: ErrorStatus(
        502,
        SERVER_ERROR,
        message="The model wrote no summary, so the conversation was not compacted. Please try "
        "again, or go on without compaction.",
    ),
    errors.Draining: ErrorStatus(
        503,
        SERVER_ERROR,
        message="This server is restarting, and the response is generated elsewhere. Send the "
        "request again: with an Idempotency-Key it is answered with the same response.",
        retry_after_s=1,
    ),
    errors.Leaving: ErrorStatus(
        503,
        SERVER_ERROR,
        OVERLOADED,
        "This server is restarting and takes no more requests on this connection. Open a new "
        "connection and send the request again.",
        retry_after_s=1,
    ),
    errors.TooManyConnections: ErrorStatus(
        503,
        SERVER_ERROR,
        OVERLOADED,
        "This server has as many connections as it takes. Please try again in a few seconds, and "
        "keep connections open to use them again.",
        retry_after_s=1,
    ),
    errors.IssuerUnavailable: ErrorStatus(
        503,
        SERVER_ERROR,
        "issuer_unavailable",
        "The issuer of your token does not answer, so the token cannot be verified at the moment. "
        "Please try again in a few seconds.",
        retry_after_s=5,
    ),
}
"""Every class of `gateway.errors`; the nearest base class counts for others."""


def status_of(error: BaseException) -> ErrorStatus:
    return next(ERROR_STATUSES[kind] for kind in type(error).__mro__ if kind in ERROR_STATUSES)


def error_response(error: BaseException) -> Response:
    return _response(*described(error))


def described(error: BaseException) -> tuple[ErrorStatus, ErrorDetail]:
    answer = status_of(error)
    if isinstance(error, errors.GatewayError) and error.retry_after_s is not None:
        delay_s = math.ceil(min(max(1, error.retry_after_s), RETRY_AFTER_S_MAX))
        answer = replace(answer, retry_after_s=delay_s)
    if not isinstance(error, errors.RequestError):
        return answer, ErrorDetail(answer.message or _BUG, answer.code)
    if isinstance(error, errors.RateLimited):
        answer = _rate_limit_status(answer, error)
    elif isinstance(error, errors.UnsupportedEncoding):
        # RFC 9110, section 15.5.16.
        answer = replace(answer, headers=((b"accept-encoding", error.accepted),))
    elif error.code == INSUFFICIENT_QUOTA:
        answer = ErrorStatus(answer.status, INSUFFICIENT_QUOTA, retry=False)
    return answer, ErrorDetail(error.message, error.code or answer.code, error.param)


def _rate_limit_status(answer: ErrorStatus, error: errors.RateLimited) -> ErrorStatus:
    # A request that can never fit (the budget is spent, or it is too large by itself) gets no retry
    # time, and clients are advised not to retry.
    if error.is_final or error.code == INSUFFICIENT_QUOTA:
        kind = INSUFFICIENT_QUOTA if error.code == INSUFFICIENT_QUOTA else error.kind
        return replace(answer, type=kind, retry_after_s=None, retry=False, headers=error.headers)
    answer = replace(answer, type=error.kind, headers=error.headers)
    if error.retry_after_s is None:
        return answer
    seconds = min(error.retry_after_s, LIMIT_RETRY_AFTER_S_MAX)
    return replace(
        answer, retry_after_s=max(1, math.ceil(seconds)), retry_after_ms=math.ceil(seconds * 1000)
    )


def routing_error_response(scope: Scope, error: HTTPException) -> Response:
    place = f"{scope['method']} {shown(scope['path'])}"
    if error.status_code == 404:
        answer = ErrorStatus(404, INVALID_REQUEST)
        message = unknown_url(place, path_of(scope), scope["app"].routes)
    elif error.status_code == 405:
        answer = ErrorStatus(405, INVALID_REQUEST, "method_not_supported")
        message = f"Not allowed: {place}. Use one of the methods in the Allow header."
        if (scope["method"], path_of(scope)) == _WEBSOCKET:
            message += _NO_UPGRADE
        elif scope["method"] == "OPTIONS":
            message += _NO_ORIGINS
    else:
        return error_response(error)
    response = _response(answer, ErrorDetail(message, answer.code))
    response.headers.update(error.headers or {})
    return response


def envelope(*, message: str, type: str, code: str | None, param: str | None) -> bytes:  # noqa: A002 - the key's name
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


def _response(answer: ErrorStatus, detail: ErrorDetail) -> Response:
    body = envelope(message=detail.message, type=answer.type, code=detail.code, param=detail.param)
    return Response(body, answer.status, retry_headers(answer), media_type="application/json")


def retry_headers(answer: ErrorStatus) -> dict[str, str]:
    """Return the headers that control retries, which no other code may make, neither for WebSocket
    frames nor for answers before the application is called.
    """
    headers = {}
    if answer.status == 401:
        headers["www-authenticate"] = "Bearer"
    if answer.retry_after_s is not None:
        headers["retry-after"] = str(answer.retry_after_s)
    if answer.retry_after_ms is not None:
        headers["retry-after-ms"] = str(answer.retry_after_ms)
    if not answer.retry:
        headers["x-should-retry"] = "false"
    headers |= {name.decode(): value.decode() for name, value in answer.headers}
    return headers
