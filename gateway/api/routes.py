"""The whole public surface on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from gateway.api.create import CreateEndpoint
    from gateway.api.responses import ResponseEndpoints
    from gateway.api.system import SystemEndpoints


def routes(
    create: CreateEndpoint, responses: ResponseEndpoints, system: SystemEndpoints
) -> list[Route]:
    """Every route; all but the last five need an API key (`api.auth`)."""
    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", responses.input_items, methods=["GET"]),
        Route("/v1/models", system.list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", system.get_model, methods=["GET"]),
        Route("/healthz", system.healthz, methods=["GET"]),
        Route("/readyz", system.readyz, methods=["GET"]),
        Route("/version", system.version, methods=["GET"]),
        Route("/metrics", system.metrics, methods=["GET"]),
        Route("/", system.landing, methods=["GET"]),
    ]
