"""Permissions that each route requires of a key with scopes: one table of all routes with a key.

A route that is not in it fails a test, and is refused to every key that has scopes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from gateway.errors import PermissionDenied
from gateway.tenancy.permissions import may

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.routing import BaseRoute

    from gateway.tenancy.permissions import Need

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
"""By method and path."""


def check_scopes(
    scopes: frozenset[str], method: str, path: str, routes: Iterable[BaseRoute]
) -> None:
    """Raise `PermissionDenied` if a key with these scopes may not make this request.

    A path without a route passes, and gets its 404 later.
    """
    method = "GET" if method == "HEAD" else method
    found = next(
        (
            route.path
            for route in routes
            if isinstance(route, Route) and route.path_regex.match(path)
        ),
        None,
    )
    if found is None:
        return
    need = NEEDS.get((method, found))
    if need is None or not may(scopes, need):
        wanted = need or "every scope"
        raise PermissionDenied(
            "You have insufficient permissions for this operation. Missing scopes: "
            f"{wanted}. The key has: {', '.join(sorted(scopes))}. Use another one, or change its "
            "scopes with the admin API.",
            code="insufficient_permissions",
        )
