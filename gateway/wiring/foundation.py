"""Foundation of a process: its databases, its vocabulary, its backends."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import orjson

from gateway import ids
from gateway.errors import ConfigError, installation
from gateway.eventlog.fold.fold import Fold
from gateway.models.format import CHAT, PASSTHROUGH, FormatOptions, Formats, ImageLimits
from gateway.protocol.responses.response_rules import rules_of
from gateway.sealing import Sealer, SealingSecret
from gateway.services.executor import ThreadExecutor
from gateway.services.runs.images import ImageFetcher, ImageVisits
from gateway.services.sessions import Sessions
from gateway.store.tenant_keys import TenantKeys
from gateway.telemetry.metrics import Metrics
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client
from gateway.upstreams.admission.admit import Admission
from gateway.upstreams.admission.slots import AdmissionPolicy
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.backend_sources import Membership
from gateway.upstreams.http.client import build_client
from gateway.upstreams.pool import Pool, PoolPolicy, ProbeSchedule
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.router import Router
from gateway.wiring.databases import (
    COUNTERS_POOL_SIZE,
    JOURNAL_POOL_SIZE,
    LIFELINE_POOL_SIZE,
    NOTICES_POOL_SIZE,
    connect,
    keys_database,
    new_keyring,
)
from gateway.wiring.membership import backends, sources
from gateway.wiring.python import containers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from gateway.constraints.output_rules import OutputRules
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.settings import Settings
    from gateway.settings.sections import Images, Model
    from gateway.store.postgres.database import Database
    from gateway.telemetry.tracing import Tracing
    from gateway.tools.python.container_pool import ContainerPool


@dataclass(slots=True)
class Foundation:
    """Foundation of a process, which claims responses under the name `owner`.

    Claims are renewed over connections of their own (`lifeline`), logs written over `journal`,
    announced and looked for over `notices`, limits kept in step over `counters`: requests that wait
    for a connection must not cost this process its claims, nor the clients of others their tokens.
    `keys` is the database of tenants' keys, if anything is sealed.
    """

    settings: Settings
    owner: str
    metrics: Metrics
    tracing: Tracing | None
    database: Database
    lifeline: Database
    journal: Database
    notices: Database
    counters: Database
    keys: Database | None
    formats: Formats
    sealer: Sealer
    executor: ThreadExecutor
    pool: Pool
    membership: Membership
    images: ImageFetcher
    sessions: Sessions
    containers: ContainerPool

    @classmethod
    def of(cls, settings: Settings) -> Foundation:
        owner, limits = ids.new_replica_id(), settings.limits
        metrics = Metrics(tenant_label_max=settings.telemetry.tenant_label_max)
        keys = keys_database(settings)
        keyring = new_keyring(settings, keys)
        to_database = partial(connect, settings, keyring=keyring, on_failure=metrics.store_failed)
        database = to_database()
        metrics.database_reads(
            taken=lambda: database.taken, count_max=settings.database.pool_size_max
        )
        pool = _pool(settings, metrics)
        model_formats = formats(settings).with_parents(pool.parent_of)
        pool.on_return = model_formats.relearn
        membership = Membership(backends(settings), sources(settings), pool.apply, metrics=metrics)
        pool.awaits_backends = membership.awaits_backends
        return cls(
            settings=settings,
            owner=owner,
            metrics=metrics,
            tracing=_tracing(settings, owner, metrics),
            database=database,
            lifeline=to_database(
                pool_size_max=LIFELINE_POOL_SIZE, answer_within_s=settings.background.heartbeat_s
            ),
            journal=to_database(pool_size_max=JOURNAL_POOL_SIZE, for_runs=True),
            notices=to_database(pool_size_max=NOTICES_POOL_SIZE, for_runs=True),
            counters=to_database(pool_size_max=COUNTERS_POOL_SIZE, for_runs=True),
            keys=keys,
            formats=model_formats,
            sealer=Sealer([SealingSecret(*key) for key in settings.sealing_secrets]),
            executor=ThreadExecutor(
                threads_max=limits.tokenize_threads_max, nice=limits.tokenize_threads_nice
            ),
            pool=pool,
            membership=membership,
            images=image_fetcher(settings, metrics),
            sessions=Sessions(connections_max=settings.websockets.connections_max, metrics=metrics),
            containers=containers(settings.tools.python, database, owner=owner, metrics=metrics),
        )

    def new_fold_for(
        self, head: ResponseHead, rules: OutputRules | None = None
    ) -> Callable[[], Fold]:
        rules = rules or rules_of(head.echo, head.grants)
        seal = None if head.binding is None else partial(self.sealer.seal, head.binding)
        return partial(Fold, head, self.formats.for_model(head.echo["model"]), rules, seal)

    @asynccontextmanager
    async def running(
        self, *helpers: Callable[[], Coroutine[object, object, None]]
    ) -> AsyncIterator[None]:
        # Nothing may use the resources after the block. A helper that fails ends everything:
        # continuing without it would break promises silently.
        try:
            if self.keys is not None:
                await TenantKeys(self.keys).prepare()
            await self.membership.start()
            await self.pool.start()
            always = (self.pool.run, self.membership.run)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(helper()) for helper in (*always, *helpers)]
                yield
                for helper in running:
                    helper.cancel()
        finally:
            self.executor.close()
            await self.images.close()
            await self.pool.close()
            await self.database.keyring.close()
            if self.keys is not None:
                await self.keys.close()

    async def close(self) -> None:
        # The databases must no longer be in use. Side by side: a silent server costs each its wait.
        databases = (self.database, self.lifeline, self.journal, self.notices, self.counters)
        async with asyncio.TaskGroup() as group:
            for database in databases:
                group.create_task(database.close())
        if self.tracing is not None:
            await self.tracing.close()


def load_vocabulary() -> None:
    Formats.load({})


def formats(settings: Settings) -> Formats:
    return Formats.load(
        {model.id: model.format for model in settings.models},
        {
            model.id: _format_options(model, settings.images)
            for model in settings.models
            if model.format in {CHAT, PASSTHROUGH}
        },
    )


def _format_options(model: Model, images: Images) -> FormatOptions:
    template_kwargs = orjson.dumps(model.chat_template_kwargs, option=orjson.OPT_SORT_KEYS)
    return FormatOptions(
        model=model.served_as or model.id,
        tokenizer=model.tokenizer or "",
        reasoning=model.reasoning,
        calls=model.calls,
        template_kwargs=template_kwargs.decode(),
        sees="image" in model.modalities,
        images=ImageLimits(images.bytes_max, images.images_max, images.context_bytes_max),
    )


def image_fetcher(settings: Settings, metrics: Metrics) -> ImageFetcher:
    images = settings.images
    policy = NetworkPolicy.to(images)
    visits = images.fill(ImageVisits)
    limits = EgressLimits(body_bytes_max=images.bytes_max, connections_max=visits.visits_max)
    http = client(policy, limits)
    return ImageFetcher(http, policy, visits, user_agent=settings.tools.web.agent, metrics=metrics)


def _tracing(settings: Settings, owner: str, metrics: Metrics) -> Tracing | None:
    if not settings.telemetry.traces:
        return None
    try:
        from gateway.telemetry.tracing import Tracing
    except ImportError as error:
        raise ConfigError(
            "traces need OpenTelemetry's SDK, which is not installed",
            where="telemetry.traces",
            remedy=f"Install it with: {installation('otel')}",
        ) from error
    return Tracing(ratio=settings.telemetry.trace_share, owner=owner, metrics=metrics)


def _pool(settings: Settings, metrics: Metrics) -> Pool:
    upstream = settings.upstream
    client = build_client()
    policy = upstream.fill(
        PoolPolicy,
        timeouts=Timeouts(
            first_token_s=upstream.first_token_timeout_s, stall_s=upstream.stall_timeout_s
        ),
        schedule=upstream.fill(ProbeSchedule, describe_interval_s=upstream.probe_interval_s),
        leave_s=settings.membership.leave_s,
    )
    router = None
    if settings.routing.policy == "prefix":
        router = Router(
            settings.routing.fill(RoutingPolicy), settings.cache_salt_key, metrics=metrics
        )
    admission = None
    if settings.admission.enabled:
        admission = Admission(settings.admission.fill(AdmissionPolicy), metrics=metrics)
    return Pool(
        backends(settings),
        client,
        policy=policy,
        metrics=metrics,
        router=router,
        admission=admission,
        configured=[model.id for model in settings.models],
    )
