"""Services of a process for the tenants of one database: build, run and end them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gateway.protocol.grants import ToolBudget
from gateway.services.containers import Containers
from gateway.services.conversations import Conversations
from gateway.services.creation import Creation
from gateway.services.executor import PromptExecutor
from gateway.services.files import Files
from gateway.services.health import DatabaseCheck
from gateway.services.models import Models
from gateway.services.own_key import OwnKey
from gateway.services.proxy import Proxy
from gateway.services.retrieval import Retrieval
from gateway.services.runs.compaction import Compactor
from gateway.services.runs.history_source import HistorySource
from gateway.services.runs.run_builder import RunBuilder, SpecBuilder
from gateway.services.runs.tool_grants import ToolGrants
from gateway.store import traces
from gateway.upstreams.tokenization import Tokenization
from gateway.wiring.replica import Replica
from gateway.wiring.tools import Sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gateway.protocol.traces import TraceRecord
    from gateway.tenancy import TenantId
    from gateway.wiring.foundation import Foundation
    from gateway.wiring.tools import Rooms

CLAIMS_WAIT_S = 3.0
"""Seconds that a process that drains waits for the answer to its last look for work, at most."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services for the tenants of one database, and what is behind them."""

    foundation: Foundation
    replica: Replica
    models: Models
    database_check: DatabaseCheck
    retrieval: Retrieval
    creation: Creation
    proxy: Proxy
    run_builder: RunBuilder
    tool_grants: ToolGrants
    keep_traces: Callable[[TenantId, Sequence[TraceRecord]], Awaitable[None]]
    conversations: Conversations
    files: Files
    containers: Containers
    own_key: OwnKey

    @classmethod
    def of(cls, base: Foundation) -> Services:
        """Build the services without connecting. Raises `StartupError` for incomplete settings."""
        settings = base.settings
        replica = Replica.of(base)
        models = Models(
            base.pool,
            aliases=settings.model_aliases,
            efforts={model.id: model.reasoning_effort for model in settings.models},
            tasks={model.id: model.tasks for model in settings.models},
            abilities={
                model.id: base.formats.for_model(model.id).abilities for model in settings.models
            },
        )
        retrieval = Retrieval(
            database=base.database,
            feed=replica.feed,
            archive=replica.dependencies.archive,
        )
        files = Files(
            base.database,
            base.containers.policy.files,
            replica.limiter,
            now=base.containers.now,
        )
        containers = Containers(base.database, base.containers, files, settings.tools.python)
        tool_grants = _tool_grants(base, replica.rooms, containers)
        compactor = Compactor(replica.dependencies.engine, base.new_fold_for, base.sealer)
        run_builder = _run_builder(base, models, compactor, tool_grants)
        return cls(
            foundation=base,
            replica=replica,
            models=models,
            database_check=DatabaseCheck(base.database, base.lifeline, base.journal),
            retrieval=retrieval,
            creation=Creation(
                replica.dependencies,
                replica.runs,
                builder=run_builder,
                database=base.database,
                retrieval=retrieval,
                lease_keeper=replica.lease_keeper,
                models=models,
                limiter=replica.limiter,
                key_ttl_s=settings.retention.idempotency_key_s,
            ),
            proxy=_proxy(base, models, replica),
            run_builder=run_builder,
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
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve for the block; then hand over durable runs and end the rest.

        A helper that fails ends everything: continuing without it would break promises silently.
        """
        base, replica = self.foundation, self.replica
        try:
            await replica.rooms.start()
            await replica.drains.once()  # before the first request is taken
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(helper()) for helper in replica.helpers]
                try:
                    yield
                finally:
                    await self.begin_drain()
                    self.end_streams()
                    await replica.dependencies.supervisor.drain()
                    await replica.dependencies.engine.calls.close()
                    for helper in helpers:
                        helper.cancel()
            await replica.dependencies.archive.flush()
            await replica.notifier.flush()
            await replica.limiter.flush()
        finally:
            await replica.rooms.close()
            await base.close()

    async def begin_drain(self) -> None:
        """Start to drain: claim no more runs, and hand over durable ones.

        Returns when other replicas may continue those; everything else goes on. May be repeated.
        """
        await self.replica.dependencies.supervisor.begin_drain()
        await self.replica.scheduler.at_rest(wait_s=CLAIMS_WAIT_S)
        self.replica.scheduler.wake()

    def end_streams(self) -> None:
        # Clients resume durable responses at another replica. Their streams would keep this process
        # from ending for as long as others generate.
        self.replica.feed.close()


def _proxy(base: Foundation, models: Models, replica: Replica) -> Proxy:
    book = replica.dependencies.archive.book
    return Proxy(base.pool, models, base.executor, base.metrics, replica.limiter, book)


def _tool_grants(base: Foundation, rooms: Rooms, containers: Containers) -> ToolGrants:
    # Without an executor no tools are granted.
    sources = None if rooms.executor is None else Sources(base, rooms, containers)
    tools = base.settings.tools
    return ToolGrants(sources, tools.fill(ToolBudget), needs_listings=tools.mcp.strict)


def _run_builder(
    base: Foundation, models: Models, compactor: Compactor, tool_grants: ToolGrants
) -> RunBuilder:
    settings = base.settings
    rendering = Tokenization(base.pool, attempts_max=settings.upstream.attempts_max)
    return RunBuilder(
        history_source=HistorySource(base.database),
        models=models,
        specs=SpecBuilder(
            base.formats.for_model,
            system_message=settings.harmony,
            cache_salt_key=settings.cache_salt_key,
            sealer=base.sealer,
        ),
        compactor=compactor,
        tool_grants=tool_grants,
        executor=PromptExecutor(base.executor, rendering, base.images),
    )
