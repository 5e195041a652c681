"""The simulated server of tests: it also misbehaves, obeys grammars, checks its requests and
prompts, and tells what it was asked.

    GET  /simulator/requests   what it was asked; ?ids=true with token ids; ?request_id=…: only
                               those whose request id begins so
    POST /simulator/reset      forget requests, cached prefixes and attempts
    PUT  /simulator/faults     the body is a fault plan such as: status=503 times=2
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typing_extensions import override

from gateway.constraints.structural_tags import Unsayable, tag_of
from gateway.errors import ConfigError
from gateway.models.format import GrammarOptions
from gateway.models.harmony.tokenizer import OPENING
from gateway.simulator.completion_wire import CHAT_PATH, PATH, SimulatedError, json_object
from gateway.simulator.simulated_server import SimulatedEngine
from tests.fakes.wayward_engine import corpus, generate_endpoint
from tests.fakes.wayward_engine.constraint_fields import constraint_of
from tests.fakes.wayward_engine.decoding import constrained
from tests.fakes.wayward_engine.directives import Attempts
from tests.fakes.wayward_engine.engine_errors import ENGINE_BUSY, StreamedError
from tests.fakes.wayward_engine.generate_endpoint import GenerateWriter
from tests.fakes.wayward_engine.instruments import (
    Admission,
    Ledger,
    Metrics,
    Observed,
    PrefixCache,
    QueueFull,
)
from tests.fakes.wayward_engine.misbehaviour import SYNTAX, WaywardContinuation, WaywardPlan
from tests.fakes.wayward_engine.prompt_checks import PromptChecks
from tests.fakes.wayward_engine.scripted_misbehaviour import WaywardModel
from tests.fakes.wayward_engine.server import WaywardServer
from tests.fakes.wayward_engine.strict_requests import Fields, StrictRequest, strict_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.constraints.output_rules import OutputRules
    from gateway.simulator.completion_wire import CompletionRequest, EventWriter
    from tests.fakes.wayward_engine.directives import Directives
    from tests.fakes.wayward_engine.options import WaywardOptions

PLAN_BYTES_MAX: Final = 10_000
FAULT_PROMPTS_MAX: Final = 10_000
"""Prompts whose attempts are counted for `times=`; the oldest are forgotten."""
_CONSTRAINTS: Final = (
    *(b'"structured_outputs"', b'"response_format"'),
    *(b'"structural_tag"', b'"json_schema"', b'"regex"', b'"ebnf"'),
)
"""The fields of a body that may hold a grammar."""


def create_simulator(options: WaywardOptions, attempts: Attempts | None = None) -> ASGIApp:
    """Return the ASGI app of one instance.

    Instances in one process may share `attempts`, so that `times=1` means once for all of them.
    Raises `ConfigError` for a bad fault plan.
    """
    engine = WaywardEngine(options, attempts)
    app = WaywardServer(engine, _routes(engine))
    return app if options.api_key is None else _Guarded(app, options.api_key)


class _Guarded:
    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._shown = (b"authorization", f"Bearer {api_key}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and scope["path"].startswith("/v1")
        if is_guarded and self._shown not in scope["headers"]:
            refusal = JSONResponse({"error": "Unauthorized"}, status_code=401)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _routes(engine: WaywardEngine) -> list[Route]:
    async def health(_: Request) -> Response:
        faults = engine.faults.standing.faults
        await asyncio.sleep(faults.health_delay_s or 0.0)
        return Response(status_code=faults.health or 200)

    async def load(_: Request) -> Response:
        admission = engine.admission
        return JSONResponse({"server_load": admission.running + admission.waiting})

    async def requests(request: Request) -> Response:
        with_ids = request.query_params.get("ids") == "true"
        begin = request.query_params.get("request_id", "")
        return JSONResponse(engine.seen(begin, with_ids=with_ids))

    async def reset(_: Request) -> Response:
        engine.reset()
        return Response(status_code=204)

    async def faults(request: Request) -> Response:
        plan = await request.body()
        if len(plan) > PLAN_BYTES_MAX:
            raise SimulatedError(413, f"A plan has at most {PLAN_BYTES_MAX} bytes.")
        text = plan.decode("utf-8", "replace")
        engine.faults.standing = SYNTAX.parse_plan(text)
        return Response(status_code=204)

    return [
        Route("/health", health),
        Route("/ping", health, methods=["GET", "POST"]),
        *([Route("/ready", health)] if engine.options.has_ready else []),
        *([Route("/load", load)] if engine.options.engine == "vllm" else []),
        Route("/simulator/requests", requests),
        Route("/simulator/reset", reset, methods=["POST"]),
        Route("/simulator/faults", faults, methods=["PUT"]),
    ]


class WaywardEngine(SimulatedEngine):
    """The engine of one instance. Raises `ConfigError` for an invalid fault plan or corpus."""

    options: WaywardOptions

    def __init__(self, options: WaywardOptions, attempts: Attempts | None = None) -> None:
        super().__init__(options)
        self.model = WaywardModel(self.vocabulary, corpus.load(options.corpus_path))
        attempts = attempts or Attempts(FAULT_PROMPTS_MAX)
        self.faults = WaywardPlan(options.name, self.standing_plan(), attempts)
        self.cache = PrefixCache(options.cache_blocks_max)
        self.admission = Admission(options.running_max, options.queued_max)
        self.ledger = Ledger(options.observed_requests_max, options.observed_ids_max)
        self.checks = PromptChecks(self.model.vocabulary)
        self.instruments = self._instruments()

    def _instruments(self) -> Metrics:
        metrics = Metrics(self.options)
        admission, cache = self.admission, self.cache
        metrics.watch("vllm:num_requests_running", "In execution.", lambda: admission.running)
        metrics.watch("vllm:num_requests_waiting", "In the queue.", lambda: admission.waiting)
        metrics.watch("vllm:kv_cache_usage_perc", "1 is full.", lambda: cache.usage)
        for name in self.checks.as_json():
            metrics.watch(f"simulator:{name}", "Of prompts.", partial(getattr, self.checks, name))
        return metrics

    def standing_plan(self) -> Directives:
        """Return the plan of the options. Raises `ConfigError`."""
        try:
            return SYNTAX.parse_plan(self.options.faults)
        except SimulatedError as error:
            raise ConfigError(
                str(error), where="faults", remedy='Write a plan such as "status=503 times=2".'
            ) from error

    @property
    @override
    def paths(self) -> frozenset[str]:
        is_sglang = self.options.engine == "sglang"
        return super().paths | ({generate_endpoint.PATH} if is_sglang else set())

    @override
    async def read(self, body: bytes, path: str = PATH) -> StrictRequest:
        # Grammars and schemas are compiled in a thread, so that the event loop answers other
        # requests, health checks among them.
        if path == CHAT_PATH or any(name in body for name in _CONSTRAINTS):
            return await asyncio.to_thread(self._read, body, path)
        return self._read(body, path)

    def _read(self, body: bytes, path: str) -> StrictRequest:
        members = json_object(body)
        rules = None
        if path == CHAT_PATH:
            members, rules = self.conversations.as_completion(members, body)
            members["response_format"] = self._format(rules)
        is_generate = path == generate_endpoint.PATH
        fields = Fields(generate_endpoint.as_completion(members) if is_generate else members)
        request = strict_request(fields, self.options)
        return dataclasses.replace(
            request,
            chat_rules=rules,
            return_token_ids=is_generate or request.return_token_ids,
            constraint=constraint_of(fields, self.options),
            is_generate=is_generate,
        )

    def _format(self, rules: OutputRules) -> dict[str, Any] | None:
        # Of a chat, only a turn that must call, or answer in a format, is constrained.
        if rules.calls != "required" and rules.answer is None:
            return None
        format_ = self.conversations.format
        start = format_.new_parser(rules).place
        constraint = format_.turn_constraint(rules, start, (), GrammarOptions())
        try:
            return None if constraint is None else tag_of(constraint, max_whitespace=False)
        except Unsayable:
            return None

    async def continuation(self, request: CompletionRequest) -> WaywardContinuation:
        # Raises `SimulatedError` for an invalid directive.
        reading = self.model.reading(request.prompt, self.faults.in_force)
        if not reading.is_shaped:
            return reading.continuation()
        return await asyncio.to_thread(reading.continuation)

    async def held(
        self, continuation: WaywardContinuation, request: CompletionRequest
    ) -> WaywardContinuation:
        # What the request allows of the continuation. Raises `SimulatedError` for a bad constraint.
        assert isinstance(request, StrictRequest)
        if request.constraint is None:
            return continuation
        return await asyncio.to_thread(
            constrained,
            continuation,
            request.prompt,
            request.constraint,
            ids_max=request.max_tokens,
            vocabulary=self.model.vocabulary,
        )

    @override
    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        assert isinstance(request, StrictRequest)
        if request.is_generate:
            return GenerateWriter(head, request, self.tails, self.options)
        return super().writer(head, request)

    def begin(
        self,
        request: CompletionRequest,
        continuation: WaywardContinuation,
        headers: Mapping[str, str],
    ) -> Observed:
        """Add a request to the ledger, and count its cached ids."""
        assert isinstance(request, StrictRequest)
        request_id = headers.get("x-request-id") or request.id
        prefilled = len(request.prompt) - continuation.turn_start - len(OPENING)
        observed = self.ledger.open(request, request_id, max(prefilled, 0))
        observed.traceparent = headers.get("traceparent")
        observed.cached_ids = self.cache.cached_ids(request.prompt, request.cache_salt)
        self.checks.see(request_id, request.prompt, continuation.turn_start)
        return observed

    @asynccontextmanager
    async def place(self, exchange: Observed) -> AsyncIterator[None]:
        """Hold a slot for the block. Raises `SimulatedError` where too many requests wait."""
        try:
            async with self.admission.place():
                yield
        except QueueFull as full:
            self.instruments.rejected()
            as_event = self.options.overload_as_event and exchange.request.stream
            raise (StreamedError if as_event else SimulatedError)(503, ENGINE_BUSY) from full

    def prefill(self, exchange: Observed) -> None:
        """Count the prompt as computed."""
        tokens = len(exchange.request.prompt)
        self.instruments.prompt_tokens.inc(tokens)
        self.instruments.prefix_queries.inc(tokens)
        self.instruments.prefix_hits.inc(exchange.cached_ids)

    def say(self, exchange: Observed, ids: list[int]) -> None:
        """Count ids as generated and sent."""
        if not exchange.sent:
            waited_s = time.monotonic() - exchange.arrived_at
            self.instruments.first_token_s.observe(waited_s)
        self.ledger.say(exchange, ids)
        self.instruments.generation_tokens.inc(len(ids))

    def close(self, exchange: Observed) -> None:
        """Cache the computed ids and count how the request ended."""
        request = exchange.request
        assert isinstance(request, StrictRequest)
        self.cache.add([*request.prompt, *exchange.sent], request.cache_salt)
        ended_well = exchange.outcome in {"stop", "length", "error"}
        self.instruments.finished(exchange.outcome if ended_well else "abort")

    def usage_of(self, exchange: Observed) -> dict[str, Any]:
        usage = self.usage(len(exchange.request.prompt), len(exchange.sent))
        if self.options.report_cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": exchange.cached_ids}
        return usage

    @override
    def metrics(self) -> bytes:
        return self.instruments.text()

    @override
    def server_info(self) -> dict[str, Any]:
        return super().server_info() | {
            "enable_priority_scheduling": self.options.priorities,
            "enable_cache_report": self.options.report_cached_tokens,
            "frontend": self.options.frontend,
        }

    @override
    def model_rows(self, created: int) -> list[dict[str, Any]]:
        rows = super().model_rows(created)
        of_adapter = {"parent": self.options.models[0], "max_model_len": None}
        return rows + [
            {**rows[0], "id": name, "root": f"/adapters/{name}", **of_adapter}
            for name in self.options.adapters
        ]

    def seen(self, begin: str, *, with_ids: bool) -> dict[str, Any]:
        """Return the requests whose ids start with `begin`, for `GET /simulator/requests`."""
        rows = [
            observed.as_json(with_ids=with_ids)
            for observed in self.ledger
            if (observed.request_id or "").startswith(begin)
        ]
        checks = self.checks.as_json()
        return {"instance": self.options.name, "requests": rows, "checks": checks}

    def reset(self) -> None:
        """Restore the state after a start, except for the metrics: counters never decrease."""
        self.cache.clear()
        self.ledger.clear()
        self.faults.clear()
        self.faults.standing = self.standing_plan()
