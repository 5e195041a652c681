"""Bearer keys, and what they may do.

A key may be disabled while its WebSocket is open, so each request over one authenticates again,
with `scope["authenticate"](scope)`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.routing import Route

from gateway import ids
from gateway.api.access.client_address import client_address, is_in
from gateway.api.client_connection import connection_of
from gateway.api.dialects import BASE_PATH
from gateway.api.urls import is_served
from gateway.errors import AuthenticationError, PermissionDenied, shown
from gateway.fair_queue import Turns
from gateway.held_bytes import FairPlaces
from gateway.limits.buckets import ReadPace
from gateway.services.executor import WORKS_FOR
from gateway.tenancy.permissions import may

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.services.access import Access
    from gateway.tenancy import Network, Principal
    from gateway.tenancy.permissions import Need


PROBES: Final = frozenset({"/healthz", "/readyz"})
EXCHANGE_PATH: Final = "/oauth/token"
"""Path without a key: the credentials are in the body."""
OPERATION_PATHS: Final = PROBES | {"/", "/version", "/metrics", "/openapi.json", "/docs"}
"""Paths of monitoring and browsers. They are no use of the API, and are not counted as such."""
PUBLIC_PATHS: Final = OPERATION_PATHS | {EXCHANGE_PATH}
ADMIN_PATHS: Final = ("/v1/organization/", "/v1/projects/")
"""Admin keys open these and nothing else."""
READS: Final = frozenset({"GET", "HEAD"})
"""Requests that count against `reads_per_minute`; no other limit counts them."""
_NO_KEY: Final = (
    "You didn't provide an API key. Send it in the Authorization header, as in "
    "'Authorization: Bearer YOUR_KEY'."
)
_NO_PLACE: Final = (
    "The server has as many requests and connections of your organization as it takes. Please "
    "retry in a moment."
)
_RESPONSE: Final = "/v1/responses/{response_id}"
_CONVERSATION: Final = "/v1/conversations/{conversation_id}"
_CONTAINER: Final = "/v1/containers/{container_id}"
NEEDS: Final[dict[tuple[str, str], Need]] = {
    ("POST", "/v1/responses"): "responses.write",
    ("WEBSOCKET", "/v1/responses"): "responses.write",
    ("POST", "/v1/responses/input_tokens"): "responses.write",
    ("POST", "/v1/responses/compact"): "responses.write",
    ("GET", _RESPONSE): "responses.read",
    ("DELETE", _RESPONSE): "responses.write",
    ("POST", f"{_RESPONSE}/cancel"): "responses.write",
    ("GET", f"{_RESPONSE}/input_items"): "responses.read",
    ("POST", "/v1/conversations"): "conversations.write",
    ("GET", _CONVERSATION): "conversations.read",
    ("POST", _CONVERSATION): "conversations.write",
    ("DELETE", _CONVERSATION): "conversations.write",
    ("GET", f"{_CONVERSATION}/items"): "conversations.read",
    ("POST", f"{_CONVERSATION}/items"): "conversations.write",
    ("GET", f"{_CONVERSATION}/items/{{item_id}}"): "conversations.read",
    ("DELETE", f"{_CONVERSATION}/items/{{item_id}}"): "conversations.write",
    ("GET", "/v1/containers"): "containers.read",
    ("POST", "/v1/containers"): "containers.write",
    ("GET", _CONTAINER): "containers.read",
    ("DELETE", _CONTAINER): "containers.write",
    ("GET", f"{_CONTAINER}/files"): "containers.read",
    ("POST", f"{_CONTAINER}/files"): "containers.write",
    ("GET", f"{_CONTAINER}/files/{{file_id}}"): "containers.read",
    ("DELETE", f"{_CONTAINER}/files/{{file_id}}"): "containers.write",
    ("GET", f"{_CONTAINER}/files/{{file_id}}/content"): "containers.read",
    ("GET", "/v1/files"): "files.read",
    ("POST", "/v1/files"): "files.write",
    ("GET", "/v1/files/{file_id}"): "files.read",
    ("DELETE", "/v1/files/{file_id}"): "files.write",
    ("GET", "/v1/files/{file_id}/content"): "files.read",
    ("POST", "/v1/chat/completions"): "models.request",
    ("POST", "/v1/completions"): "models.request",
    ("POST", "/v1/embeddings"): "models.request",
    ("POST", "/v1/rerank"): "models.request",
    ("POST", "/v1/traces/ingest"): "responses.write",
    ("GET", "/v1/codex/models"): "models.read",
    ("GET", "/v1/models"): "models.read",
    ("GET", "/v1/models/{model_id:path}"): "models.read",
    ("GET", "/v1/key"): "key.read",
}
"""Keys with scopes cannot call a route that is missing here."""


class Credentials(NamedTuple):
    secret: str | None = None
    organization: str | None = None
    project: str | None = None


class Authentication:
    """ASGI middleware that sets `scope["principal"]` and `scope["dialect"]`, or answers 401.

    Requests without a key pass if their path is not served (404), and so do CORS preflights: no
    route has the method `OPTIONS`.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        routes: Sequence[BaseRoute],
        *,
        requests_max: int,
        trusted_proxies: Sequence[Network] = (),
        reads_per_minute: int = 0,
    ) -> None:
        self._app = app
        self._access = access
        self._routes = routes
        self._trusted_proxies = trusted_proxies
        self._turns = Turns()
        self.reads = ReadPace(reads_per_minute)
        self.places = FairPlaces(requests_max, _NO_PLACE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"} and scope["path"] not in PUBLIC_PATHS:
            root = scope.get("root_path", "")
            is_below = scope["path"].startswith(f"{root}{BASE_PATH}/v1/")
            if is_below:
                # Routing uses the rest of the path; logs and errors show all of it.
                scope["root_path"] = root = root + BASE_PATH
            path = scope["path"].removeprefix(root)
            credentials = credentials_of(scope)
            if credentials.secret is not None:
                if scope["type"] == "websocket":
                    scope["authenticate"] = partial(self._reauthenticate, credentials, path)
                lookup = (credentials.secret, credentials.organization)
                cached = self._access.cached(*lookup)
                principal = cached or await self._access.authenticate(*lookup)
                self._check(principal, credentials, path, scope)
                scope["principal"] = principal
                WORKS_FOR.set(principal.tenant_id)
                scope["dialect"] = "openresponses" if is_below else principal.dialect
                with self.places.taken(principal.tenant_id):
                    # Only now: a connection without a place gives way to others.
                    if (connection := connection_of(scope)) is not None:
                        connection.trust()
                    if scope.get("method") in READS:
                        self.reads.take(principal.key_id, time.monotonic())
                    if (turn := self._turns.begin(principal.tenant_id)) is not None:
                        await turn
                    await self._app(scope, receive, send)
                return
            if scope.get("method") != "OPTIONS" and is_served(path, self._routes):
                raise AuthenticationError(_NO_KEY)
        await self._app(scope, receive, send)

    async def _reauthenticate(self, credentials: Credentials, path: str, scope: Scope) -> Principal:
        assert credentials.secret is not None, "it was opened with one"
        principal = await self._access.authenticate(credentials.secret, credentials.organization)
        self._check(principal, credentials, path, scope)
        return principal

    def _check(
        self, principal: Principal, credentials: Credentials, path: str, scope: Scope
    ) -> None:
        key = principal.key
        if path.startswith(ADMIN_PATHS) and is_served(path, self._routes):
            require_admin(principal)
        elif key.kind != "project":
            raise AuthenticationError(
                "This is an admin key: it opens the admin API (/v1/organization) alone. Use a key "
                "of a project.",
                code="invalid_api_key",
            )
        elif key.scopes:
            method = scope.get("method", "WEBSOCKET")
            check_scopes(key.scopes, method, path, self._routes)
        if credentials.organization is not None or credentials.project is not None:
            check_named(principal, credentials)
        if key.networks:
            check_address(principal, scope, self._trusted_proxies)


def require_admin(principal: Principal) -> None:
    if principal.credential != "key":
        raise AuthenticationError(
            "This token opens the API of its project alone. Use an admin key.",
            code="invalid_api_key",
        )
    if principal.key.kind != "admin":
        raise PermissionDenied(
            "You have insufficient permissions for this operation: it takes an admin key, and this "
            "is a key of a project. An owner makes one with POST "
            "/v1/organization/admin_api_keys.",
            code="insufficient_permissions",
        )


def check_named(principal: Principal, credentials: Credentials) -> None:
    """Refuse headers that do not match the key. They select nothing: a key belongs to one project,
    and for a token the organization was already used to find the tenant.
    """
    tenants = {ids.tenant_id(principal.tenant_id), principal.tenant_name}
    if credentials.organization is not None and credentials.organization not in tenants:
        raise AuthenticationError(
            f"OpenAI-Organization header '{shown(credentials.organization)}' should match the "
            "organization of the API key. Leave it out, or use a key of that organization.",
            code="mismatched_organization",
        )
    if credentials.project is None or principal.key.kind == "admin":
        return
    if credentials.project != ids.project_id(principal.project):
        raise AuthenticationError(
            f"OpenAI-Project header '{shown(credentials.project)}' should match the project of the "
            "API key. Leave it out, or use a key of that project.",
            code="mismatched_project",
        )


def check_address(principal: Principal, scope: Scope, trusted: Sequence[Network]) -> None:
    address = client_address(scope, trusted)
    if address is None or not is_in(address, principal.key.networks):
        raise AuthenticationError(
            f"Your IP address{'' if address is None else f' ({address})'} is not authorized for "
            "this API key. Use it from one of its networks, or another key.",
            code="ip_not_authorized",
        )


def credentials_of(scope: Scope) -> Credentials:
    """Return the credentials; the first of a repeated header counts."""
    secret = organization = project = None
    for name, value in scope["headers"]:
        if name == b"authorization" and not secret:
            scheme, _, key = value.decode("latin-1").partition(" ")
            secret = key.strip() if scheme.lower() == "bearer" else None
        elif name == b"openai-organization":
            organization = organization or value.decode("latin-1").strip()
        elif name == b"openai-project":
            project = project or value.decode("latin-1").strip()
    return Credentials(secret or None, organization or None, project or None)


def check_scopes(
    scopes: frozenset[str], method: str, path: str, routes: Iterable[BaseRoute]
) -> None:
    """Refuse a key without the route's scope. A path without a route passes, to be answered with
    404.
    """
    method = "GET" if method == "HEAD" else method
    template = next(
        (
            route.path
            for route in routes
            if isinstance(route, Route) and route.path_regex.match(path)
        ),
        None,
    )
    if template is None:
        return
    need = NEEDS.get((method, template))
    if need is None or not may(scopes, need):
        wanted = need or "every scope"
        raise PermissionDenied(
            "You have insufficient permissions for this operation. Missing scopes: "
            f"{wanted}. The key has: {', '.join(sorted(scopes))}. Use another one, or change its "
            "scopes with the admin API.",
            code="insufficient_permissions",
        )
