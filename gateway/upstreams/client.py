"""The one place that builds an HTTP client, and decides which headers may leave the gateway."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Final

import httpx2

from gateway import __version__
from gateway.upstreams.transport import HttptoolsTransport

if TYPE_CHECKING:
    import ssl

    from gateway.upstreams.connection import ConnectionLimits
    from gateway.upstreams.transport import KeepAlive

Client = httpx2.AsyncClient

HEADERS_ALLOWED: Final = frozenset({
    "accept",
    "accept-encoding",
    "authorization",
    "content-length",
    "content-type",
    "host",
    "user-agent",
})  # fmt: skip
"""All that a backend ever sees. X-Request-Id is not among them: vLLM lets it replace the
`request_id` of the body, and two clients may well send the same one."""


def build_client(
    *,
    keep_alive: KeepAlive,
    limits: ConnectionLimits,
    ssl_context: ssl.SSLContext | None = None,
) -> Client:
    """A client that follows no redirects, no environment variables and keeps no cookies.

    Bodies come uncompressed, so what is read is as large as what arrived. `ssl_context` is for
    `https` backends; by default the packaged certificates are trusted.
    """
    return Client(
        transport=HttptoolsTransport(keep_alive=keep_alive, limits=limits, ssl_context=ssl_context),
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


async def read_body(response: httpx2.Response, bytes_max: int) -> bytes:
    """At most the first `bytes_max` bytes of a streamed response's body."""
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) >= bytes_max:
            break
    return bytes(body[:bytes_max])


async def _drop_other_headers(request: httpx2.Request) -> None:
    for name in request.headers.keys() - HEADERS_ALLOWED:
        del request.headers[name]
