"""Bearer key → Principal and dialect, before any route that needs one.

A WebSocket outlives what was known when it was opened, so each of its requests asks again:
`scope["authenticate"]` returns the principal of its key as it is now.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.api.client_connection import connection_of
from gateway.api.dialects import BASE_PATH
from gateway.api.urls import is_served, path_of
from gateway.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.services.access import Access

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""What an orchestrator asks; it is answered however busy the process is."""
PUBLIC_PATHS: Final = PROBES | {"/", "/version", "/metrics", "/openapi.json", "/docs"}
"""What operators' tools and browsers read without a key."""


class Authentication:
    """ASGI middleware: puts the caller's `Principal` into `scope["principal"]` and the dialect of
    its answer into `scope["dialect"]`, tells the server to trust the client, or answers 401.

    Below `BASE_PATH` the same is served, in Open Responses whatever the key says. A request without
    a key for a path that is not served goes on, to be answered with 404.
    """

    def __init__(self, app: ASGIApp, access: Access, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._access = access
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"} and scope["path"] not in PUBLIC_PATHS:
            base = scope.get("root_path", "") + BASE_PATH
            is_below = scope["path"].startswith(f"{base}/v1/")
            if is_below:
                # Routes are looked up by what follows it; logs and errors show the whole path.
                scope["root_path"] = base
            secret = _bearer_key(scope)
            if secret is not None:
                if scope["type"] == "websocket":
                    scope["authenticate"] = partial(self._access.authenticate, secret)
                known = self._access.known(secret)
                principal = known or await self._access.authenticate(secret)
                scope["principal"] = principal
                scope["dialect"] = "openresponses" if is_below else principal.dialect
                if (connection := connection_of(scope)) is not None:
                    connection.trust()
            elif is_served(path_of(scope), self._routes):
                raise AuthenticationError(
                    "You didn't provide an API key. Send it in the Authorization header, as in "
                    "'Authorization: Bearer YOUR_KEY'."
                )
        await self._app(scope, receive, send)


def _bearer_key(scope: Scope) -> str | None:
    """The API key of the Authorization header; None without one."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                return str(key.strip())
    return None
