"""The one place that builds an HTTP client, and decides which headers may leave the gateway."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Final

import httpx2

from gateway import __version__
from gateway.upstreams.http.transport import HttptoolsTransport, encoded_head

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, Coroutine, Mapping, Sequence

    from gateway.upstreams.http.connection import ConnectionLimits, HttpTimeouts
    from gateway.upstreams.http.transport import (
        AnswerListener,
        HttpAnswer,
        KeepAlivePolicy,
        OriginPool,
    )

HEADERS_ALLOWED: Final = frozenset({
    "accept",
    "accept-encoding",
    "authorization",
    "content-length",
    "content-type",
    "host",
    "user-agent",
    "x-data-parallel-rank",
})  # fmt: skip
"""All that a backend ever sees. X-Request-Id is not among them: vLLM lets it replace the
`request_id` of the body, and two clients may well send the same one."""


class Client(httpx2.AsyncClient):
    """HTTP client of backends, without redirects, environment variables and cookies."""

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
    """`POST` to one URL, again and again: the head is what the client makes of it, made once.

    For every request to merge headers, to look for cookies and to be ready for redirects takes a
    client twenty times as long as to write it, and none of the three happens here anyway.
    """

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
        """Send a request and return the answer as `OriginPool.deliver` does.

        `body` comes in pieces. Raises `TransportError`.
        """
        if self._origin is None:
            self._head = self._new_head()
            self._origin = self._client.transport.origin(self._url)
        length = b"Content-Length: %d\r\n\r\n" % sum(map(len, body))
        message = b"".join((self._head, length, *body))
        return self._origin.deliver(message, timeouts=timeouts, listener=listener)

    def _new_head(self) -> bytes:
        request = self._client.build_request("POST", self._url, headers=self._headers)
        _keep_allowed(request)
        return encoded_head(request)


def build_client(
    *,
    keep_alive: KeepAlivePolicy,
    limits: ConnectionLimits,
    ssl_context: ssl.SSLContext | None = None,
) -> Client:
    """Return a client of backends; without `ssl_context` the packaged certificates are trusted.

    Bodies are requested uncompressed, so that their size is what was received.
    """
    return Client(HttptoolsTransport(keep_alive=keep_alive, limits=limits, ssl_context=ssl_context))


async def read_body(parts: AsyncIterable[bytes], bytes_max: int) -> bytes:
    """Read at most the first `bytes_max` bytes of a body."""
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
