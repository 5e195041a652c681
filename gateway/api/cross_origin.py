"""Answer browsers that ask whether a page of another origin may call (CORS).

The rules are at https://fetch.spec.whatwg.org/#http-cors-protocol; Starlette's middleware has them.
It stands before everything else, so that the page can read refusals, too, and only where origins
are allowed: others do not pay for it. Only preflights are answered within the request context: they
have an id, a line in the log and the envelope of errors like all requests.
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
"""Headers that a page can read beside those that it always can: the SDKs retry by some of them."""
MAX_AGE_S: Final = 600
"""For which browsers remember that they may."""


class CrossOrigin(CORSMiddleware):
    """Adds the headers with which pages of these origins can read answers; `*` is any origin.

    All headers are allowed: the SDKs send some twenty (`x-stainless-…`), and more with each
    release. Credentials of the browser are not: a page needs a key or a token, which protects the
    API.
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
        """Return `app` behind the answers to preflights; it stands within the request context."""

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
