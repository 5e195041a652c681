"""Measures what tenants have stored, of those with a limit of it: whichever process comes first."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Protocol

from gateway.errors import StoreError
from gateway.store.limits import storage
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database

LOOK_S = 10.0
"""Seconds between two looks whether a tenant is to be measured, such as one with a new limit."""

_log = EventLog(__name__)


class StorageObserver(Protocol):
    """Counts measurements: the metrics."""

    def storage_measured(self, *, size_bytes: int, fullest: float, seconds: float) -> None: ...


class StorageMeter:
    """The rounds of one process. Content is summed by the database, as `tenants` sees it; turns are
    taken and figures written by `counters`.
    """

    def __init__(
        self,
        tenants: Database,
        counters: Database,
        observer: StorageObserver,
        *,
        interval_s: float = storage.INTERVAL_S,
    ) -> None:
        self._tenants = tenants
        self._counters = counters
        self._observer = observer
        self._interval_s = interval_s

    async def run(self) -> None:
        # Errors of the database do not end the loop.
        pause_s = min(LOOK_S, self._interval_s)
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spread
            try:
                while await self.once():
                    pass
            except StoreError as error:
                _log.warning("what is stored was not measured", error=error)

    async def once(self) -> bool:
        """Measure one tenant. Return False if none is due. Raises `StoreError`."""
        turn = await storage.take_turn(self._counters)
        if turn is None:
            return False
        begun = time.perf_counter()
        sizes = await storage.measure(self._tenants, turn.tenant_id)
        state = await storage.write(self._counters, turn, sizes, interval_s=self._interval_s)
        self._observer.storage_measured(
            size_bytes=state.size_bytes,
            fullest=state.fullest,
            seconds=time.perf_counter() - begun,
        )
        return True
