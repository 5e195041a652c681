"""Turns of tenants: a queue, slots, and gates of requests and reads on the event loop.

The loop does all that has come before it looks for more: without gates, what one tenant sends at
once would go before what another sends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

T = TypeVar("T")

ROUND_S: Final = 0.002
"""Seconds from the start of a round in which every request may begin."""
COST_S: Final = 0.002
SHARE: Final = 0.25
"""Part of a round for requests that begin; other work may make a round long."""
BURST_BYTES: Final = 128 * 1024
"""Work on reads before the event loop has its turn. A read that waits for another round costs 40 %
more, so an engine's step of a hundred streams should fit."""
READ_BYTES: Final = 512
"""Fixed cost of a read, as bytes."""


class FairQueue(Generic[T]):
    """Items in order within a tenant; tenants take turns."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[T]] = {}
        """Items by tenant; the first tenant is the next."""

    def __contains__(self, tenant: object) -> bool:
        return tenant in self._waiting

    def __len__(self) -> int:
        # Counts tenants, not items.
        return len(self._waiting)

    def put(self, tenant: Hashable, item: T) -> None:
        self._waiting.setdefault(tenant, deque()).append(item)

    def take(self) -> tuple[Hashable, T]:
        """Remove the next item; its tenant becomes the last in turn."""
        if not self._waiting:
            raise KeyError
        tenant = next(iter(self._waiting))
        items = self._waiting.pop(tenant)
        item = items.popleft()
        if items:
            self._waiting[tenant] = items
        return tenant, item


class FairWaiters(FairQueue[asyncio.Future[None]]):
    __slots__ = ()

    def add(self, tenant: Hashable) -> asyncio.Future[None]:
        """Return a future to await; cancelling it gives up the turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.put(tenant, turn)
        return turn

    def release(self) -> tuple[Hashable] | None:
        """End the wait of the next task and return its tenant."""
        while self._waiting:
            tenant, turn = self.take()
            if not turn.done():
                turn.set_result(None)
                return (tenant,)
        return None


class FairSlots:
    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting = FairWaiters()

    @asynccontextmanager
    async def taken(self, tenant: Hashable) -> AsyncIterator[None]:
        await self._take(tenant)
        try:
            yield
        finally:
            self._leave()

    async def _take(self, tenant: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        turn = self._waiting.add(tenant)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        if self._waiting.release() is None:
            self._free += 1


class Turns:
    """Gate of requests: of a tenant only a few begin in one round of the loop, the first one
    always.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = 0.0
        self._is_round = False
        self._begun: set[Hashable] = set()
        self._waiting = FairWaiters()

    def begin(self, tenant: Hashable) -> asyncio.Future[None] | None:
        """Return the future to await before the tenant begins; None: it may begin now."""
        if not self._is_round:
            self._is_round = True
            self._since = self._clock()
            asyncio.get_running_loop().call_soon(self._next_round)
        if tenant not in self._waiting and (
            tenant not in self._begun or self._clock() - self._since < ROUND_S
        ):
            self._begun.add(tenant)
            return None
        return self._waiting.add(tenant)

    def _next_round(self) -> None:
        self._begun.clear()
        if not self._waiting:
            self._is_round = False
            return
        now = self._clock()
        count = max(1, int(SHARE * (now - self._since) / COST_S))
        self._since = now
        asyncio.get_running_loop().call_soon(self._next_round)
        for _ in range(min(count, len(self._waiting))):
            self._begun.update(self._waiting.release() or ())


class ReadTurns:
    """Gate of the reads of one process's streams, which take turns after `BURST_BYTES`.

    Work is counted in bytes, not in seconds: a process that gets little of a busy machine would let
    all its reads wait, which takes even more of it.
    """

    def __init__(self) -> None:
        self._burst_bytes = 0
        self._served: set[Hashable] = set()
        self._waiting: FairQueue[tuple[int, Callable[[], None]]] = FairQueue()
        self._is_due = False

    def begin(self, tenant: Hashable, size: int) -> bool:
        """Return True if a read of `size` bytes may be parsed now; otherwise call `wait`."""
        if self._waiting:
            if tenant in self._waiting or tenant in self._served:
                return False
            self._served.add(tenant)
            return True
        if self._burst_bytes >= BURST_BYTES:
            return False
        self._burst_bytes += size + READ_BYTES
        if self._burst_bytes >= BURST_BYTES // 2:
            # The round begins before the burst is over, unless all of it is one turn of the loop.
            self._schedule_round()
        return True

    def wait(self, tenant: Hashable, size: int, callback: Callable[[], None]) -> None:
        self._schedule_round()
        self._waiting.put(tenant, (size, callback))

    def _schedule_round(self) -> None:
        if not self._is_due:
            self._is_due = True
            # In an empty context, or it keeps that of the request which happens to be the first.
            asyncio.get_running_loop().call_soon(self._run_round, context=Context())

    def _run_round(self) -> None:
        self._served.clear()
        self._burst_bytes = 0
        self._is_due = False
        try:
            while self._waiting and self._burst_bytes < BURST_BYTES:
                tenant, (size, callback) = self._waiting.take()
                self._served.add(tenant)
                self._burst_bytes += size + READ_BYTES
                callback()
        finally:
            if self._waiting:
                self._schedule_round()
