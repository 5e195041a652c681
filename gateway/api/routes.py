"""The whole public surface on one screen, and what to tell whoever asks for another URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute, Route, WebSocketRoute

from gateway.errors import ResourceNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Receive, Scope, Send

    from gateway.api.conversations import ConversationEndpoints
    from gateway.api.create import CreateEndpoint
    from gateway.api.openapi.endpoints import OpenApiEndpoints
    from gateway.api.responses import ResponseEndpoints, SubsetEndpoint
    from gateway.api.system import SystemEndpoints
    from gateway.api.traces import TracesEndpoint
    from gateway.api.websocket.endpoint import WebSocketEndpoint

    Routes = Iterable[BaseRoute]

BASE: Final = "/v1"
_TWICE: Final = re.compile(rf"(?:{BASE}){{2,}}(?=/|$)")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What answers, by the part of the surface that it answers for."""

    create: CreateEndpoint
    count: SubsetEndpoint
    compact: SubsetEndpoint
    responses: ResponseEndpoints
    conversations: ConversationEndpoints
    chat: CreateEndpoint
    completions: CreateEndpoint
    traces: TracesEndpoint
    websocket: WebSocketEndpoint
    system: SystemEndpoints
    openapi: OpenApiEndpoints


def routes(endpoints: Endpoints) -> list[BaseRoute]:
    """Every route; all but the last seven need an API key (`api.auth`)."""
    responses, system = endpoints.responses, endpoints.system
    conversations, conversation = endpoints.conversations, "/v1/conversations/{conversation_id}"
    return [
        Route("/v1/responses", endpoints.create, methods=["POST"]),
        WebSocketRoute("/v1/responses", endpoints.websocket),
        WebSocketRoute("/{path:path}", WebSocketElsewhere()),
        Route("/v1/responses/input_tokens", endpoints.count, methods=["POST"]),
        Route("/v1/responses/compact", endpoints.compact, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", responses.input_items, methods=["GET"]),
        Route("/v1/conversations", conversations.create, methods=["POST"]),
        Route(conversation, conversations.one, methods=["GET", "POST", "DELETE"]),
        Route(f"{conversation}/items", conversations.items, methods=["GET", "POST"]),
        Route(f"{conversation}/items/{{item_id}}", conversations.item, methods=["GET", "DELETE"]),
        Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
        Route("/v1/completions", endpoints.completions, methods=["POST"]),
        Route("/v1/codex/models", system.codex_models, methods=["GET"]),
        Route("/v1/traces/ingest", endpoints.traces, methods=["POST"]),
        Route("/v1/models", system.list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", system.get_model, methods=["GET"]),
        Route("/healthz", system.healthz, methods=["GET"]),
        Route("/readyz", system.readyz, methods=["GET"]),
        Route("/version", system.version, methods=["GET"]),
        Route("/metrics", system.metrics, methods=["GET"]),
        Route("/", system.landing, methods=["GET"]),
        Route("/openapi.json", endpoints.openapi.document, methods=["GET"]),
        Route("/docs", endpoints.openapi.page, methods=["GET"]),
    ]


class WebSocketElsewhere:
    """An upgrade on any other path: 404."""

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ResourceNotFound(
            f"Invalid URL (WebSocket {scope['path']}). WebSocket mode is at /v1/responses."
        )


def path_of(scope: Scope) -> str:
    """What routes are looked up by: the path below the root path, if there is one."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_served(path: str, routes: Routes) -> bool:
    """Whether there is a route to it, with whatever method."""
    return any(route.path_regex.match(path) for route in routes if isinstance(route, Route))


def unknown_url(place: str, path: str, routes: Routes) -> str:
    """What to tell whoever asked for `path`, which no route leads to. `place` is what they asked,
    fit to be shown.
    """
    meant = _meant(path, routes)
    if meant is not None:
        return f"Invalid URL ({place}). {meant}"
    served = dict.fromkeys(
        route.path
        for route in routes
        if isinstance(route, Route) and route.path.startswith(f"{BASE}/") and "{" not in route.path
    )
    return (
        f"Invalid URL ({place}): it is not served here. Served are {', '.join(served)} and what is "
        "below them; GET /openapi.json describes them."
    )


def _meant(path: str, routes: Routes) -> str | None:
    """A sentence about the URL that was probably meant; None where there is no telling."""
    once = _TWICE.sub(BASE, path)
    if once != path:
        return f"It has {BASE} twice: the client adds it to a base URL that ends in it already."
    bare = path.rstrip("/")
    if bare != path and is_served(bare, routes):
        return "Leave out the slash at its end."
    if is_served(f"{BASE}{path}", routes):
        return f"It lacks {BASE}: the base URL that clients are given ends in it."
    return None
