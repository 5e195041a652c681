"""CORS (https://fetch.spec.whatwg.org/#http-cors-protocol), only installed if origins are allowed.

It is outermost, so that pages can read refusals, but preflights are answered within the request
context, which gives them an id, a log line and error envelopes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from typing_extensions import override

from gateway.errors import InvalidRequest
from gateway.limits.headers import LIMIT_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

METHODS: Final = ("GET", "HEAD", "POST", "DELETE")
EXPOSED: Final = (
    *("x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "openai-organization"),
    *("openai-processing-ms", "openai-version", "x-ignored-parameters", "www-authenticate"),
    *("x-gateway-dropped-tools", "x-gateway-dropped-input", "x-gateway-response-id"),
    *("idempotent-replayed", "allow", "accept-encoding", "content-disposition"),
    *(name.decode() for name in LIMIT_HEADERS),
)
"""Readable for pages beside the safelisted ones; the SDKs retry by some of them."""
MAX_AGE_S: Final = 600


class CrossOrigin(CORSMiddleware):
    """Middleware that lets pages of these origins read answers; `*` is any origin.

    All headers are allowed: the SDKs send some twenty (`x-stainless-…`), and more with each
    release. Browser credentials are not: a page needs a key or a token.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            expose_headers=EXPOSED,
            max_age=MAX_AGE_S,
        )

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            await self.simple_response(scope, receive, send, request_headers=headers)
        else:
            await self.app(scope, receive, send)

    def with_preflights(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "OPTIONS":
                await app(scope, receive, send)
                return
            headers = Headers(scope=scope)
            if "origin" not in headers or "access-control-request-method" not in headers:
                await app(scope, receive, send)
                return
            response = self.preflight_response(headers)
            if response.status_code != 200:
                raise InvalidRequest(
                    f"{bytes(response.body).decode()}. The operator of this server allows origins "
                    f"with the setting `server.cors_origins`; methods are {', '.join(METHODS)}."
                )
            await response(scope, receive, send)

        return answer
