"""The gateway as an ASGI application: routes and middleware over the services of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from typing_extensions import override

from gateway.api.auth import Authentication
from gateway.api.body import BodyReader
from gateway.api.chat import chat_endpoint, completion_endpoint
from gateway.api.context import RequestContext
from gateway.api.conversations import ConversationEndpoints
from gateway.api.create import create_endpoint
from gateway.api.dialects import DialectPaths
from gateway.api.openapi.endpoints import OpenApiEndpoints
from gateway.api.responses import ResponseEndpoints, compaction_endpoint, counting_endpoint
from gateway.api.routes import Endpoints, routes
from gateway.api.streaming import StreamLimits
from gateway.api.system import SystemEndpoints
from gateway.api.traces import TracesEndpoint
from gateway.api.websocket.endpoint import WebSocketEndpoint
from gateway.api.websocket.lanes import LaneLimits
from gateway.api.websocket.turns import ConnectionLimits, Dependencies
from gateway.protocol.limits import InputLimits
from gateway.protocol.traces import TraceLimits
from gateway.wiring.process import Process

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from gateway.settings import Settings

COMMENT_INTERVAL_S = 15.0
"""Half of what impatient proxies wait for a byte."""


class Gateway(Starlette):
    """The ASGI application of a process: its routes behind request context, dialects and keys."""

    def __init__(self, process: Process, endpoints: Endpoints) -> None:
        """`state.process` is what it serves."""
        served = routes(endpoints)
        super().__init__(
            routes=served,
            middleware=[
                Middleware(RequestContext, metrics=process.foundation.metrics),
                Middleware(DialectPaths),
                Middleware(Authentication, access=process.access, routes=served),
            ],
            lifespan=lambda _: process.running(),
        )
        self.state.process = process
        # A redirect would name the scheme and the host that this process sees behind its proxy.
        self.router.redirect_slashes = False

    @override
    def build_middleware_stack(self) -> ASGIApp:
        """Without Starlette's middlewares for errors: `RequestContext` answers all of them."""
        app: ASGIApp = self.router.middleware_stack
        for middleware in reversed(self.user_middleware):
            app = middleware.cls(app, *middleware.args, **middleware.kwargs)
        return app


def create_app(settings: Settings) -> Gateway:
    """The gateway as an ASGI application; `state.process` is what it serves.

    `settings` must hold the database's URL and the key pepper. Raises `StartupError` when they
    are missing or the vocabulary is damaged; connects to nothing before its lifespan starts.
    """
    process = Process.of(settings)
    return Gateway(process, _endpoints(process, settings))


def _endpoints(process: Process, settings: Settings) -> Endpoints:
    creation, foundation, limits = process.creation, process.foundation, settings.limits
    input_limits = limits.fill(InputLimits, rejects_media=settings.input.media == "reject")
    bodies = BodyReader(
        foundation.executor,
        limits.body_bytes_max,
        limits.body_timeout_s,
        input_limits,
        strict=settings.input.strict,
    )
    streams = settings.stream.fill(StreamLimits, comment_interval_s=COMMENT_INTERVAL_S)
    traces = TraceLimits(
        records_max=limits.trace_records_max, record_bytes_max=limits.trace_record_bytes_max
    )
    websockets = Dependencies(
        creation=creation,
        threads=foundation.executor,
        metrics=foundation.metrics,
        limits=settings.websockets.fill(
            ConnectionLimits,
            frame_bytes_max=limits.body_bytes_max,
            write_timeout_s=settings.stream.write_timeout_s,
            start_grace_s=settings.stream.start_grace_s,
            lanes=settings.websockets.fill(LaneLimits, waiting_bytes_max=limits.body_bytes_max),
        ),
        input_limits=input_limits,
        strict=settings.input.strict,
    )
    return Endpoints(
        create=create_endpoint(creation, bodies, stream_limits=streams),
        count=counting_endpoint(process.run_builder, bodies),
        compact=compaction_endpoint(creation, bodies),
        responses=ResponseEndpoints(process.retrieval, streams),
        conversations=ConversationEndpoints(process.conversations, bodies),
        chat=chat_endpoint(creation, bodies, stream_limits=streams),
        completions=completion_endpoint(creation, bodies, stream_limits=streams),
        traces=TracesEndpoint(process.keep_traces, bodies, traces),
        websocket=WebSocketEndpoint(websockets, process.sessions),
        system=SystemEndpoints(process.models, process.health),
        openapi=OpenApiEndpoints(),
    )
