"""The whole public surface on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route, WebSocketRoute

from gateway.errors import ResourceNotFound

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.api.conversations import ConversationEndpoints
    from gateway.api.create import CreateEndpoint
    from gateway.api.openapi.endpoints import OpenApiEndpoints
    from gateway.api.responses import ResponseEndpoints, SubsetEndpoint
    from gateway.api.system import SystemEndpoints
    from gateway.api.traces import TracesEndpoint
    from gateway.api.websocket.endpoint import WebSocketEndpoint


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
