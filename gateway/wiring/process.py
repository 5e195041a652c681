"""A whole gateway without its HTTP: what it offers to the edge, and how it lives and ends."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.engine.summarizer import Summarizer
from gateway.protocol.grants import ToolBudget
from gateway.services.compaction import CompactionLimits, Compactor
from gateway.services.containers import ContainerBounds, Containers
from gateway.services.conversations import Conversations
from gateway.services.creation import Creation
from gateway.services.files import Files
from gateway.services.health import DatabaseCheck, Health
from gateway.services.history_source import HistorySource
from gateway.services.models import Models
from gateway.services.prompt_executor import PromptExecutor
from gateway.services.retrieval import Retrieval
from gateway.services.run_builder import RunBuilder, SpecBuilder, SystemMessage
from gateway.services.sessions import Sessions
from gateway.services.tool_grants import ToolGrants
from gateway.store import traces
from gateway.wiring.foundation import Foundation, access, tokenization
from gateway.wiring.replica import Replica
from gateway.wiring.tools import Sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gateway.protocol.traces import TraceRecord
    from gateway.services.access import Access
    from gateway.settings import Settings
    from gateway.tenancy import TenantId
    from gateway.wiring.tools import Rooms

CLAIMS_WAIT_S = 3.0
"""How long a process that drains waits for the answer to its last look for work."""
SWITCH_INTERVAL_S = 0.0001
"""How long a thread may keep the interpreter while the event loop waits for it. With Python's 5 ms
each of the loop's system calls beside a busy thread can cost as much: it gives the interpreter away
between any two sockets."""
GC_THRESHOLDS = (1_500, 3, 700)
"""Containers made and not freed between two collections of the youngest, collections of these
between two of those that outlived one, and of these between two of all. A request leaves nothing
behind that only a collection finds, and one of all that a thousand streams hold would be a pause of
20 ms. Those of the younger two take about 1 ms at most."""
LIBRARIES = ("cryptography", "jsonschema_rs", "llguidance")
"""What requests with tools, formats and sealed reasoning import: 37 MB of compiled code."""


@dataclass(frozen=True, slots=True)
class Process:
    """The services of one process, and what is behind them."""

    foundation: Foundation
    replica: Replica
    access: Access
    models: Models
    health: Health
    retrieval: Retrieval
    creation: Creation
    run_builder: RunBuilder
    tool_grants: ToolGrants
    sessions: Sessions
    keep_traces: Callable[[TenantId, Sequence[TraceRecord]], Awaitable[None]]
    conversations: Conversations
    files: Files
    containers: Containers

    @classmethod
    def of(cls, settings: Settings) -> Process:
        """Raises `StartupError` for settings that are not complete; connects to nothing."""
        base = Foundation.of(settings)
        replica = Replica.of(base)
        models = Models(
            base.pool,
            aliases={alias: model.id for model in settings.models for alias in model.aliases},
            efforts={model.id: model.reasoning_effort for model in settings.models},
            abilities={model.id: base.formats.of(model.id).abilities for model in settings.models},
        )
        retrieval = Retrieval(
            database=base.database,
            feed=replica.feed,
            archive=replica.dependencies.archive,
        )
        files = Files(base.database, base.containers.policy.files, now=base.containers.now)
        containers = Containers(
            base.database, base.containers, files, settings.tools.python.fill(ContainerBounds)
        )
        tool_grants = _tool_grants(base, replica.rooms, containers)
        run_builder = _run_builder(base, models, _compactor(base, replica), tool_grants)
        return cls(
            foundation=base,
            replica=replica,
            access=access(settings, base.database),
            models=models,
            health=Health(
                DatabaseCheck(base.database, base.lifeline, base.journal), base.pool, base.metrics
            ),
            retrieval=retrieval,
            creation=Creation(
                replica.dependencies,
                replica.runs,
                builder=run_builder,
                database=base.database,
                retrieval=retrieval,
                lease_keeper=replica.lease_keeper,
                key_ttl_s=settings.retention.idempotency_key_s,
            ),
            run_builder=run_builder,
            tool_grants=tool_grants,
            keep_traces=partial(traces.put, base.database),
            conversations=Conversations(
                base.database,
                models=models,
                sealer=base.sealer,
                format_=base.formats.default,
                executor=base.executor,
                items_max=settings.limits.history_items_max,
            ),
            files=files,
            containers=containers,
            sessions=Sessions(
                connections_max=settings.websockets.connections_max, metrics=base.metrics
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while entered; at the end hand durable runs over, and end what is left.

        A helper that ends by an error ends all of this: without it promises would be broken
        silently.
        """
        base, replica = self.foundation, self.replica
        _read_ahead(LIBRARIES)
        await base.pool.start()
        try:
            await replica.rooms.start()
            _keep_pauses_short()
            async with asyncio.TaskGroup() as group:
                running = (base.pool.run, self.access.run, *replica.helpers)
                helpers = [group.create_task(helper()) for helper in running]
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
        finally:
            await replica.rooms.close()
            await base.close()

    async def begin_drain(self) -> None:
        """The process is about to end: it is not ready, claims nothing more, and lets others go on
        with its durable runs. Returns when they may; everything else goes on. May be repeated.
        """
        self.health.begin_drain()
        await self.replica.dependencies.supervisor.begin_drain()
        await self.replica.scheduler.at_rest(wait_s=CLAIMS_WAIT_S)
        self.replica.scheduler.wake()

    def end_streams(self) -> None:
        """Cut off the streams of durable responses, without an end: clients resume them elsewhere.

        They would keep the process from ending for as long as others generate.
        """
        self.replica.feed.close()
        self.sessions.close()


