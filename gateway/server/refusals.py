"""Responses to input that never becomes a request of the application."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from gateway import ids
from gateway.api.error_responses import INVALID_REQUEST, envelope, error_response
from gateway.errors import TooManyConnections
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

NO_REQUEST: Final = (
    "This server cannot read the request: it is no valid HTTP/1.1. Check what sends it; for https "
    "a proxy has to stand in front of this server."
)

_log = EventLog(__name__)


class Refused(Exception):
    """Input that becomes no request; its connection is closed after the answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def unreadable(message: str = NO_REQUEST) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, message)


def too_large(message: str) -> Refused:
    return Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def response_bytes(error: Refused | TooManyConnections, **headers: str) -> bytes:
    """Return a whole HTTP/1.1 response. Underscores in `headers` stand for dashes."""
    response = _closing(error)
    response.headers.update({name.replace("_", "-"): headers[name] for name in headers})
    status = HTTPStatus(response.status_code)
    lines = [f"HTTP/1.1 {status} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


async def too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503 as an ASGI application."""
    await _closing(TooManyConnections())(scope, receive, send)


def _closing(error: Refused | TooManyConnections) -> Response:
    if isinstance(error, Refused):
        body = envelope(message=error.message, type=INVALID_REQUEST, code=None, param=None)
        response = Response(body, error.status, media_type="application/json")
    else:
        response = error_response(error)
    request_id = ids.new_request_id()
    response.headers["x-request-id"] = request_id
    response.headers["connection"] = "close"
    status = response.status_code
    _log.info("refused before it was a request", status=status, request_id=request_id)
    return response
