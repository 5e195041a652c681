"""A gateway without its HTTP: its services, built, run and ended."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.api.request_body import BodyBounds
from gateway.protocol.grants import ToolBudget
from gateway.services.access import OwnKey
from gateway.services.containers import Containers, Files
from gateway.services.conversations import Conversations
from gateway.services.creation import Creation
from gateway.services.federation import KEYS_BYTES_MAX, Federation, IssuerClient, KeySets
from gateway.services.health import DatabaseCheck, Health
from gateway.services.models import Models
from gateway.services.proxy import Proxy
from gateway.services.retrieval import Retrieval
from gateway.services.runs.compaction import Compactor
from gateway.services.runs.history_source import HistorySource
from gateway.services.runs.rebuilding import Rebuilder
from gateway.services.runs.run_builder import PromptExecutor, RunBuilder
from gateway.services.runs.spec_builder import SpecBuilder
from gateway.services.runs.tool_grants import ToolGrants
from gateway.store import traces
from gateway.telemetry.logs import EventLog
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client
from gateway.upstreams.tokenization import Tokenization
from gateway.wiring.databases import access
from gateway.wiring.foundation import Foundation
from gateway.wiring.replica import Replica
from gateway.wiring.tool_rooms import Sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gateway.protocol.trace_records import TraceRecord
    from gateway.services.access import Access
    from gateway.settings import Settings
    from gateway.tenancy import TenantId
    from gateway.wiring.tool_rooms import Rooms

_log = EventLog(__name__)

CLAIMS_WAIT_S = 3.0
"""Seconds that a draining process waits for its last look for work."""
STATE_WAIT_S: Final = 5.0
"""Seconds that an ending process waits for the database to take uses of keys, notices, counts of
limits. A silent one would cost each statement its whole timeout."""
SWITCH_INTERVAL_S = 0.0001
"""Seconds that a thread may keep the interpreter from the event loop: with Python's 5 ms each of
the loop's system calls beside a busy thread can cost as much."""
GC_THRESHOLDS = (1_500, 3, 700)
"""A request leaves nothing behind that only a collection finds. One of all that a thousand streams
hold would be a pause of 20 ms; those of the younger generations take about 1 ms."""
LIBRARIES = ("cryptography", "jsonschema_rs", "llguidance")
"""Compiled code (37 MB) of requests with tools, formats and sealed reasoning."""


