"""The simulated server. It is scripted: rules choose what it says, there is no model in it.

Routes of vLLM: `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`, `/ping`,
`/version`, `/load` and `/metrics`; of SGLang: those but for the last three, and `/ready`,
`/model_info`, `/server_info` and its older name; of ours: `/` and
`/simulator/{requests,reset,faults}`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.simulator.completions import Completions
from gateway.simulator.directives import __doc__ as directives_text
from gateway.simulator.engine import SimulatedEngine
from gateway.simulator.errors import SimulatedError
from gateway.simulator.wire import chat

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.simulator.directives import Attempts
    from gateway.simulator.options import SimulatorOptions

PLAN_BYTES_MAX: Final = 10_000
_LANDING: Final = f"""This is the simulated backend of Harmony Gateway.

It speaks the token API of vLLM or SGLang (POST /v1/completions) and their chat API, but
there is no model in it: what it says is scripted, chosen by rules from the conversation, and means
nothing.

GET  /simulator/requests   what it was asked; ?ids=true with token ids; ?request_id=…: only those
                           whose request id begins so
POST /simulator/reset      forget requests, cached prefixes and attempts
PUT  /simulator/faults     the body is a fault plan such as: status=503 times=2

{directives_text}"""


def create_simulator(options: SimulatorOptions, attempts: Attempts | None = None) -> ASGIApp:
    """Return the ASGI app of one instance.

    Instances in one process may share `attempts`, so that `times=1` means once for all of them.
    Raises `ConfigError` for a bad fault plan, `VocabularyError` for a damaged rank file.
    """
    return Simulator(SimulatedEngine(options, attempts))


class Simulator:
    """The ASGI application. Completions bypass Starlette: they need the server's own `send`."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._options = engine.options
        self._in_flight = 0
        self._completions = Completions(engine)
        self._paths = engine.paths
        self._others = _routes(engine, lambda: self._in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
        elif not self._is_allowed(scope):
            refusal = JSONResponse({"error": "Unauthorized"}, status_code=401)
            await refusal(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in self._paths:
            self._in_flight += 1
            try:
                await self._completions(scope, receive, send)
            finally:
                self._in_flight -= 1
        else:
            await self._others(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if self._options.api_key is None or not scope["path"].startswith("/v1"):
            return True
        expected = f"Bearer {self._options.api_key}".encode()
        return (b"authorization", expected) in scope["headers"]


def _routes(engine: SimulatedEngine, in_flight: Callable[[], int]) -> Starlette:
    endpoints = _Endpoints(engine)

    async def load(_: Request) -> Response:
        return JSONResponse({"server_load": in_flight()})

    async def completions(_: Request) -> Response:
        raise HTTPException(405, headers={"allow": "POST"})

    by_engine = {
        "vllm": [
            Route("/version", endpoints.version),
            Route("/load", load),
            Route("/metrics", endpoints.metrics),
        ],
        "sglang": [
            *_ready(endpoints, engine.options),
            Route("/server_info", endpoints.server_info),
            Route("/get_server_info", endpoints.server_info),
            Route("/model_info", endpoints.model_info),
        ],
    }
    return Starlette(
        routes=[
            *by_engine[engine.options.engine],
            Route("/", endpoints.landing),
            Route("/health", endpoints.health),
            Route("/ping", endpoints.health, methods=["GET", "POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/completions", completions),
            Route(chat.PATH, completions),
            Route("/simulator/requests", endpoints.requests),
            Route("/simulator/reset", endpoints.reset, methods=["POST"]),
            Route("/simulator/faults", endpoints.faults, methods=["PUT"]),
        ],
        exception_handlers={HTTPException: _detail, SimulatedError: _error},
    )


def _ready(endpoints: _Endpoints, options: SimulatorOptions) -> list[Route]:
    # SGLang since 0.5.20 has it, with its Python frontend only.
    has_it = options.release >= (0, 5, 20) and not options.is_rust
    return [Route("/ready", endpoints.health)] if has_it else []


class _Endpoints:
    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._started = int(time.time())

    async def landing(self, _: Request) -> Response:
        return PlainTextResponse(_LANDING)

    async def health(self, _: Request) -> Response:
        return Response(status_code=self._engine.faults.standing.faults.health or 200)

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": self._engine.options.engine_version})

    async def server_info(self, _: Request) -> Response:
        """Return those arguments of SGLang 0.5.23's `/server_info` that matter to the gateway."""
        options = self._engine.options
        return JSONResponse(
            {
                "served_model_name": options.models[0],
                "context_length": options.context_length,
                "grammar_backend": "xgrammar",
                "enable_priority_scheduling": options.priorities,
                "schedule_low_priority_values_first": False,
                "incremental_streaming_output": False,
                "stream_interval": options.ids_per_event,
                "enable_cache_report": options.report_cached_tokens,
                "internal_states": [],
                "version": options.engine_version,
                "frontend": options.frontend,
            }
        )

    async def model_info(self, _: Request) -> Response:
        name = self._engine.options.models[0]
        return JSONResponse({"model_path": name, "served_model_name": name})

    async def metrics(self, _: Request) -> Response:
        media_type = "text/plain; version=1.0.0; charset=utf-8"
        return Response(self._engine.metrics.text(), media_type=media_type)

    async def models(self, _: Request) -> Response:
        options = self._engine.options
        rows = [_model(name, self._started, options) for name in options.models]
        rows += [_adapter(name, self._started, options) for name in options.adapters]
        return JSONResponse({"object": "list", "data": rows})

    async def requests(self, request: Request) -> Response:
        with_ids = request.query_params.get("ids") == "true"
        begin = request.query_params.get("request_id", "")
        return JSONResponse(self._engine.seen(begin, with_ids=with_ids))

    async def reset(self, _: Request) -> Response:
        self._engine.reset()
        return Response(status_code=204)

    async def faults(self, request: Request) -> Response:
        plan = await request.body()
        if len(plan) > PLAN_BYTES_MAX:
            raise SimulatedError(413, f"A plan has at most {PLAN_BYTES_MAX} bytes.")
        syntax = self._engine.model.syntax
        self._engine.faults.standing = syntax.parse_plan(plan.decode("utf-8", "replace"))
        return Response(status_code=204)


def _model(name: str, created: int, options: SimulatorOptions) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": options.engine,
        "root": name,
        "parent": None,
        "max_model_len": options.context_length,
        "permission": [],
    }


def _adapter(name: str, created: int, options: SimulatorOptions) -> dict[str, Any]:
    row = _model(name, created, options)
    return {**row, "root": f"/adapters/{name}", "parent": options.models[0], "max_model_len": None}


async def _detail(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    body = {"detail": error.detail}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _error(_: Request, error: Exception) -> Response:
    if not isinstance(error, SimulatedError):
        raise error
    return JSONResponse(error.body(), status_code=error.status)
