"""The one door through which tools reach the network, without cookies, credentials or a proxy of
the environment. The only encoding is identity: counted bytes are kept bytes.

JSON values outside of strings are counted: a megabyte of text is parsed in a few milliseconds, one
of brackets in most of a second, and the process does nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, cast

import httpcore2
import httpx2
from typing_extensions import override

from gateway.tools.tool_contract import note_reached

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

    from gateway.tools.egress.network_policy import NetworkPolicy


_STRING: Final = re.compile(rb'"(?:[^"\\\n]|\\[^\n])*+["\n]')
"""A line end closes any string: JSON has none in strings."""
_REST: Final = re.compile(rb'(?:[^"\\\n]|\\[^\n])*+')
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")


class ValueCount:
    """Count of JSON values in one body, or in each event of a stream."""

    def __init__(self, *, is_stream: bool) -> None:
        self.count = 0
        """Commas, and brackets and braces that open, outside of strings."""
        self._is_stream = is_stream
        self._held: bytes | None = None
        """Bytes to look at again, inside of a string; None: outside."""
        self._ends_line = False

    def add(self, part: bytes) -> int:
        """Return the total so far; in a stream, that of its largest event."""
        if self._is_stream and self._ends_line and part.startswith((b"\n", b"\r\n")):
            self.count, self._held = 0, None
        self._ends_line = part.endswith(b"\n")
        most = 0
        for number, piece in enumerate(_BLANK_LINE.split(part) if self._is_stream else (part,)):
            if number:
                self.count, self._held = 0, None
            self._add(piece)
            most = max(most, self.count)
        return most

    def _add(self, part: bytes) -> None:
        if self._held is not None:
            part = self._held + part
            end = _end_of_string(part)
            if end == len(part) or part[end:] == b"\\":
                self._held = part[end:]
                return
            part = part[end + 1 :]
        self._held = None
        bare = _STRING.sub(b"", part)
        begin = bare.find(b'"')
        if begin >= 0:
            self._held = bare[begin + 1 :][_end_of_string(bare[begin + 1 :]) :]
            bare = bare[:begin]
        self.count += bare.count(b",") + bare.count(b"[") + bare.count(b"{")


def _end_of_string(part: bytes) -> int:
    match = _REST.match(part)
    assert match is not None, "it matches the empty text"
    return match.end()


ADDRESSES_MAX: Final = 4
"""Addresses of one name."""
PART_BYTES: Final = 128
"""A body may have a part for so many bytes of its bound, and `PARTS_AT_ONCE` more: to read a chunk
takes 30 us, even one of a single byte."""
PARTS_AT_ONCE: Final = 64
"""Parts before the event loop has its turn: one read may have ten thousand."""
HEAD_BYTES_MAX: Final = 128 * 1024
"""Bytes before a response begins: any number of interim ones (1xx) may precede it."""
HEAD_READ_BYTES: Final = 8 * 1024
"""Read at once meanwhile, for the same reason as `PARTS_AT_ONCE`."""
EgressClient = httpx2.AsyncClient
StatusError = httpx2.HTTPStatusError


class BodyTooLong(httpx2.StreamError):
    """Body with more bytes, parts or values than its bound."""


class EncodedBody(httpx2.StreamError):
    """A compressed body, whose size is unknown."""


EGRESS_ERRORS: Final = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError)
"""Raised by requests, beside `EgressRefused`; `ValueError` for a redirect to `//:80`."""


CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Bounds of a client. `values_max` None: JSON is not parsed as a whole."""

    body_bytes_max: int = 5 * 1024 * 1024
    values_max: int | None = None
    connections_max: int = 64
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = 10.0
    idle_s: float = 10.0


def normalised(url: str) -> str:
    """Return a URL as it is requested: host in ASCII, no default port. Raises one of
    `EGRESS_ERRORS`.
    """
    return str(httpx2.URL(url))


LOOKUPS_MAX: Final = 128
"""Whoever owns a name can hold up its lookup for ten seconds or more, twice as long as the call
waits: so twice as many as calls (`ToolLimits.running_max`)."""
_RESOLVING: Final = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="egress-resolver")
"""Own threads: a silent name server holds up only tools."""


