"""Once in a while what is spent is compared with the lines of usage, and put right."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import StoreError
from gateway.store.limits.reconciliation import forget, reconcile
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database

INTERVAL_S: Final = 3600.0
"""Between two comparisons."""

_log = EventLog(__name__)


class AuditObserver(Protocol):
    """Counts the corrections that an audit makes: the metrics."""

    def spend_corrected(self, count: int) -> None: ...


class SpendAudit:
    """Rounds of one process; the first process to begin one does the work."""

    def __init__(
        self,
        database: Database,
        observer: AuditObserver,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._database = database
        self._observer = observer
        self._interval_s = interval_s

    async def run(self) -> None:
        # Errors of the database do not end the loop.
        while True:
            await asyncio.sleep(self._interval_s * random.uniform(0.5, 1.0))  # noqa: S311 - spread
            try:
                await self.round()
            except StoreError as error:
                _log.warning("spending was not compared with usage", error=error)

    async def round(self) -> int:
        """Compare once and remove old records; return the number of wrong meters.

        Raises `StoreError`.
        """
        now = datetime.now(UTC)
        corrections = await reconcile(self._database, now)
        await forget(self._database, now)
        for one in corrections:
            _log.warning(
                "what is spent was not what usage has",
                kind=one.meter.rpartition("/")[2],
                count=one.truth - one.told,
            )
        self._observer.spend_corrected(len(corrections))
        return len(corrections)
