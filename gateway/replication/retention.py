"""Rounds that make room: partitions of the log ahead of time, and the end of what has expired.

Every process runs them, and whichever comes first does the work. Nothing depends on a round: rows
without a partition are kept all the same, and what has expired is merely still there.

Partitions are for whoever owns the tables. A process that connects as another role removes what has
expired row by row, and leaves days to `harmony-gateway db maintain`, run as the owner.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.store import flushes, retention
from gateway.store.replicas import shares
from gateway.store.retention import Dropped
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.settings.sections import Retention
    from gateway.store.postgres.database import Database

INTERVAL_S: Final = 900.0
"""Between two rounds."""
BATCH_ROWS_MAX: Final = 1000
"""Removed by one statement."""
DAYS_AHEAD: Final = 3
"""Days ahead for which partitions exist, should rounds fail for a while."""
SILENT_S: Final = 60
"""Seconds without a write after which the flushes of a process that runs nothing are removed."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """Result of one round. `days_busy` had expired but were in use, and are tried again.

    `days_owned` False: it left days alone, because another role owns them.
    """

    days_owned: bool
    days_made: int
    days_dropped: int
    days_busy: int
    log_rows: int
    responses: int
    idempotency_keys: int
    traces: int
    tool_calls: int = 0
    pages: int = 0
    audit: int = 0
    approvals: int = 0
    files: int = 0
    containers: int = 0


def _utc_today() -> date:
    return datetime.now(UTC).date()


class Housekeeping:
    """Rounds of one process over the whole database."""

    def __init__(
        self,
        database: Database,
        keep: Retention,
        *,
        interval_s: float = INTERVAL_S,
        batch_rows_max: int = BATCH_ROWS_MAX,
        batches_max: int = 100,
        today: Callable[[], date] = _utc_today,
    ) -> None:
        # A round removes up to `batches_max * batch_rows_max` rows of each kind. Rounds are
        # `interval_s` / 2 to `interval_s` apart.
        self._database = database
        self._keep = keep
        self._interval_s = interval_s
        self._batch_rows_max = batch_rows_max
        self._batches_max = batches_max
        self._today = today

    async def run(self) -> None:
        """Make partitions at once, then run rounds until cancelled.

        Database errors do not end it.
        """
        await self._attempt(self._begin)
        while True:
            pause_s = random.uniform(0.5, 1.0) * self._interval_s  # noqa: S311 - replicas spread out
            await asyncio.sleep(pause_s)
            await self._attempt(self.round)

    async def _begin(self) -> None:
        if await retention.owns_partitions(self._database):
            await self.prepare()
        else:
            _log.info("days of logs are left to `db maintain`, run as the owner of the tables")

    async def prepare(self) -> int:
        # Partitions of today and the next days; returns how many were missing.
        return len(await retention.make_partitions(self._database, self._today(), DAYS_AHEAD))

    async def round(self) -> RetentionReport:
        """Do everything once. Raises `StoreError`; what was done by then stays done."""
        days_owned, days_made, dropped = (
            await retention.owns_partitions(self._database),
            0,
            Dropped(),
        )
        if days_owned:
            days_made = await self.prepare()
            dropped = await retention.drop_partitions(self._database, self._keep.log_s)
        report = RetentionReport(
            days_owned=days_owned,
            days_made=days_made,
            days_dropped=len(dropped.days),
            days_busy=len(dropped.busy),
            log_rows=await self._remove(retention.delete_logs)
            + await flushes.remove_left(self._database, silent_s=SILENT_S),
            idempotency_keys=await self._remove(retention.delete_keys),
            traces=await self._remove(retention.delete_traces),
            tool_calls=await self._remove(retention.delete_calls),
            pages=await self._remove(retention.delete_pages),
            audit=await self._remove(retention.delete_audit),
            approvals=await self._remove(retention.delete_approvals),
            files=await self._remove(retention.delete_files),
            containers=await self._remove(retention.delete_containers),
            # Last, because it looks at all that younger ones still need, and may run out of time.
            responses=await self._remove(retention.delete_responses),
        )
        await shares.forget(self._database)
        _tell(report)
        return report

    async def _remove(self, delete: Callable[..., Awaitable[int]]) -> int:
        removed = 0
        for _ in range(self._batches_max):
            rows = await delete(self._database, self._keep, rows_max=self._batch_rows_max)
            if not rows:
                break
            removed += rows
        return removed

    @staticmethod
    async def _attempt(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except StoreError as error:
            _log.warning("housekeeping failed, will be tried again", error=error)


def _tell(report: RetentionReport) -> None:
    counts = {
        "days of logs": report.days_dropped,
        "rows of logs": report.log_rows,
        "responses": report.responses,
        "idempotency keys": report.idempotency_keys,
        "traces and spans": report.traces,
        "audit of tools": report.tool_calls,
        "pages": report.pages,
        "audit log": report.audit,
        "approvals": report.approvals,
        "files": report.files,
        "containers": report.containers,
    }
    for kind, count in counts.items():
        if count:
            _log.info("expired and removed", rule=kind, count=count)
    if report.days_busy:
        _log.info("expired logs are in use and stay for now", count=report.days_busy)
