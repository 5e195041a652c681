"""The composition root: builds every object once, wires them, ends them in reverse order."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from gateway.api.auth import Authentication
from gateway.api.context import RequestContext
from gateway.api.errors import routing_error_response
from gateway.api.responses import CreateEndpoint, EdgeLimits, ResponseEndpoints
from gateway.api.routes import routes
from gateway.api.system import SystemEndpoints
from gateway.harmony.framing import OPENING
from gateway.harmony.parsing import Parser
from gateway.harmony.rendering import Renderer, SchemaLimits
from gateway.harmony.vocabulary import END, RETURN, STOP_IDS, Vocabulary
from gateway.output.fold import Fold, Framing
from gateway.protocol.limits import InputLimits
from gateway.runs.archive import Archive
from gateway.runs.observer import Observer
from gateway.runs.runner import Engine
from gateway.runs.supervisor import Supervisor
from gateway.services.access import Access
from gateway.services.health import Health
from gateway.services.models import Models
from gateway.services.preparation import Preparation, PreparationLimits, Rendering, SystemMessage
from gateway.services.responses import Responses
from gateway.services.threads import Threads
from gateway.store.engine import Database
from gateway.telemetry import Metrics
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.client import build_client
from gateway.upstreams.connection import ConnectionLimits
from gateway.upstreams.pool import Pool, PoolPolicy, ProbeSchedule
from gateway.upstreams.transport import KeepAlive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.runs.specification import RunSpecification
    from gateway.settings import Settings

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while the event loop waits for it. With Python's 5 ms
each of the loop's system calls beside a busy thread can cost as much."""
GC_ALLOCATIONS = 10_000
"""Containers made between two collections of the youngest. Parsing a large body makes hundreds of
thousands, none of which is garbage yet."""
FRAMING = Framing(opening=OPENING, turn_end=RETURN, message_end=END)


@dataclass(frozen=True, slots=True)
class Parts:
    """What lives as long as the process, in the order in which it is opened."""

    database: Database
    pool: Pool
    threads: Threads
    supervisor: Supervisor

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask the backends what they serve and keep asking; at the end let runs finish."""
        await self.pool.start()
        _keep_pauses_short()
        try:
            async with asyncio.TaskGroup() as group:
                polling = group.create_task(self.pool.run())
                try:
                    yield
                finally:
                    await self.supervisor.drain()
                    polling.cancel()
        finally:
            self.threads.close()
            await self.pool.close()
            await self.database.close()


def create_app(settings: Settings) -> Starlette:
    """The gateway as an ASGI application.

    `settings` must hold the database's URL and the key pepper. Raises `StartupError` when they
    are missing or the vocabulary is damaged; connects to nothing before its lifespan starts.
    """
    vocabulary = Vocabulary.load()
    metrics = Metrics()
    database = _database(settings)
    access = Access(
        database,
        settings.pepper,
        settings.auth.key_cache_ttl_s,
        settings.auth.key_cache_entries_max,
        cache_stale_s=settings.auth.stale_keys_max_s,
    )
    pool = _pool(settings, metrics)
    models = Models(
        pool,
        aliases={alias: model.id for model in settings.models for alias in model.aliases},
        efforts={model.id: model.reasoning_effort for model in settings.models},
    )
    renderer = Renderer(vocabulary, _schema_limits(settings))
    threads = Threads(
        threads_max=settings.limits.tokenize_threads_max,
        inline_bytes_max=settings.limits.inline_tokenize_chars_max,
    )
    supervisor = Supervisor(in_flight_max=settings.limits.responses_in_flight_max)
    engine = Engine(
        tokens=pool,
        archive=Archive(database, renderer, commit_wait_s=settings.database.commit_wait_s),
        observer=Observer(metrics),
        alive_interval_s=settings.stream.keepalive_event_s,
        run_time_max_s=settings.limits.request_timeout_s,
    )
    responses = Responses(
        database=database,
        preparation=_preparation(settings, database, models, Rendering(renderer, threads)),
        engine=engine,
        supervisor=supervisor,
        new_fold=_folds(vocabulary),
        reader_events_max=settings.stream.reader_events_max,
    )
    parts = Parts(database, pool, threads, supervisor)
    app = Starlette(
        routes=routes(
            CreateEndpoint(
                responses,
                _edge_limits(settings),
                _input_limits(settings),
                threads,
                strict=settings.input.strict,
            ),
            ResponseEndpoints(responses),
            SystemEndpoints(models, Health(database, pool, metrics)),
        ),
        middleware=[
            Middleware(RequestContext, metrics=metrics),
            Middleware(Authentication, access=access),
        ],
        exception_handlers={HTTPException: routing_error_response},
        lifespan=lambda _: parts.running(),
    )
    # A redirect would name the scheme and the host that this process sees behind its proxy.
    app.router.redirect_slashes = False
    return app


def _keep_pauses_short() -> None:
    """Set up the interpreter for one event loop beside a few busy threads.

    What was made until now lives as long as the process: no collection has to look at it again.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_ALLOCATIONS)
    gc.collect()
    gc.freeze()