def _compactor(base: Foundation, replica: Replica) -> Compactor:
    compaction = base.settings.compaction
    return Compactor(
        Summarizer(replica.dependencies.engine, base.new_fold_for),
        base.formats.of,
        base.sealer,
        limits=compaction.fill(CompactionLimits, effort=compaction.reasoning_effort),
    )


def _tool_grants(base: Foundation, rooms: Rooms, containers: Containers) -> ToolGrants:
    """Without a room nothing is granted."""
    sources = None if rooms.executor is None else Sources(base, rooms, containers)
    return ToolGrants(sources, base.settings.tools.fill(ToolBudget))


def _run_builder(
    base: Foundation, models: Models, compactor: Compactor, tool_grants: ToolGrants
) -> RunBuilder:
    settings = base.settings
    limits = settings.limits
    return RunBuilder(
        history_source=HistorySource(
            base.database,
            depth_max=limits.history_depth_max,
            items_max=limits.history_items_max,
        ),
        models=models,
        specs=SpecBuilder(
            base.formats.of,
            system_message=settings.harmony.fill(
                SystemMessage, with_date=settings.harmony.date == "utc"
            ),
            cache_salt_key=settings.cache_salt_key,
            sealer=base.sealer,
            answer_share=settings.generation.answer_share,
        ),
        compactor=compactor,
        tool_grants=tool_grants,
        executor=PromptExecutor(base.executor, tokenization(settings, base.pool)),
    )


def _read_ahead(packages: Sequence[str]) -> None:
    """Have the system read the compiled code of packages from the disk, and do not wait for it.

    The first request that needs one imports it in 20 ms, but from a busy disk it may take seconds.
    Imported here they would be 12 MiB of every process, whether it needs them or not. So one that
    is installed, but cannot be loaded, is noticed by the first request that needs it.
    """
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
    """Set up the interpreter for one event loop beside a few busy threads.

    What was made until now lives as long as the process: no collection has to look at it again.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    gc.freeze()
    _give_memory_back()


def _give_memory_back() -> None:
    """Have glibc return free memory to the system: it keeps some megabytes that reading the
    vocabulary took. Other C libraries have no such call, and return it by themselves.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
