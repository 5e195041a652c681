"""The gateway as an ASGI application."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from typing_extensions import override

from gateway.api.access.authentication import EXCHANGE_PATH, Authentication
from gateway.api.access.own_key import KeyEndpoint
from gateway.api.access.token_exchange import TokenExchangeEndpoint
from gateway.api.chat import ChatCreateRequest
from gateway.api.containers import ContainerEndpoints, FileEndpoints
from gateway.api.conversations import ConversationEndpoints
from gateway.api.create import CreateEndpoint, CreateRequest
from gateway.api.cross_origin import CrossOrigin
from gateway.api.multipart import FormReader
from gateway.api.openapi.endpoints import ADMIN_FILE, OpenApiEndpoints
from gateway.api.proxy import ProxyEndpoint
from gateway.api.request_body import BodyReader
from gateway.api.request_context import RequestContext
from gateway.api.responses import ResponseEndpoints, compaction_endpoint, counting_endpoint
from gateway.api.system import SystemEndpoints
from gateway.api.traces import TracesEndpoint
from gateway.api.urls import WebSocketElsewhere
from gateway.api.websocket import Dependencies, WebSocketEndpoint
from gateway.protocol.json_body import InputLimits
from gateway.wiring.process import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.admin.resources import OperatorServices
    from gateway.settings import Settings
    from gateway.tenancy import Network


class Gateway(RequestContext):
    """ASGI application of a process, without Starlette's middlewares for errors, which are answered
    here.
    """

    def __init__(self, process: Process, routes: Sequence[BaseRoute]) -> None:
        # A redirect would name the scheme and the host that this process sees behind its proxy.
        app = Router(routes, redirect_slashes=False, lifespan=lambda _: process.running()).app
        proxies, settings = _trusted_proxies(process), process.foundation.settings
        self.authentication = Authentication(
            app,
            process.access,
            routes,
            requests_max=settings.server.connections_max,
            trusted_proxies=proxies,
            reads_per_minute=settings.rate_limits.reads_per_minute_max,
        )
        super().__init__(
            self.authentication,
            process.foundation.metrics,
            routes,
            tracing=process.foundation.tracing,
            trusted_proxies=proxies,
        )
        self.process = process


class BrowserGateway(Gateway):
    """Gateway that pages of other origins may call."""

    def __init__(self, process: Process, routes: Sequence[BaseRoute]) -> None:
        super().__init__(process, routes)
        server = process.foundation.settings.server
        self._cross_origin = CrossOrigin(super().__call__, server.cors_origins)
        self._app = self._cross_origin.with_preflights(self._app)

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._cross_origin(scope, receive, send)


class AdminGateway(RequestContext):
    def __init__(self, process: Process) -> None:
        from gateway.admin.operator_keys import AdminAuthentication
        from gateway.admin.resources import operator_routes
        from gateway.admin.routes import starlette_routes
        from gateway.wiring.admin import operator_services

        probes = _probes(process, OpenApiEndpoints(ADMIN_FILE))
        services = operator_services(process)
        of_operators = starlette_routes(
            operator_routes(services), _bodies(process), _trusted_proxies(process)
        )
        served = [*probes, *_admin_routes(process), *of_operators]
        authentication = AdminAuthentication(
            Router(served, redirect_slashes=False).app,
            process.access,
            services.operators,
            trusted_proxies=_trusted_proxies(process),
        )
        super().__init__(
            self._with_console(authentication, process, services),
            process.foundation.metrics,
            served,
        )

    def _with_console(self, app: ASGIApp, process: Process, services: OperatorServices) -> ASGIApp:
        # In front of the keys of the admin API: it has sessions of its own.
        if not process.foundation.settings.console.enabled:
            return app
        from gateway.wiring.admin import console

        return console(
            app,
            process,
            services,
            _bodies(process),
            public=Gateway(process, routes(process)),
            trusted_proxies=_trusted_proxies(process),
        )


def create_app(settings: Settings) -> Gateway:
    """Return the gateway; `process` is what it serves.

    Raises `StartupError` for lacking settings and a damaged vocabulary; connects to nothing before
    its lifespan starts.
    """
    process = Process.of(settings)
    admin = _admin_routes(process) if settings.admin.public else []
    made = BrowserGateway if settings.server.cors_origins else Gateway
    return made(process, [*admin, *routes(process)])


def _admin_routes(process: Process) -> list[Route]:
    from gateway.admin.resources import admin_routes
    from gateway.admin.routes import starlette_routes
    from gateway.wiring.admin import admin_services

    base = process.foundation
    admin = admin_services(base.settings, base.database, process.access, process.models)
    return starlette_routes(admin_routes(admin), _bodies(process), _trusted_proxies(process))


def _trusted_proxies(process: Process) -> list[Network]:
    return list(map(ip_network, process.foundation.settings.server.trusted_proxies))


def _probes(process: Process, openapi: OpenApiEndpoints) -> list[Route]:
    system = SystemEndpoints(process.models, process.health)
    return [
        Route("/openapi.json", openapi.document, methods=["GET"]),
        Route("/docs", openapi.page, methods=["GET"]),
        Route("/healthz", system.healthz, methods=["GET"]),
        Route("/readyz", system.readyz, methods=["GET"]),
        Route("/version", system.version, methods=["GET"]),
        Route("/metrics", system.metrics, methods=["GET"]),
    ]


def routes(process: Process) -> list[BaseRoute]:
    base, creation, bodies = process.foundation, process.creation, _bodies(process)
    grace_s = base.settings.stream.start_grace_s
    generating = partial(CreateEndpoint, creation, bodies, start_grace_s=grace_s)
    responses = ResponseEndpoints(process.retrieval)
    create = generating(CreateRequest.parse)
    limiter = process.replica.limiter
    websocket = WebSocketEndpoint(
        Dependencies(creation, limiter.connected, bodies, base.metrics, grace_s, base.tracing),
        base.sessions,
    )
    count = counting_endpoint(creation, bodies)
    compact = compaction_endpoint(creation, bodies)
    conversation = "/v1/conversations/{conversation_id}"
    conversations = ConversationEndpoints(process.conversations, bodies)
    chat = generating(ChatCreateRequest.parse)
    completions = generating(ChatCreateRequest.parse_completion)
    traces = TracesEndpoint(process.keep_traces, bodies, limiter.storing)
    embeddings = ProxyEndpoint("embeddings", process.proxy, bodies)
    rerank = ProxyEndpoint("rerank", process.proxy, bodies)
    system = SystemEndpoints(process.models, process.health)
    exchange = TokenExchangeEndpoint(process.federation, bodies)
    return [
        Route("/v1/responses", create, methods=["POST"]),
        WebSocketRoute("/v1/responses", websocket),
        WebSocketRoute("/{path:path}", WebSocketElsewhere()),
        Route("/v1/responses/input_tokens", count, methods=["POST"]),
        Route("/v1/responses/compact", compact, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", responses.input_items, methods=["GET"]),
        Route("/v1/conversations", conversations.create, methods=["POST"]),
        Route(conversation, conversations.one, methods=["GET", "POST", "DELETE"]),
        Route(f"{conversation}/items", conversations.items, methods=["GET", "POST"]),
        Route(f"{conversation}/items/{{item_id}}", conversations.item, methods=["GET", "DELETE"]),
        *_container_routes(process, bodies),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/rerank", rerank, methods=["POST"]),
        Route("/v1/codex/models", system.codex_models, methods=["GET"]),
        Route("/v1/traces/ingest", traces, methods=["POST"]),
        Route("/v1/key", KeyEndpoint(process.own_key).own, methods=["GET"]),
        Route(EXCHANGE_PATH, exchange, methods=["POST"]),
        Route("/v1/models", system.list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", system.get_model, methods=["GET"]),
        Route("/", system.landing, methods=["GET"]),
        *_probes(process, OpenApiEndpoints()),
    ]


def _container_routes(process: Process, bodies: BodyReader) -> list[Route]:
    python = process.foundation.settings.tools.python
    forms = FormReader(python.file_bytes_max, strict=bodies.strict)
    is_on = bool(python.enabled)
    files = FileEndpoints(process.files, forms, is_on=is_on)
    containers = ContainerEndpoints(process.containers, bodies, forms, is_on=is_on)
    one = "/v1/containers/{container_id}"
    file = f"{one}/files/{{file_id}}"
    return [
        Route("/v1/containers", containers.all, methods=["GET", "POST"]),
        Route(one, containers.one, methods=["GET", "DELETE"]),
        Route(f"{one}/files", containers.files, methods=["GET", "POST"]),
        Route(file, containers.file, methods=["GET", "DELETE"]),
        Route(f"{file}/content", containers.content, methods=["GET"]),
        Route("/v1/files", files.all, methods=["GET", "POST"]),
        Route("/v1/files/{file_id}", files.one, methods=["GET", "DELETE"]),
        Route("/v1/files/{file_id}/content", files.content, methods=["GET"]),
    ]


def _bodies(process: Process) -> BodyReader:
    settings = process.foundation.settings
    return BodyReader(
        process.foundation.executor,
        process.body_bounds,
        InputLimits(rejects_media=settings.input.media == "reject"),
        strict=settings.input.strict,
        served=process.tool_grants.served,
    )
