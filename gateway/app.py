"""The gateway as an ASGI application: routes and middleware over the services of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from gateway.api.auth import Authentication
from gateway.api.context import RequestContext
from gateway.api.create import CreateEndpoint, EdgeLimits
from gateway.api.errors import routing_error_response
from gateway.api.responses import ResponseEndpoints
from gateway.api.routes import routes
from gateway.api.streaming import StreamLimits
from gateway.api.system import SystemEndpoints
from gateway.composition.process import Process
from gateway.protocol.limits import InputLimits

if TYPE_CHECKING:
    from gateway.settings import Settings

COMMENT_INTERVAL_S = 15.0
"""Half of what impatient proxies wait for a byte."""


def create_app(settings: Settings) -> Starlette:
    """The gateway as an ASGI application; `state.process` is what it serves.

    `settings` must hold the database's URL and the key pepper. Raises `StartupError` when they
    are missing or the vocabulary is damaged; connects to nothing before its lifespan starts.
    """
    process = Process.of(settings)
    app = Starlette(
        routes=routes(
            CreateEndpoint(
                process.creation,
                process.foundation.threads,
                limits=_edge_limits(settings),
                input_limits=_input_limits(settings),
                stream_limits=_stream_limits(settings),
                strict=settings.input.strict,
            ),
            ResponseEndpoints(process.retrieval, _stream_limits(settings)),
            SystemEndpoints(process.models, process.health),
        ),
        middleware=[
            Middleware(RequestContext, metrics=process.foundation.metrics),
            Middleware(Authentication, access=process.access),
        ],
        exception_handlers={HTTPException: routing_error_response},
        lifespan=lambda _: process.running(),
    )
    app.state.process = process
    # A redirect would name the scheme and the host that this process sees behind its proxy.
    app.router.redirect_slashes = False
    return app


def _edge_limits(settings: Settings) -> EdgeLimits:
    return EdgeLimits(
        body_bytes_max=settings.limits.body_bytes_max,
        body_timeout_s=settings.limits.body_timeout_s,
        start_grace_s=settings.stream.start_grace_s,
    )


def _stream_limits(settings: Settings) -> StreamLimits:
    return StreamLimits(
        write_timeout_s=settings.stream.write_timeout_s,
        write_bytes_max=settings.stream.write_bytes_max,
        comment_interval_s=COMMENT_INTERVAL_S,
    )


def _input_limits(settings: Settings) -> InputLimits:
    limits = settings.limits
    return InputLimits(
        json_depth_max=limits.json_depth_max,
        items_max=limits.items_max,
        tools_max=limits.tools_max,
        schema_bytes_max=limits.schema_bytes_max,
        text_chars_max=limits.text_chars_max,
        json_containers_max=limits.json_containers_max,
        grammar_bytes_max=limits.grammar_bytes_max,
        pattern_chars_max=limits.pattern_chars_max,
        schema_depth_max=limits.schema_depth_max,
    )
