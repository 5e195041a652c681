"""The owner of every task that may outlive the request that started it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.concurrency import start_task
from gateway.engine import outcome
from gateway.errors import ClaimLost, RateLimited, StoreError
from gateway.held_bytes import SHARE_OF_FREE
from gateway.store.notices import Notice
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.engine.engine import RunningCalls
    from gateway.engine.runner import Run
    from gateway.store.claims import Claim
    from gateway.tenancy import TenantId

    Release = Callable[[Sequence[Claim]], Awaitable[None]]

_log = EventLog(__name__)


class LogChannel(Protocol):
    async def flushed(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Durable:
    """Run with which other replicas can go on; `is_claimed`: it takes no place of requests here."""

    claim: Claim
    channel: LogChannel
    is_claimed: bool


@dataclass(frozen=True, slots=True)
class _Running:
    run: Run
    durable: Durable | None
    on_end: Callable[[], None] | None


class Supervisor:
    """Starts runs, bounds their number, and ends or hands them over on a drain."""

    def __init__(
        self,
        *,
        in_flight_max: int,
        release: Release,
        announce: Callable[[Notice], None],
        calls: RunningCalls,
        calls_wait_s: float = 0.0,
        flush_wait_s: float = 3.0,
    ) -> None:
        # `release` is `store.claims.release`. `flush_wait_s` bounds each step of handing over,
        # `calls_wait_s` the wait for `calls` of hosted tools that must not be repeated.
        self.in_flight_max = in_flight_max
        self._release = release
        self._announce = announce
        self._calls = calls
        self._calls_wait_s = calls_wait_s
        self._flush_wait_s = flush_wait_s
        self._prepared: Counter[TenantId] = Counter()
        """Runs of requests to this process that are being prepared."""
        self._of_tenants: Counter[TenantId] = Counter()
        """Runs of such requests that have begun."""
        self._running: dict[asyncio.Task[None], _Running] = {}
        self.claimed = 0
        """Runs that this process claimed, without a request to it."""
        self.is_draining = False

    @property
    def runs(self) -> list[Run]:
        # The responses that this process generates, in the order in which they began.
        return [running.run for running in self._running.values()]

    @property
    def in_flight(self) -> int:
        # Runs of requests to this process; claimed runs do not count.
        return len(self._running) - self.claimed

    @contextmanager
    def admitted(self, tenant_id: TenantId) -> Iterator[None]:
        """Reserve capacity, or raise `RateLimited`; start the run before the block ends."""
        free = self.in_flight_max - self._prepared.total() - self.in_flight
        own = self._prepared[tenant_id] + self._of_tenants[tenant_id]
        if free <= 0 or own >= SHARE_OF_FREE * free:
            raise RateLimited(
                "The server is processing as many requests as it can. Please retry in a moment.",
                code="rate_limit_exceeded",
            )
        self._prepared[tenant_id] += 1
        try:
            yield
        finally:
            _count_off(self._prepared, tenant_id)

    def start(
        self, run: Run, *, durable: Durable | None = None, on_end: Callable[[], None] | None = None
    ) -> None:
        task = start_task(run())
        self._running[task] = _Running(run, durable, on_end)
        if durable is None or not durable.is_claimed:
            self._of_tenants[run.spec.principal.tenant_id] += 1
        if durable is not None:
            self.claimed += durable.is_claimed
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        running = self._running.pop(task)
        durable = running.durable
        if durable is not None:
            self.claimed -= durable.is_claimed
        if durable is None or not durable.is_claimed:
            _count_off(self._of_tenants, running.run.spec.principal.tenant_id)
        running.run.settle()
        if running.on_end is not None:
            running.on_end()

    async def begin_drain(self) -> None:
        """Claim nothing more, and hand the durable runs over before their leases lapse.

        A call that must not be repeated may end first: others could only tell the model that its
        outcome is unknown.
        """
        self.is_draining = self._calls.is_draining = True
        leaving = {task: one for task, one in self._running.items() if one.durable is not None}
        ends = {task: end for task, one in leaving.items() if (end := one.run.running_call)}
        await self._hand_over({task: one for task, one in leaving.items() if task not in ends})
        if ends:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._calls_wait_s):
                    for end in ends.values():
                        await end.wait()
            await self._hand_over({task: leaving[task] for task in ends if not task.done()})

    async def _hand_over(self, running: Mapping[asyncio.Task[None], _Running]) -> None:
        leaving = {task: one.durable for task, one in running.items() if one.durable is not None}
        if not leaving:
            return
        await self._flush(leaving.values())
        for task, durable in leaving.items():
            running[task].run.abandon()
            durable.channel.close()
        _, late = await asyncio.wait(leaving, timeout=self._flush_wait_s)
        for task in late:
            # It waits for the database to take its end; whoever claims it next comes to the same.
            task.cancel()
        if late:
            await asyncio.wait(late)
        try:
            await self._release([durable.claim for durable in leaving.values()])
        except StoreError as error:
            _log.warning("claims were not released; their leases will lapse", error=error)
        else:
            self._announce(Notice("work"))

    async def drain(self) -> None:
        """Hand over the durable runs and end the others as failed; return when that is committed.

        The server has let open streams finish before.
        """
        await self.begin_drain()
        for one in self._running.values():
            if one.durable is None:
                one.run.cancel(outcome.shut_down)
        if self._running:
            await asyncio.wait(self._running)

    async def _flush(self, leaving: Iterable[Durable]) -> None:
        # Output that is in the log need not be generated again by another replica.
        try:
            async with asyncio.timeout(self._flush_wait_s), asyncio.TaskGroup() as group:
                for one in leaving:
                    group.create_task(_flush_one(one.channel))
        except TimeoutError:
            _log.warning("a log was not flushed in time")


def _count_off(counts: Counter[TenantId], tenant_id: TenantId) -> None:
    counts[tenant_id] -= 1
    if not counts[tenant_id]:
        del counts[tenant_id]


async def _flush_one(channel: LogChannel) -> None:
    with suppress(ClaimLost):
        await channel.flushed()
