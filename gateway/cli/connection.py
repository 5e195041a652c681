"""uvicorn's HTTP protocol with bounds on the head of a request, which it does not have itself.

What is refused before the application sees it is answered as the application would: with an
envelope and a request id, which is logged.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

import httptools
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway import ids
from gateway.api.body import WHOLE_BODY
from gateway.api.connection import CONNECTION
from gateway.api.errors import INVALID_REQUEST, OVERLOADED, SERVER_ERROR, envelope
from gateway.api.writing import BODY_PART
from gateway.cli.answering import Answer
from gateway.cli.flow import Flow, Pipeline
from gateway.runs import eager
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

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


class BoundedHeadProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers are too many bytes or come too slowly."""

    head_bytes_max: int
    head_timeout_s: float
    _head_bytes = 0
    _reading_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _is_lost = False
    _when_lost: Callable[[], None] | None = None
    _under_way: Answer | None = None
    """The answer that was begun last; `cycle` is the one to the request that came last."""
    _to_begin: tuple[Answer, ASGI3Application] | None = None
    _is_busy = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self.pipeline = Pipeline()  # type: ignore[assignment]
        self._start_head_timer()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)
        self._is_lost = True
        if self._under_way is not None:
            self._under_way.lose()
        if self._when_lost is not None:
            self._when_lost()

    @override
    def data_received(self, data: bytes) -> None:
        if self._reading_head:
            self._head_bytes += len(data)
        self._is_busy = True
        super().data_received(data)
        self._begin()
        if not (self._reading_head and self._head_bytes):
            return
        self._start_head_timer()
        if self._head_bytes > self.head_bytes_max:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(
                status,
                f"The request line and headers have more than {self.head_bytes_max} bytes. Send "
                "fewer or shorter headers.",
            )

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, NO_REQUEST)

    @override
    def on_message_begin(self) -> None:
        """The scope is made when the head is complete, all of it."""
        self.url, self.headers, self.expect_100_continue = b"", [], False

    @override
    def on_headers_complete(self) -> None:
        """Have the request answered, or queued behind the one before it on the connection."""
        self._reading_head = False
        self._stop_head_timer()
        http_version = self.parser.get_http_version()
        scope = self._new_scope(http_version)
        self.scope = scope  # type: ignore[assignment]  # a MutableMapping to Starlette
        if self.parser.should_upgrade() and self._should_upgrade():
            return
        answer = Answer(
            scope,
            self.transport,
            self.flow,
            default_headers=self.server_state.default_headers,
            expects_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
            logger=self.logger,
            loop=self.loop,
        )
        scope["extensions"] = {
            BODY_PART: {"write": answer.write_part},
            CONNECTION: {"watch": self._watch},
            WHOLE_BODY: {"take": answer.take_body},
        }
        before, self.cycle = self.cycle, answer  # type: ignore[assignment]
        app = _REFUSE_ONE_MORE if self._is_one_too_many() else self.app
        if before is None or before.response_complete:  # type: ignore[redundant-expr]
            self._start_asgi_task(answer, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def _new_scope(self, http_version: str) -> Scope:
        """The scope of the request whose head is complete (ASGI HTTP 2.3)."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": http_version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
            "method": self.parser.get_method().decode("ascii"),
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + url.path,
            "query_string": url.query or b"",
        }

    def _is_one_too_many(self) -> bool:
        """More connections, or requests, than the server takes."""
        limit = self.limit_concurrency
        if limit is None or (len(self.connections) < limit and len(self.tasks) < limit):
            return False
        self.logger.warning("Exceeded concurrency limit.")
        return True

    @override
    def on_message_complete(self) -> None:
        """The body is complete; the bytes that follow are the head of another request."""
        self._reading_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _watch(self, when_lost: Callable[[], None] | None) -> None:
        """`gateway.api.connection.Watch`: requests of one connection come one after the other."""
        self._when_lost = when_lost
        if self._is_lost and when_lost is not None:
            when_lost()

    @override
    def _start_asgi_task(self, cycle: Answer, app: ASGI3Application) -> None:  # type: ignore[override]
        """Once all of the read is parsed, for the body may be in it, and at once: what is asked of
        a backend must not wait until the loop has heard everybody else.
        """
        self._under_way = cycle
        self._to_begin = cycle, app
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        """An answer that is complete already lets the next one begin, here and not within it."""
        self._is_busy = True
        while (waiting := self._to_begin) is not None:
            self._to_begin = None
            answer, app = waiting
            task = eager.start(answer.run_asgi(app))  # type: ignore[arg-type]
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        self._is_busy = False

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        if self.transport.is_closing():
            return
        # In the middle of another answer it would be a part of that.
        if self._under_way is None or not self._under_way.is_midway:
            self.transport.write(refusal(status, message))
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def bounded(head_bytes_max: int, head_timeout_s: float) -> type[BoundedHeadProtocol]:
    """The protocol class with these bounds: uvicorn wants a class."""
    bounds = {"head_bytes_max": head_bytes_max, "head_timeout_s": head_timeout_s}
    return type("BoundedHeadProtocol", (BoundedHeadProtocol,), bounds)


async def _refuse_one_more(_scope: Scope, _receive: Receive, send: Send) -> None:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers, body = _refusal(status, BUSY, type=SERVER_ERROR, code=OVERLOADED)
    headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_REFUSE_ONE_MORE: Final = cast("ASGI3Application", _refuse_one_more)


def refusal(status: HTTPStatus, message: str) -> bytes:
    """An answer to what is no request, after which the connection is closed."""
    headers, body = _refusal(status, message, type=INVALID_REQUEST, code=None)
    lines = [f"HTTP/1.1 {status} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*lines, b"", body])


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
