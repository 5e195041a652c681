"""Parts that need no database of the tenants: backends, the vocabulary, threads, sealing keys."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING

import orjson

from gateway import ids
from gateway.models.format import (
    CHAT,
    PASSTHROUGH,
    FormatOptions,
    Formats,
    ImageLimits,
    SchemaLimits,
)
from gateway.sealing import Sealer, SealingSecret
from gateway.services.executor import ThreadExecutor
from gateway.services.runs.images import ImageFetcher, ImageVisits
from gateway.services.sessions import Sessions
from gateway.settings.web import host_and_port
from gateway.store.tenant_keys import TenantKeys
from gateway.telemetry.metrics import Metrics
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client
from gateway.upstreams.admission.admit import Admission
from gateway.upstreams.admission.slots import SLOTS_MIN, SLOTS_START, AdmissionPolicy
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.backend_sources import Membership
from gateway.upstreams.http.client import KeepAlivePolicy, build_client
from gateway.upstreams.http.connection import ConnectionLimits
from gateway.upstreams.pool import Pool, PoolPolicy, ProbeSchedule
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.router import Router
from gateway.upstreams.tokenization import Tokenization
from gateway.wiring.keys import keys_database, new_keyring
from gateway.wiring.membership import backends, sources
from gateway.wiring.python import engines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from gateway.encryption.keyring import Keyring
    from gateway.settings import Settings
    from gateway.settings.images import Images
    from gateway.settings.sections import Model
    from gateway.store.postgres.database import Database
    from gateway.tools.python.container_engine import ContainerEngine


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared parts of a process, which claims responses under the name `owner`."""

    settings: Settings
    metrics: Metrics
    formats: Formats
    sealer: Sealer
    keys: Database | None
    keyring: Keyring
    executor: ThreadExecutor
    pool: Pool
    images: ImageFetcher
    membership: Membership
    sessions: Sessions
    engines: Sequence[ContainerEngine]
    owner: str

    @classmethod
    def of(cls, settings: Settings) -> Shared:
        """Build the shared parts without connecting.

        Raises `StartupError` if a vocabulary is damaged or a format unknown.
        """
        metrics, limits, python = Metrics(), settings.limits, settings.tools.python
        pool = _pool(settings, metrics)
        known = formats(settings).with_parents(pool.parent_of)
        pool.on_return = known.relearn
        membership = Membership(
            backends(settings),
            sources(settings),
            pool.apply,
            members_max=settings.membership.members_max,
            metrics=metrics,
        )
        pool.awaits_backends = membership.awaits_backends
        keys = keys_database(settings)
        return cls(
            settings=settings,
            metrics=metrics,
            formats=known,
            sealer=Sealer([SealingSecret(*key) for key in settings.sealing_secrets]),
            keys=keys,
            keyring=new_keyring(settings, keys),
            executor=ThreadExecutor(
                threads_max=limits.tokenize_threads_max,
                waiting_bytes_max=limits.tokenize_waiting_bytes_max,
                nice=limits.tokenize_threads_nice,
            ),
            pool=pool,
            images=image_fetcher(settings, metrics),
            membership=membership,
            sessions=Sessions(connections_max=settings.websockets.connections_max, metrics=metrics),
            engines=engines(python) if python.enabled else (),
            owner=ids.new_replica_id(),
        )

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
            await self.keyring.close()
            if self.keys is not None:
                await self.keys.close()


def load_vocabulary() -> None:
    """Load the vocabulary of Harmony once per process, for `Shared.of`."""
    Formats.load({}, SchemaLimits(depth_max=1, nodes_max=1))


def formats(settings: Settings) -> Formats:
    """Return the format of each model.

    Raises `StartupError` if a vocabulary is damaged or a format unknown.
    """
    return Formats.load(
        {model.id: model.format for model in settings.models},
        SchemaLimits(),
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
    """Return the fetcher of images that requests name by URL."""
    images = settings.images
    policy = NetworkPolicy(
        networks=tuple(map(ip_network, images.allowed_networks)),
        hosts=frozenset(map(host_and_port, images.allowed_hosts)),
        public=images.public,
    )
    visits = images.fill(ImageVisits)
    limits = EgressLimits(body_bytes_max=images.bytes_max, connections_max=visits.visits_max)
    http = client(policy, limits)
    return ImageFetcher(http, policy, visits, user_agent=images.user_agent, metrics=metrics)


def tokenization(settings: Settings, pool: Pool) -> Tokenization:
    """Return the client that has servers render conversations."""
    upstream = settings.upstream
    return Tokenization(
        pool, timeout_s=upstream.render_timeout_s, attempts_max=upstream.attempts_max
    )


def _pool(settings: Settings, metrics: Metrics) -> Pool:
    upstream = settings.upstream
    client = build_client(
        keep_alive=KeepAlivePolicy(
            connections_max=upstream.connections_max, expiry_s=upstream.keepalive_expiry_s
        ),
        limits=ConnectionLimits(),
    )
    policy = upstream.fill(
        PoolPolicy,
        timeouts=Timeouts(
            connect_s=upstream.connect_timeout_s,
            first_token_s=upstream.first_token_timeout_s,
            stall_s=upstream.stall_timeout_s,
        ),
        schedule=upstream.fill(
            ProbeSchedule,
            describe_interval_s=upstream.probe_interval_s,
            describe_timeout_s=upstream.probe_timeout_s,
        ),
        leave_s=settings.membership.leave_s,
    )
    router = None
    if settings.routing.policy == "prefix":
        router = Router(
            settings.routing.fill(RoutingPolicy), settings.cache_salt_key, metrics=metrics
        )
    admission = None
    if settings.admission.enabled:
        slots_max = settings.admission.slots_max
        slots = {"slots_start": min(SLOTS_START, slots_max), "slots_min": min(SLOTS_MIN, slots_max)}
        admission = Admission(settings.admission.fill(AdmissionPolicy, **slots), metrics=metrics)
    return Pool(
        backends(settings),
        client,
        policy=policy,
        metrics=metrics,
        router=router,
        admission=admission,
        configured=[model.id for model in settings.models],
    )
