"""The HTTP client of backends: keep-alive connections, made for long streams of small chunks.

Reading such a stream through httpx2's own transport costs five to ten times the CPU.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import httpx2
from typing_extensions import override

from gateway import __version__
from gateway.concurrency import start_task
from gateway.telemetry.trace_context import CURRENT
from gateway.upstreams.backend import DP_RANK
from gateway.upstreams.http.connection import BodyListener, Connection, ConnectionLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping, Sequence

    from gateway.upstreams.http.connection import HttpTimeouts


ON_SENT: Final[ContextVar[Callable[[], None] | None]] = ContextVar("on_sent", default=None)
"""Called when a request of this context has a connection, and is about to be sent."""
LOOKUP_LATE_S: Final = 1.0
"""After this the last addresses are used: a late name server must not take a backend away."""
LOOKUP_KEPT_S: Final = 300.0
"""How long they may stand in: in the end a pod's address is another pod's."""
SHARES_MAX: Final = 4
"""Parts of the time to connect that the addresses of one name share."""
_DRAINED_BYTES_MAX: Final = 64 * 1024
"""After the last id come the counts of tokens and little else."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN_IN_HEADERS = frozenset(b"\r\n\0")


@dataclass(frozen=True, slots=True)
class KeepAlivePolicy:
    """Bounds per origin. Where `expiry_s` is not below that of backends (uvicorn: 5 seconds),
    requests race with their closing of idle connections.
    """

    connections_max: int = 2048
    idle_max: int = 64
    expiry_s: float = 4.0


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class HttptoolsTransport(httpx2.AsyncBaseTransport):
    """Keep-alive pool of HTTP/1.1 connections.

    Beyond `connections_max` PoolTimeout is raised: a second queue here would only hide the load. A
    request on a kept connection that turns out closed, without one byte in answer, is sent once
    more on a new one. If none can be made it was lost: perhaps the server died of it.
    """

    def __init__(
        self,
        *,
        keep_alive: KeepAlivePolicy,
        limits: ConnectionLimits,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._keep_alive = keep_alive
        self._limits = limits
        self._ssl_context = ssl_context
        self._origins: dict[_Origin, OriginPool] = {}

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self.origin(request.url).deliver(
            await _encode(request), timeouts=request.extensions.get("timeout", {})
        )
        return httpx2.Response(
            answer.status,
            # httpx2 looks where a redirect leads, and raises ValueError for `//:80`.
            headers=[one for one in answer.headers if one[0].lower() != b"location"],
            stream=answer.body,
            extensions={"http_version": b"HTTP/1.1", "body": answer.body},
        )

    @override
    async def aclose(self) -> None:
        for pool in self._origins.values():
            await pool.aclose()

    def origin(self, url: httpx2.URL) -> OriginPool:
        """Return the connections to the origin of `url`. Raises `UnsupportedProtocol`."""
        if url.scheme not in _DEFAULT_PORTS:
            raise httpx2.UnsupportedProtocol(f"scheme {url.scheme!r} is not http or https")
        origin = _origin_of(url)
        pool = self._origins.get(origin)
        if pool is None:
            pool = OriginPool(origin, self._keep_alive, self._limits, self._tls(origin))
            self._origins[origin] = pool
        return pool

    async def forget(self, url: httpx2.URL) -> None:
        pool = self._origins.pop(_origin_of(url), None)
        if pool is not None:
            await pool.aclose()

    def _tls(self, origin: _Origin) -> ssl.SSLContext | None:
        if origin.scheme == "http":
            return None
        if self._ssl_context is None:
            self._ssl_context = httpx2.create_ssl_context(trust_env=False)
        return self._ssl_context


def _origin_of(url: httpx2.URL) -> _Origin:
    return _Origin(url.scheme, url.host, url.port or _DEFAULT_PORTS[url.scheme])


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class HttpAnswer(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: ResponseBody


class AnswerListener(BodyListener, Protocol):
    """Listener that gets the connection before each attempt to send the request."""

    def attach(self, body: ResponseBody, /) -> None: ...


class OriginPool:
    def __init__(
        self,
        origin: _Origin,
        keep_alive: KeepAlivePolicy,
        limits: ConnectionLimits,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._origin = origin
        self._keep_alive = keep_alive
        self._limits = limits
        self._ssl_context = ssl_context
        self._is_address = _is_address(origin.host)
        self._lookup: asyncio.Task[None] | None = None
        self._last_addresses: list[str] = []
        self._looked_up_at = 0.0
        """Time by the loop's clock."""
        self._connecting = 0
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the longest idle one first
        self._closed = False

    async def deliver(
        self, message: bytes, *, timeouts: HttpTimeouts, listener: AnswerListener | None = None
    ) -> HttpAnswer:
        """Send a whole request and return its answer. Raises `TransportError`.

        `listener` gets the body of a 200; then this returns only at `wake` of the connection, or
        its end.
        """
        lost: httpx2.TransportError | None = None
        kept = self.take_idle()
        if kept is not None:
            body = ResponseBody(kept, timeouts, self.release)
            exchanging = _exchange(body, message, timeouts, listener)
            del message  # a long prompt takes a megabyte, and a generation takes minutes
            try:
                return await exchanging
            except (httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
                if kept.answered or kept.hung_up:
                    raise
                message = kept.take_back()
                lost = error
        try:
            fresh = await self.connect(timeouts)
        except httpx2.TransportError as error:
            raise lost or error from error
        body = ResponseBody(fresh, timeouts, self.release)
        exchanging = _exchange(body, message, timeouts, listener)
        del message
        return await exchanging

    def take_idle(self) -> Connection | None:
        # The connection that was used last is the least likely to be closed soon.
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                return connection
        return None

    async def connect(self, timeouts: HttpTimeouts) -> Connection:
        """Open a connection. Raises PoolTimeout, ConnectTimeout or ConnectError."""
        if len(self._open) + self._connecting >= self._keep_alive.connections_max:
            raise httpx2.PoolTimeout(
                f"all {self._keep_alive.connections_max} connections to "
                f"{self._origin.host}:{self._origin.port} are in use"
            )
        self._connecting += 1
        addresses: list[str] = []
        connect_s = timeouts.get("connect")
        try:
            async with asyncio.timeout(connect_s):
                *others, last = addresses = await self._addresses()
                share_s = connect_s and connect_s / min(len(addresses), SHARES_MAX)
                connection = await self._connect_to_any(others, share_s)
                connection = connection or await self._connect_to(last)
        except TimeoutError as error:
            why = "backend does not accept the connection" if addresses else "name server is silent"
            raise httpx2.ConnectTimeout(why) from error
        # ssl.SSLError and socket.gaierror are OSErrors; what is no host or port raises others.
        except (OSError, UnicodeError, OverflowError) as error:
            raise httpx2.ConnectError(str(error)) from error
        finally:
            self._connecting -= 1
        if self._closed or not connection.usable:
            connection.abort()
            raise httpx2.ConnectError("connection was closed as soon as it was made")
        self._open.add(connection)
        return connection

    async def _addresses(self) -> list[str]:
        # All connections that are made at one time share a lookup: the loop has few threads for
        # them (uvloop four), and each is taken for seconds if a packet to the name server is lost.
        if self._is_address:
            return [self._origin.host]
        if self._lookup is None or self._lookup.done():
            self._lookup = start_task(self._look_up())
        task, lookup = asyncio.current_task(), self._lookup
        assert task is not None, "it runs in one"
        age_s = asyncio.get_running_loop().time() - self._looked_up_at
        may_stay = bool(self._last_addresses) and age_s < LOOKUP_KEPT_S
        try:
            async with asyncio.timeout(LOOKUP_LATE_S if may_stay else None):
                await asyncio.shield(lookup)
        except asyncio.CancelledError as error:
            if not lookup.cancelled() or task.cancelling():
                raise
            raise httpx2.ConnectError("backend is not used any more") from error
        except (TimeoutError, socket.gaierror) as error:
            is_unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
            if is_unknown or not may_stay:
                raise
        return self._last_addresses

    async def _look_up(self) -> None:
        # One that is late for those who wait is in time for the next ones.
        loop, (_, host, port) = asyncio.get_running_loop(), self._origin
        rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._last_addresses = list(dict.fromkeys(str(address[0]) for *_, address in rows))
        self._looked_up_at = loop.time()

    async def _connect_to_any(
        self, addresses: Sequence[str], share_s: float | None
    ) -> Connection | None:
        # An address of a machine that is gone may refuse, or never answer.
        for address in addresses:
            with suppress(OSError):
                async with asyncio.timeout(share_s):
                    return await self._connect_to(address)
        return None

    async def _connect_to(self, address: str) -> Connection:
        loop, tls = asyncio.get_running_loop(), self._ssl_context
        _, connection = await loop.create_connection(
            lambda: Connection(loop, self._limits, self._forget),
            address,
            self._origin.port,
            ssl=tls,
            server_hostname=None if tls is None else self._origin.host,
        )
        return connection

    def release(self, connection: Connection) -> None:
        """Keep the connection for the next request, if it can be used again."""
        if not connection.finish():
            return
        if len(self._idle) >= self._keep_alive.idle_max:
            connection.abort()
            return
        self._idle[connection] = None
        connection.rest(self._keep_alive.expiry_s)

    async def aclose(self) -> None:
        self._closed = True
        if self._lookup is not None:
            self._lookup.cancel()
        connections = list(self._open)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.lost

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)


class ResponseBody(httpx2.AsyncByteStream):
    """Body as it arrives: one item is all that came since the last one."""

    def __init__(
        self, connection: Connection, timeouts: HttpTimeouts, release: Callable[[Connection], None]
    ) -> None:
        self.connection = connection
        self.timeouts = timeouts
        self._release: Callable[[Connection], None] | None = release

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._release is None:
            raise httpx2.StreamClosed
        data = await self.connection.read(self.timeouts)
        if not data:
            raise StopAsyncIteration
        return data

    @override
    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back; aborted without the end of the body."""
        release, self._release = self._release, None
        if release is not None:
            release(self.connection)

    def drain(self, seconds: float) -> None:
        """Give the connection back after the rest of the body, or after `seconds`."""
        if self.connection.has_all:
            self.close()
            return
        release, self._release = self._release, None
        if release is not None:
            self.connection.wait_until(asyncio.get_running_loop().time() + seconds)
            self.connection.pour(_Drain(self.connection, release))


class _Drain:
    def __init__(self, connection: Connection, release: Callable[[Connection], None]) -> None:
        self._connection = connection
        self._release = release
        self._left_bytes = _DRAINED_BYTES_MAX

    def take(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._connection.abort()

    def end(self, _error: httpx2.TransportError | None) -> None:
        self._release(self._connection)


async def _exchange(
    body: ResponseBody, message: bytes, timeouts: HttpTimeouts, listener: AnswerListener | None
) -> HttpAnswer:
    connection = body.connection
    if listener is not None:
        listener.attach(body)
    if (on_sent := ON_SENT.get()) is not None:
        on_sent()
    try:
        await connection.send(message, timeouts)
        del message  # the connection has it, as long as it may be needed
        status, headers = await connection.head(timeouts, listener)
    except BaseException:
        body.close()
        raise
    return HttpAnswer(status, headers, body)


async def _encode(request: httpx2.Request) -> bytes:
    # In one piece: bodies are ids in JSON, a few MB at most.
    if request.method in {"HEAD", "CONNECT"}:
        raise httpx2.LocalProtocolError(f"method {request.method} is not supported")
    if not isinstance(request.stream, httpx2.AsyncByteStream):
        raise httpx2.LocalProtocolError("the body must be asynchronous")
    body = b"".join([part async for part in request.stream])
    head = encoded_head(request)
    if body or request.method not in {"GET", "DELETE"}:
        head += b"Content-Length: %d\r\n" % len(body)
    return b"".join((head, b"\r\n", body))


def encoded_head(request: httpx2.Request) -> bytes:
    """Return the head up to the body's length. Raises `LocalProtocolError`."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if not _FORBIDDEN_IN_HEADERS.isdisjoint(name + value):
            raise httpx2.LocalProtocolError(f"header {name!r} holds a line break")
        if name.lower() not in {b"content-length", b"transfer-encoding"}:
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join([*lines, b""])


HEADERS_ALLOWED: Final = frozenset({
    "accept",
    "accept-encoding",
    "authorization",
    "content-length",
    "content-type",
    "host",
    "traceparent",
    "tracestate",
    "user-agent",
    DP_RANK,
})  # fmt: skip
"""Not X-Request-Id: vLLM lets it replace the `request_id` of the body, and clients may repeat
it."""


class Client(httpx2.AsyncClient):
    def __init__(self, transport: HttptoolsTransport) -> None:
        super().__init__(
            transport=transport,
            headers={
                "user-agent": f"harmony-gateway/{__version__}",
                "accept": "*/*",
                "accept-encoding": "identity",
            },
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
            follow_redirects=False,
            event_hooks={"request": [_drop_other_headers]},
        )
        self.transport = transport


class Post:
    """`POST` to one URL with a head that is made once: the client takes twenty times as long."""

    def __init__(self, client: Client, url: httpx2.URL, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._head = b""
        self._origin: OriginPool | None = None

    def __call__(
        self,
        body: Sequence[bytes],
        *,
        timeouts: HttpTimeouts,
        listener: AnswerListener | None = None,
    ) -> Coroutine[object, object, HttpAnswer]:
        if self._origin is None:
            self._head = self._new_head()
            self._origin = self._client.transport.origin(self._url)
        length = b"Content-Length: %d\r\n\r\n" % sum(map(len, body))
        if (span := CURRENT.get()) is not None:
            length = _encode_headers(span.headers) + length
        message = b"".join((self._head, length, *body))
        return self._origin.deliver(message, timeouts=timeouts, listener=listener)

    def _new_head(self) -> bytes:
        request = self._client.build_request("POST", self._url, headers=self._headers)
        _keep_allowed(request)
        return encoded_head(request)


def _encode_headers(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


_KEEP_ALIVE: Final = KeepAlivePolicy()
_LIMITS: Final = ConnectionLimits()


def build_client(
    *,
    keep_alive: KeepAlivePolicy = _KEEP_ALIVE,
    limits: ConnectionLimits = _LIMITS,
    ssl_context: ssl.SSLContext | None = None,
) -> Client:
    return Client(HttptoolsTransport(keep_alive=keep_alive, limits=limits, ssl_context=ssl_context))


async def read_body(parts: AsyncIterable[bytes], bytes_max: int) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) >= bytes_max:
            break
    return bytes(body[:bytes_max])


async def _drop_other_headers(request: httpx2.Request) -> None:
    _keep_allowed(request)


def _keep_allowed(request: httpx2.Request) -> None:
    for name in request.headers.keys() - HEADERS_ALLOWED:
        del request.headers[name]