@dataclass(frozen=True, slots=True)
class Process:
    foundation: Foundation
    replica: Replica
    models: Models
    retrieval: Retrieval
    creation: Creation
    rebuilder: Rebuilder
    proxy: Proxy
    tool_grants: ToolGrants
    keep_traces: Callable[[TenantId, Sequence[TraceRecord]], Awaitable[None]]
    conversations: Conversations
    files: Files
    containers: Containers
    own_key: OwnKey
    access: Access
    federation: Federation
    health: Health
    body_bounds: BodyBounds

    @classmethod
    def of(cls, settings: Settings) -> Process:
        """Build the process without connecting."""
        base = Foundation.of(settings)
        replica, models, federation = Replica.of(base), _models(base), _federation(base)
        retrieval = Retrieval(
            database=base.database,
            feed=replica.feed,
            archive=replica.dependencies.archive,
            format_of=base.formats.for_model,
        )
        files = Files(
            base.database, base.containers.policy.files, replica.limiter, now=base.containers.now
        )
        containers = Containers(base.database, base.containers, files, settings.tools.python)
        tool_grants = _tool_grants(base, replica.rooms, containers)
        compactor = Compactor(replica.dependencies.engine, base.new_fold_for, base.sealer)
        specs, executor = _prompts(base)
        return cls(
            foundation=base,
            replica=replica,
            models=models,
            retrieval=retrieval,
            creation=Creation(
                replica.dependencies,
                replica.runs,
                builder=RunBuilder(
                    history_source=HistorySource(base.database),
                    models=models,
                    specs=specs,
                    compactor=compactor,
                    tool_grants=tool_grants,
                    executor=executor,
                ),
                database=base.database,
                retrieval=retrieval,
                lease_keeper=replica.lease_keeper,
                models=models,
                require_room=base.pool.require_room,
                limiter=replica.limiter,
                key_ttl_s=settings.retention.idempotency_key_s,
            ),
            rebuilder=Rebuilder(base.database, models, specs, executor),
            proxy=_proxy(base, models, replica),
            tool_grants=tool_grants,
            keep_traces=partial(traces.put, base.database),
            conversations=Conversations(
                base.database,
                models=models,
                sealer=base.sealer,
                format_=base.formats.default,
                executor=base.executor,
                limiter=replica.limiter,
            ),
            files=files,
            containers=containers,
            own_key=OwnKey(base.database, replica.limiter),
            access=access(settings, base.database, federation),
            federation=federation,
            health=_health(base),
            body_bounds=BodyBounds(settings.limits.body_bytes_max, settings.limits.body_timeout_s),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve for the block; then hand over durable runs and end the rest."""
        _read_ahead(LIBRARIES)
        async with AsyncExitStack() as stack:
            helpers = (self.access.run, self.access.uses.run)
            await stack.enter_async_context(self.foundation.running(*helpers))
            await stack.enter_async_context(self._replicating())
            stack.push_async_callback(self.federation.key_sets.close)
            _keep_pauses_short()
            try:
                yield
            finally:
                await self.begin_drain()
                self.end_streams()

    @asynccontextmanager
    async def _replicating(self) -> AsyncIterator[None]:
        base, replica = self.foundation, self.replica
        try:
            await replica.rooms.start()
            await replica.drains.once()  # before the first request is taken
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(helper()) for helper in replica.helpers]
                try:
                    yield
                finally:
                    await replica.dependencies.supervisor.drain()
                    await replica.dependencies.engine.calls.close()
                    for helper in helpers:
                        helper.cancel()
            await replica.dependencies.archive.flush()
            await self._write_state()
        finally:
            await replica.rooms.close()
            await base.close()

    async def _write_state(self) -> None:
        replica = self.replica
        try:
            async with asyncio.timeout(STATE_WAIT_S), asyncio.TaskGroup() as group:
                for one in (self.access.uses, replica.notifier, replica.limiter):
                    group.create_task(one.flush())
        except TimeoutError:
            _log.warning("the database did not take the last uses of keys and limits in time")

    async def begin_drain(self) -> None:
        """Report not ready, claim no more runs, hand over durable ones; all else goes on.

        Returns when other replicas may continue those.
        """
        self.health.begin_drain()
        await self.replica.dependencies.supervisor.begin_drain()
        await self.replica.scheduler.at_rest(wait_s=CLAIMS_WAIT_S)
        self.replica.scheduler.wake()

    def end_streams(self) -> None:
        # Clients resume durable responses at another replica. Their streams would keep this process
        # from ending for as long as others generate.
        self.replica.feed.close()
        self.foundation.sessions.close()


def _models(base: Foundation) -> Models:
    configured = base.settings.models
    return Models(
        base.pool,
        base.formats.for_model,
        aliases=base.settings.model_aliases,
        efforts={model.id: model.reasoning_effort for model in configured},
        tasks={model.id: model.tasks for model in configured},
    )


def _health(base: Foundation) -> Health:
    check = DatabaseCheck(base.database, base.lifeline, base.journal)
    return Health(check, base.pool, base.metrics, base.membership)


def _proxy(base: Foundation, models: Models, replica: Replica) -> Proxy:
    dependencies = replica.dependencies
    return Proxy(base.pool, models, base.executor, base.metrics, replica.limiter, dependencies)


def _tool_grants(base: Foundation, rooms: Rooms, containers: Containers) -> ToolGrants:
    # Without an executor no tools are granted.
    sources = None if rooms.executor is None else Sources(base, rooms, containers)
    tools = base.settings.tools
    return ToolGrants(sources, tools.fill(ToolBudget), needs_listings=tools.mcp.strict)


def _prompts(base: Foundation) -> tuple[SpecBuilder, PromptExecutor]:
    specs = SpecBuilder(
        system_message=base.settings.harmony,
        cache_salt_key=base.settings.cache_salt_key,
        sealer=base.sealer,
    )
    rendering = Tokenization(base.pool, attempts_max=base.settings.upstream.attempts_max)
    return specs, PromptExecutor(base.executor, specs.work_bytes, rendering, base.images)


def _federation(base: Foundation) -> Federation:
    chosen = base.settings.federation
    policy = NetworkPolicy.to(chosen, plain_http=chosen.plain_http)
    http = client(policy, EgressLimits(body_bytes_max=KEYS_BYTES_MAX))
    return Federation(
        base.database,
        KeySets(IssuerClient(http, policy, metrics=base.metrics)),
        base.sealer,
        token_lifetime_s=chosen.exchanged_token_s,
        defaults=base.settings.tenant_policy,
    )


def _read_ahead(packages: Sequence[str]) -> None:
    # The first request that needs a package imports it in 20 ms, but seconds from a busy disk.
    # Imported here they would take 12 MiB of every process. A package that cannot be loaded is
    # noticed by the first request that needs it, or by `doctor`.
    if not hasattr(os, "posix_fadvise"):
        return  # on macOS
    for package in packages:
        spec = find_spec(package)
        assert spec is not None, "it is one of the dependencies"
        for folder in spec.submodule_search_locations or ():
            for library in Path(folder).rglob("*.so"):
                with suppress(OSError), library.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _keep_pauses_short() -> None:
    # One event loop runs beside a few busy threads. Objects made until now live as long as the
    # process, so the garbage collector need not scan them again.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    gc.freeze()
    _give_memory_back()


def _give_memory_back() -> None:
    # glibc keeps some megabytes that reading the vocabulary took. Other C libraries lack this call,
    # and return memory by themselves.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
