"""Answers to what never becomes a request of the application: an envelope, a request id, logged."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from gateway import ids
from gateway.api.errors import INVALID_REQUEST, OVERLOADED, SERVER_ERROR, envelope
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from uvicorn._types import ASGI3Application

NO_REQUEST: Final = (
    "This server cannot read the request: it is no valid HTTP/1.1. Check what sends it; for https "
    "a proxy has to stand in front of this server."
)
BUSY: Final = (
    "This server has as many connections as it takes. Please try again in a few seconds, and keep "
    "connections open to use them again."
)
RETRY_AFTER_S: Final = 1

_log = EventLog("gateway.connection")


class Refused(Exception):
    """What came is answered with this, and its connection is closed."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def unreadable(message: str = NO_REQUEST) -> Refused:
    """It is no valid HTTP/1.1, or may be read in two ways."""
    return Refused(HTTPStatus.BAD_REQUEST, message)


def too_large(message: str) -> Refused:
    """There is more of it than is taken."""
    return Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def refusal(
    status: HTTPStatus,
    message: str,
    *,
    type: str = INVALID_REQUEST,  # noqa: A002 - the key's name
    code: str | None = None,
) -> bytes:
    """An answer to what is no request, after which the connection is closed."""
    headers, body = _refusal(status, message, type=type, code=code)
    lines = [f"HTTP/1.1 {status} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*lines, b"", body])


async def _refuse_one_more(_scope: Scope, _receive: Receive, send: Send) -> None:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers, body = _refusal(status, BUSY, type=SERVER_ERROR, code=OVERLOADED)
    headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


REFUSE_ONE_MORE: Final = cast("ASGI3Application", _refuse_one_more)
"""Answers a request on a connection for which there is no room."""


def _refusal(
    status: HTTPStatus,
    message: str,
    *,
    type: str,  # noqa: A002 - the key's name
    code: str | None,
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an answer after which the connection is closed."""
    request_id = ids.new_request_id()
    body = envelope(message=message, type=type, code=code, param=None)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    _log.info("refused before it was a request", status=int(status), request_id=request_id)
    return headers, body
