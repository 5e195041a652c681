"""Bearer key → Principal, before any route that needs one.

A connection outlives what was known when it was opened, so its requests ask again:
`scope["authenticate"]` returns the principal of its key as it is now.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.api.connection import connection_of
from gateway.api.urls import is_served, path_of
from gateway.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.services.access import Access

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""What an orchestrator asks, and must be told however busy the process is."""
PUBLIC_PATHS: Final = PROBES | {"/", "/version", "/metrics", "/openapi.json", "/docs"}
"""What an operator's tools, and whoever looks for the way in, read without a key."""


class Authentication:
    """Puts the caller's `Principal` into `scope["principal"]`, or answers 401.

    Who asks without a key for what is not there is told that: it takes no key to read the routes.
    """

    def __init__(self, app: ASGIApp, access: Access, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._access = access
        self._routes = routes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Nearly always the key is known, and there is nothing to wait for. Raises what
        `authenticate` does, then or when it is awaited.
        """
        if scope["type"] not in {"http", "websocket"} or scope["path"] in PUBLIC_PATHS:
            return self._app(scope, receive, send)
        secret = _bearer_key(scope)
        if secret is None:
            return self._answer_anybody(scope, receive, send)
        if scope["type"] == "websocket":
            scope["authenticate"] = partial(self._access.authenticate, secret)
        principal = self._access.known(secret)
        if principal is None:
            return self._ask(secret, scope, receive, send)
        scope["principal"] = principal
        _trust(scope)
        return self._app(scope, receive, send)

    def _answer_anybody(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if is_served(path_of(scope), self._routes):
            raise AuthenticationError(
                "You didn't provide an API key. Send it in the Authorization header, as in "
                "'Authorization: Bearer YOUR_KEY'."
            )
        return self._app(scope, receive, send)

    async def _ask(self, secret: str, scope: Scope, receive: Receive, send: Send) -> None:
        scope["principal"] = await self._access.authenticate(secret)
        _trust(scope)
        await self._app(scope, receive, send)


def _trust(scope: Scope) -> None:
    """Tell the server that the client has shown a valid API key."""
    connection = connection_of(scope)
    if connection is not None:
        connection.trust()


def _bearer_key(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                return str(key.strip())
    return None
