"""Jobs of the ledger. Every process runs them; of several, the first to come does the work."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import StoreError
from gateway.store.ledger import reconciliation, rollup
from gateway.telemetry.logs import EventLog
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.store.ledger.reconciliation import Correction, Found
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics

_log = EventLog(__name__)

ADDING_INTERVAL_S: Final = 15.0
RECONCILING_INTERVAL_S: Final = 3600.0
BACK_S: Final = 2 * 86_400.0
"""Seconds into the past over which lines, sums and responses are compared."""
FOUND_MAX: Final = 1_000
"""Differences of each kind that one round finds."""
LOGGED_MAX: Final = 10
"""Differences of each kind that one round logs."""


async def again_and_again(
    work: Callable[[], Awaitable[object]], interval_s: float, what: str
) -> None:
    # Errors of the database do not end the loop; random pauses spread the replicas out.
    while True:
        try:
            await work()
        except StoreError as error:
            _log.warning(f"{what} failed, will be tried again", error=error)
        await asyncio.sleep(random.uniform(0.5, 1.0) * interval_s)  # noqa: S311 - see above


class Adding:
    """The job that adds lines of usage up to sums."""

    def __init__(
        self,
        database: Database,
        *,
        minutes_s: float = rollup.MINUTES_S,
        lines_max: int = rollup.LINES_MAX,
        interval_s: float = ADDING_INTERVAL_S,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._minutes_s = minutes_s
        self._lines_max = lines_max
        self._interval_s = interval_s
        self._metrics = metrics

    async def run(self) -> None:
        await again_and_again(self.round, self._interval_s, "adding usage up")

    async def round(self) -> int:
        """Add up all lines that are ready, and return their number. Raises `StoreError`."""
        lines = 0
        while True:
            done = await rollup.advance(
                self._database, lines_max=self._lines_max, minutes_s=self._minutes_s
            )
            if done is None:
                break
            lines += done.lines
            if done.is_foreign:
                _log.error(
                    "usage is not added up: the cursor is ahead of all transactions, as after a "
                    "dump was restored into another cluster: run `harmony-gateway db upgrade`"
                )
            if done.is_done:
                break
        self._metrics.ledger_behind(await rollup.behind_s(self._database))
        return lines


class Reconciliation:
    """Job that compares lines with responses, sums and budgets, and corrects sums and the spending
    of budgets.
    """

    def __init__(
        self,
        database: Database,
        *,
        interval_s: float = RECONCILING_INTERVAL_S,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._interval_s = interval_s
        self._metrics = metrics

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work, what in (
                (self.round, "reconciling usage"),
                (self.forget, "removing old spending"),
            ):
                group.create_task(again_and_again(work, self._interval_s, what))

    async def forget(self) -> None:
        """Remove the spending of intervals that ended long ago. Raises `StoreError`."""
        await reconciliation.forget_spending(self._database, datetime.now(UTC))

    async def round(self, *, repairs: bool = True) -> Found:
        """Find disagreements; recompute sums and the spending of budgets from their lines.

        Raises `StoreError`.
        """
        database, now = self._database, datetime.now(UTC)
        corrected: list[Correction] = []
        if repairs:
            # First: it is short, and the comparison of a large ledger may run out of time.
            corrected = await reconciliation.correct_spending(database, now)
            self._report_spending(corrected)
        found = await reconciliation.compare(database, back_s=BACK_S, rows_max=FOUND_MAX)
        if repairs:
            for tenant_id, hour in found.wrong_hours:
                await rollup.add_hour_again(database, TenantId(tenant_id), hour)
        self._report(found)
        return replace(found, corrected=tuple(corrected))

    def _report_spending(self, corrected: Sequence[Correction]) -> None:
        self._metrics.spend_corrected(len(corrected))
        for one in corrected[:LOGGED_MAX]:
            _log.warning(
                "what is spent was not what usage has",
                kind=one.meter.rpartition("/")[2],
                count=one.truth - one.recorded,
            )

    def _report(self, found: Found) -> None:
        self._metrics.ledger_found("unmetered_responses", len(found.unmetered))
        self._metrics.ledger_found("wrong_hours", len(found.wrong_hours))
        self._metrics.ledger_found("unbilled_responses", found.unbilled)
        for _, response in found.unmetered[:LOGGED_MAX]:
            _log.error("a response has no usage line", response_id=ids.response_id(response))
        for tenant_id, hour in found.wrong_hours[:LOGGED_MAX]:
            _log.error(
                "sums of usage were not those of their lines",
                tenant=str(tenant_id),
                reason=f"hour {hour.isoformat()}",
            )
