"""Drained backends: they get no new requests, and the gateway reports what they have in flight."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import StoreError
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from gateway.telemetry.metrics import Metrics

TOLD_AGAIN_S: Final = 10.0
"""Seconds between two reports without a change: without them a replica counts as gone."""

DRAIN_POLL_S: Final = 2.0
"""Until every replica knows that a backend is drained, or not."""
_log = EventLog(__name__)


class Drainable(Protocol):
    """A pool whose members can be drained."""

    def drain(self, names: Collection[str]) -> None: ...

    def in_flight(self) -> Mapping[str, int]: ...


class Drains:
    """Asks the table for what is drained, at an interval; no request waits for it.

    While the database is away what was known before counts.
    """

    def __init__(
        self,
        pool: Drainable,
        drained: Callable[[], Awaitable[Collection[str]]],
        report: Callable[[Mapping[str, int]], Awaitable[None]],
        *,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # `drained` reads the names, `report` sends how much is in flight at each. Both raise
        # `StoreError`.
        self._pool = pool
        self._drained = drained
        self._report = report
        self._metrics = metrics
        self._clock = clock
        self._told: dict[str, int] = {}
        self._told_at = float("-inf")
        self._is_well = True

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(DRAIN_POLL_S)

    async def once(self) -> None:
        try:
            names = sorted(await self._drained())
            self._pool.drain(names)
            self._metrics.backends_drained(len(names))
            await self._tell(names)
        except StoreError as error:
            if self._is_well:
                _log.warning("it is not known which backends are drained", error=error)
            self._is_well = False
        else:
            self._is_well = True

    async def _tell(self, names: Collection[str]) -> None:
        # Reported also if nothing is in flight or the backend is unknown here: the drain command
        # waits for it.
        here = self._pool.in_flight()
        counts = {name: here.get(name, 0) for name in names}
        now = self._clock()
        if not counts or (counts == self._told and now - self._told_at < TOLD_AGAIN_S):
            self._told = counts
            return
        await self._report(counts)
        self._told, self._told_at = counts, now
