"""Answer browsers that ask whether a page of another origin may call (CORS).

The rules are at https://fetch.spec.whatwg.org/#http-cors-protocol. Starlette's middleware answers.
It stands before everything else, so that the page can read refusals, too, and only where origins
are allowed: others do not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.middleware.cors import CORSMiddleware

from gateway.limits.headers import LIMIT_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp

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


def cross_origin(app: ASGIApp, origins: Sequence[str], *, max_age_s: int = MAX_AGE_S) -> ASGIApp:
    """Wrap the application in CORS for these origins; `*` is any. `max_age_s` is the preflight
    cache.

    All headers are allowed: the SDKs send some twenty (`x-stainless-…`), and more with each
    release. Credentials of the browser are not: a page needs a key or a token, which protects the
    API.
    """
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),
        expose_headers=EXPOSED,
        max_age=max_age_s,
    )
