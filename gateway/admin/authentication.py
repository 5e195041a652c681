"""Authentication on the admin listener: an admin key for its tenant, an operator's key for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.admin.routes import OPERATOR_BASE
from gateway.api.access.authentication import (
    ADMIN_PATHS,
    check_address,
    check_named,
    credentials_of,
    require_admin,
)
from gateway.api.client_connection import connection_of
from gateway.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.admin.operator_keys import Operators
    from gateway.api.access.authentication import Credentials
    from gateway.services.access import Access
    from gateway.tenancy import Network

PUBLIC_PATHS: Final = frozenset(
    {"/healthz", "/readyz", "/version", "/metrics", "/openapi.json", "/docs"}
)
"""Paths that orchestrators, scrapers and browsers request without a key."""


class AdminAuthentication:
    """ASGI middleware of the admin listener: puts a `Principal` or an `Operator` into the scope."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        operators: Operators,
        *,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._app = app
        self._access = access
        self._operators = operators
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            given = credentials_of(scope)
            if given.secret is None:
                raise AuthenticationError(
                    "You didn't provide a key. Send an admin key, or an operator's, in the "
                    "Authorization header, as in 'Authorization: Bearer YOUR_KEY'."
                )
            if scope["path"].startswith(f"{OPERATOR_BASE}/"):
                scope["operator"] = await self._operators.authenticate(given.secret)
            else:
                await self._admit(scope, given, given.secret)
            if (connection := connection_of(scope)) is not None:
                connection.trust()
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, given: Credentials, secret: str) -> None:
        principal = self._access.known(secret) or await self._access.authenticate(secret)
        if scope["path"].startswith(ADMIN_PATHS):
            require_admin(principal)
        check_named(principal, given)
        if principal.key.networks:
            check_address(principal, scope, self._trusted_proxies)
        scope["principal"] = principal
        scope["dialect"] = "openai"