Resolver = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""Raises `OSError`."""


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """Return all addresses of a name; also of odd spellings of IPv4 (`2130706433`, `0x7f.1`).
    Raises `OSError`.
    """
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    infos = await asyncio.get_running_loop().run_in_executor(_RESOLVING, ask)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in infos))


def client(
    policy: NetworkPolicy, limits: EgressLimits, *, resolver: Resolver = resolve
) -> httpx2.AsyncClient:
    """Create a client for one purpose, and for one set of credentials if it has any.

    A caller that follows a redirect must call `policy.redirected`.
    """
    timeout = httpx2.Timeout(limits.read_timeout_s, connect=limits.connect_timeout_s)
    return httpx2.AsyncClient(
        transport=GuardedTransport(policy, limits, resolver),
        headers={"accept-encoding": "identity"},
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
    )


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Backend that connects to an address it has checked."""

    def __init__(self, policy: NetworkPolicy, resolver: Resolver) -> None:
        self._policy = policy
        self._resolver = resolver
        self._network = httpcore2.AnyIOBackend()

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        # Raises `EgressRefused`, `httpcore2.ConnectError`, `httpcore2.ConnectTimeout`.
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolver(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout("the name was not resolved in time") from None
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError("the name could not be resolved") from error
        addresses = self._policy.checked(host, addresses, port)[:ADDRESSES_MAX]
        share_s = timeout and timeout / len(addresses)
        for address in addresses[:-1]:
            # A machine may have addresses of a family that has no way from here, or a silent one.
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return BoundedStream(
                    await self._network.connect_tcp(
                        address, port, share_s, local_address, socket_options
                    )
                )
        return BoundedStream(
            await self._network.connect_tcp(
                addresses[-1], port, timeout, local_address, socket_options
            )
        )

    @override
    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class BoundedStream(httpcore2.AsyncNetworkStream):
    """Connection on which a response has to begin within `HEAD_BYTES_MAX`."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head_left: int | None = None
        """None: the response has begun."""

    def begin_body(self) -> None:
        self._head_left = None

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head_left is None:
            return await self._stream.read(max_bytes, timeout)
        if self._head_left <= 0:
            raise httpcore2.RemoteProtocolError("the response does not begin")
        data = await self._stream.read(min(max_bytes, HEAD_READ_BYTES), timeout)
        self._head_left -= len(data)
        return data

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._head_left = HEAD_BYTES_MAX
        await self._stream.write(buffer, timeout)

    @override
    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class GuardedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, policy: NetworkPolicy, limits: EgressLimits, resolver: Resolver) -> None:
        self._policy = policy
        self._limits = limits
        self._resolver = resolver

    @cached_property
    def _pool(self) -> httpcore2.AsyncConnectionPool:
        # Created with the first request: certificates take a MiB, which an unused client saves.
        return httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=self._limits.connections_max,
            keepalive_expiry=self._limits.idle_s,
            network_backend=PinnedBackend(self._policy, self._resolver),
        )

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._policy.origin(str(request.url))
        url = request.url
        core_request = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions={
                **request.extensions,
                "trace": _Noted(url.host, request.extensions.get("trace")),
            },
        )
        with _translate_errors():
            answer = await self._pool.handle_async_request(core_request)
        answer.extensions["network_stream"].begin_body()
        headers = httpx2.Headers(answer.headers)
        stream = cast("AsyncIterable[bytes]", answer.stream)
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        body = BoundedBody(
            stream, self._limits.body_bytes_max, self._limits.values_max, is_stream=is_stream
        )
        if headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
            await body.aclose()
            raise EncodedBody("the server sent a compressed body that was not asked for")
        return httpx2.Response(
            answer.status, headers=headers, stream=body, extensions=answer.extensions
        )

    @override
    async def aclose(self) -> None:
        if "_pool" in self.__dict__:
            await self._pool.aclose()


class _Noted:
    def __init__(self, host: str, then: Callable[[str, Any], Awaitable[None]] | None) -> None:
        self._host = host
        self._then = then

    async def __call__(self, event: str, info: Any) -> None:
        if event.endswith("send_request_headers.started"):
            note_reached(self._host)
        if self._then is not None:
            await self._then(event, info)


class BoundedBody(httpx2.AsyncByteStream):
    def __init__(
        self,
        stream: AsyncIterable[bytes],
        bytes_max: int,
        values_max: int | None = None,
        *,
        is_stream: bool = False,
    ) -> None:
        self._stream = stream
        self._left = bytes_max
        self._parts_left = PARTS_AT_ONCE + bytes_max // PART_BYTES
        self._values_max = values_max
        self._values = ValueCount(is_stream=is_stream)

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for part in self._stream:
                self._parts_left -= 1
                if self._parts_left % PARTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                self._left -= len(part)
                if self._left < 0 or self._parts_left < 0:
                    raise BodyTooLong("the response is longer than tools may read")
                if self._values_max is not None and self._values.add(part) > self._values_max:
                    raise BodyTooLong("the response has more values than tools may read")
                yield part

    @override
    async def aclose(self) -> None:
        if (close := getattr(self._stream, "aclose", None)) is not None:
            await close()


_ERRORS: Final = (
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.TimeoutException, httpx2.ReadTimeout),
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.NetworkError, httpx2.ReadError),
    (httpcore2.ProtocolError, httpx2.RemoteProtocolError),
    (httpcore2.UnsupportedProtocol, httpx2.UnsupportedProtocol),
)


@contextmanager
def _translate_errors() -> Iterator[None]:
    # From httpcore2 to httpx2.
    try:
        yield
    except Exception as error:
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                raise ours(str(error) or type(error).__name__) from error
        raise