def _folds(vocabulary: Vocabulary) -> Callable[[RunSpecification], Callable[[], Fold]]:
    def for_run(specification: RunSpecification) -> Callable[[], Fold]:
        return lambda: Fold(
            specification.head, lambda: Parser(vocabulary, specification.tools), FRAMING
        )

    return for_run


def _database(settings: Settings) -> Database:
    database = settings.database
    return Database.connect(
        settings.database_url,
        pool_size_max=database.pool_size_max,
        command_timeout_s=database.command_timeout_s,
        connect_timeout_s=database.connect_timeout_s,
        statement_cache_size=database.statement_cache_size,
    )


def _pool(settings: Settings, metrics: Metrics) -> Pool:
    upstream = settings.upstream
    served = {model.id: model.served_as or model.id for model in settings.models}
    lengths = {m.id: m.context_length for m in settings.models if m.context_length is not None}
    backends = [
        Backend(
            name=backend.name,
            base_url=backend.url,
            models={
                public: name
                for public, name in served.items()
                if not backend.models or name in backend.models
            }
            or {name: name for name in backend.models},
            api_key=backend.api_key.get_secret_value() if backend.api_key else None,
            context_lengths=lengths,
        )
        for backend in settings.backends
    ]
    client = build_client(
        keep_alive=KeepAlive(
            connections_max=upstream.connections_max, expiry_s=upstream.keepalive_expiry_s
        ),
        limits=ConnectionLimits(),
    )
    policy = PoolPolicy(
        timeouts=Timeouts(
            connect_s=upstream.connect_timeout_s,
            first_token_s=upstream.first_token_timeout_s,
            stall_s=upstream.stall_timeout_s,
        ),
        schedule=ProbeSchedule(
            health_interval_s=upstream.health_interval_s,
            health_timeout_s=upstream.health_timeout_s,
            describe_interval_s=upstream.probe_interval_s,
            describe_timeout_s=upstream.probe_timeout_s,
        ),
        attempts_max=upstream.attempts_max,
    )
    return Pool(backends, client, stop_ids=STOP_IDS, policy=policy, metrics=metrics)


def _preparation(
    settings: Settings, database: Database, models: Models, rendering: Rendering
) -> Preparation:
    harmony = settings.harmony
    return Preparation(
        database=database,
        models=models,
        rendering=rendering,
        limits=PreparationLimits(
            history_depth_max=settings.limits.history_depth_max,
            history_items_max=settings.limits.history_items_max,
        ),
        system_message=SystemMessage(
            identity=harmony.identity,
            knowledge_cutoff=harmony.knowledge_cutoff,
            with_date=harmony.date == "utc",
            commentary_without_tools=harmony.commentary_without_tools,
        ),
        cache_salt_secret=settings.cache_salt_key,
    )


def _schema_limits(settings: Settings) -> SchemaLimits:
    limits = settings.limits
    return SchemaLimits(depth_max=limits.schema_depth_max, nodes_max=limits.schema_nodes_max)


def _edge_limits(settings: Settings) -> EdgeLimits:
    return EdgeLimits(
        body_bytes_max=settings.limits.body_bytes_max,
        body_timeout_s=settings.limits.body_timeout_s,
        start_grace_s=settings.stream.start_grace_s,
        write_timeout_s=settings.stream.write_timeout_s,
        write_bytes_max=settings.stream.write_bytes_max,
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
    )
