"""Listening process.

uvicorn's phases are called one by one, so that several servers can share a loop (the demo) and a
failed start is an exception and not a traceback in the log.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import uvicorn
from typing_extensions import override

from gateway.errors import StartupError
from gateway.server.http_protocol import bounded, room
from gateway.server.websocket_protocol import TOLERATED, BoundedWebSocketProtocol
from gateway.settings.http_urls import listener_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.settings import Server as ServerSettings
    from gateway.settings import Settings

BACKLOG_MAX: Final = 2048
_REASONS = {
    errno.EADDRINUSE: "something else is listening there",
    errno.EACCES: "this user may not listen there",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


class PortTaken(StartupError):
    """Another process listens on the port."""


def listen(
    host: str,
    port: int,
    backlog: int = BACKLOG_MAX,
    *,
    set_by: tuple[str, str] = ("--host", "--port"),
) -> socket.socket:
    """Return a listening socket. `set_by`: options of host and port, for the error message."""
    host_by, port_by = set_by
    remedy = f"Choose another with {port_by}, or end what listens there."
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:  # the latter of an empty or long label
        raise StartupError(
            f"cannot listen on {host}: {getattr(error, 'strerror', error)}",
            remedy=f"Give an address of this machine with {host_by}, such as 127.0.0.1 or 0.0.0.0.",
        ) from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        reason = _REASONS.get(error.errno or 0, error.strerror)
        kind_of = PortTaken if error.errno == errno.EADDRINUSE else StartupError
        raise kind_of(f"cannot listen on {host}:{port}: {reason}", remedy=remedy) from error
    listener.settimeout(0)
    return listener


FORCED_END_S = 1.0
"""Seconds the application may take to end after a second signal."""
ACCEPT_TURNS = 4
"""Turns of the loop, to accept a waiting connection and make its protocol."""
TICK_S = 0.1
"""Interval in seconds, as in uvicorn's own loop."""
DATE_TICK_S = 1.0
"""Dates in answers have no parts of a second."""


class DrainableApp(Protocol):
    async def begin_drain(self) -> None:
        """Return when other replicas have taken over the work that they can."""

    def end_streams(self) -> None:
        """End streams that clients can continue elsewhere."""


class Lifespan:
    """Lifespan of an application, and the error that ended it."""

    def __init__(self, app: ASGIApp, failed: Callable[[], None]) -> None:
        # `failed` is called when the application ends by an error.
        self._app = app
        self._failed = failed
        self.failure: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Requests that come before the server has started are passed on.
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_without_traceback(message: Message) -> None:
            await send({"type": message["type"]})

        try:
            await self._app(scope, receive, send_without_traceback)
        except BaseException as error:
            self.failure = error
            self._failed()
            raise


class Server(uvicorn.Server):
    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        settings: ServerSettings,
        draining: DrainableApp | None = None,
        *,
        websockets: Settings | None = None,
    ) -> None:
        # `draining` is notified when the server stops. WebSockets are served within the bounds of
        # `websockets` (None: they are not). They are not compressed, because the size of compressed
        # data reveals its content.
        self._stopping = asyncio.Event()
        self._app = app
        self._lifespan_of_app = Lifespan(app, self._stop)
        self._listener = listener
        self._draining = draining
        self._drain_notice_s = settings.drain_notice_s
        self._protocol = bounded(settings, time.monotonic)
        super().__init__(
            uvicorn.Config(
                self._lifespan_of_app,
                interface="asgi3",
                http=self._protocol,
                **_websockets(websockets),
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=True,
                backlog=BACKLOG_MAX,
                timeout_keep_alive=settings.keepalive_timeout_s,
                timeout_graceful_shutdown=settings.drain_grace_s,
            )
        )

    @property
    def url(self) -> str:
        return listener_url(*self._listener.getsockname()[:2])

    def follow(self, settings: Settings) -> None:
        self._protocol.admission.room = room(settings.server)
        self.config.ws_max_size = _frame_bytes_max(settings)

    async def __aenter__(self) -> Self:
        # Raises what the application's lifespan raised.
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        try:
            await self.startup(sockets=[self._listener])
        except SystemExit as exit_:
            self._listener.close()
            raise self._lifespan_of_app.failure or exit_ from None
        self.config.loaded_app = self._app  # requests need not pass through the lifespan's wrapper
        await self.on_tick(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drain, stop accepting, let responses finish, end the application.

        After a second signal uvicorn would leave its lifespan open, and the database with half-open
        connections.
        """
        try:
            await self._drain()
        finally:
            await self._stop_accepting()
            await self.shutdown(sockets=[self._listener])
        if self.force_exit:
            with suppress(TimeoutError):
                async with asyncio.timeout(FORCED_END_S):
                    await self.lifespan.shutdown()
        if self._lifespan_of_app.failure is not None:
            raise self._lifespan_of_app.failure

    @override
    async def main_loop(self) -> None:
        # uvicorn's own loop wakes ten times a second.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_TICK_S):
                    await self._stopping.wait()

    async def _drain(self) -> None:
        # Requests are still accepted, until others have taken over and for the notice that load
        # balancers get.
        if self._draining is None or self._lifespan_of_app.failure is not None:
            return
        clock = asyncio.get_running_loop().time
        until = clock() + self._drain_notice_s
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(self._draining.begin_drain())
            while not self.force_exit and (not leaving.done() or clock() < until):
                await self.on_tick(0)
                if leaving.done():
                    await asyncio.sleep(min(TICK_S, until - clock()))
                else:
                    await asyncio.wait([leaving], timeout=TICK_S)
            leaving.cancel()
        self._draining.end_streams()

    async def _stop_accepting(self) -> None:
        # Closing a socket resets the connections in its backlog, and asyncio drops those that it
        # accepts in the turn in which it closes a server. A proxy may not retry either kind.
        loop = asyncio.get_running_loop()
        await _turns(ACCEPT_TURNS)
        for server in self.servers:
            for listener in server.sockets:
                loop.remove_reader(listener.fileno())
        await _turns(ACCEPT_TURNS)

    def _stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @override
    def handle_exit(self, sig: int, frame: Any = None) -> None:
        # The second signal stops at once.
        self.force_exit = self.should_exit
        self._stop()


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _websockets(settings: Settings | None) -> dict[str, Any]:
    if settings is None:
        return {"ws": "none"}
    ping_interval_s = settings.websockets.ping_interval_s
    return {
        "ws": BoundedWebSocketProtocol,
        "ws_max_size": _frame_bytes_max(settings),
        "ws_ping_interval": ping_interval_s,
        "ws_ping_timeout": ping_interval_s,
        "ws_per_message_deflate": False,
    }


def _frame_bytes_max(settings: Settings) -> int:
    return TOLERATED * settings.limits.body_bytes_max


@contextmanager
def stopped_by_signals(*servers: Server) -> Iterator[None]:
    """Stop the servers at SIGINT and SIGTERM; at once at a second signal."""
    loop = asyncio.get_running_loop()

    def stop(sig: int) -> None:
        for server in servers:
            server.handle_exit(sig)

    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop, sig)
    try:
        yield
    finally:
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sig)


async def until_stopped(*servers: Server) -> None:
    async with asyncio.TaskGroup() as group:
        for server in servers:
            group.create_task(server.main_loop())
