"""Jobs of the ledger. Every process runs them; of several, the first to come does the work."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import SinkFailed, SinkRefused, StoreError
from gateway.store.ledger import exports, reconciliation, rollup
from gateway.store.limits import reconciliation as spending
from gateway.telemetry.logs import EventLog
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.ledger.log_audit import LogAudit
    from gateway.ledger.sinks import CloudEventsSink
    from gateway.store.ledger.reconciliation import Found
    from gateway.store.ledger.rollup import RollupTerms
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics

_log = EventLog(__name__)

ADDING_INTERVAL_S: Final = 15.0
RECONCILING_INTERVAL_S: Final = 3600.0
BACK_S: Final = 2 * 86_400.0
"""How far back lines, sums and responses are compared."""
SINK_INTERVAL_S: Final = 15.0
SINK_LINES_MAX: Final = 500
"""In one batch."""
PAUSE_MAX_S: Final = 300.0
"""Between two attempts at a sink that fails."""
FOUND_MAX: Final = 1_000
"""Of what does not agree, in one round."""


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
        terms: RollupTerms,
        *,
        interval_s: float = ADDING_INTERVAL_S,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._terms = terms
        self._interval_s = interval_s
        self._metrics = metrics

    async def run(self) -> None:
        await again_and_again(self.round, self._interval_s, "adding usage up")

    async def round(self) -> int:
        """Add up all lines that are ready, and return their number. Raises `StoreError`."""
        lines = 0
        while (done := await rollup.advance(self._database, self._terms)) is not None:
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


class Delivery:
    """Job that sends lines to one sink."""

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        database: Database,
        sink: CloudEventsSink,
        *,
        holder: str,
        lines_max: int = SINK_LINES_MAX,
        interval_s: float = SINK_INTERVAL_S,
        lease_s: float,
        metrics: Metrics,
    ) -> None:
        # After `lease_s` another process may take over a batch.
        self._database = database
        self._sink = sink
        self._holder = holder
        self._lines_max = lines_max
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._metrics = metrics
        self._failures = 0

    async def run(self) -> None:
        # The pauses grow after failures.
        try:
            while True:
                await self._attempt()
                pause_s = min(self._interval_s * 2 ** min(self._failures, 10), PAUSE_MAX_S)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - see above
        finally:
            await self._sink.close()

    async def _attempt(self) -> None:
        try:
            await self.round()
        except StoreError as error:
            _log.warning("usage cannot be read for a sink", source=self._sink.name, error=error)

    async def round(self) -> int:
        """Send all lines that are ready, and return their number. Raises `StoreError`."""
        lines = 0
        while sent := await self._send_next():
            lines += sent
        behind_s = await exports.sink_behind_s(self._database, self._sink.name)
        self._metrics.ledger_sink_behind(self._sink.name, behind_s)
        return lines

    async def _send_next(self) -> int:
        name = self._sink.name
        batch = await exports.next_batch(
            self._database, name, self._holder, lease_s=self._lease_s, lines_max=self._lines_max
        )
        if batch is None:
            return 0
        try:
            await self._sink.send(batch)
        except SinkRefused as error:
            await exports.stop(self._database, name, str(error))
            _log.error("a sink refuses usage and is stopped", source=name, error=error)
            self._metrics.ledger_sent(name, "refused", 0)
            return 0
        except SinkFailed as error:
            self._failures += 1
            _log.warning("a sink did not take usage", source=name, error=error)
            self._metrics.ledger_sent(name, "failed", 0)
            return 0
        self._failures = 0
        if await exports.batch_done(self._database, name, self._holder, batch):
            self._metrics.ledger_sent(name, "ok", len(batch.lines))
        return len(batch.lines)


class Reconciliation:
    """Job that compares the ledger with responses, sums, logs and budgets, and corrects the sums
    and the spending of budgets.
    """

    def __init__(
        self,
        database: Database,
        *,
        interval_s: float = RECONCILING_INTERVAL_S,
        back_s: float = BACK_S,
        metrics: Metrics,
        logs: LogAudit | None = None,
    ) -> None:
        # `back_s` bounds how far back it looks. Without `logs` lines are not compared to logs.
        self._logs = logs
        self._database = database
        self._interval_s = interval_s
        self._back_s = back_s
        self._metrics = metrics

    async def run(self) -> None:
        await again_and_again(self.round, self._interval_s, "reconciling usage")

    async def round(self, *, repairs: bool = True) -> Found:
        """Find disagreements; recompute sums and the spending of budgets from their lines.

        Raises `StoreError`.
        """
        found = await reconciliation.compare(
            self._database,
            back_s=self._back_s,
            rows_max=FOUND_MAX,
        )
        for tenant_id, hour in found.wrong_hours if repairs else ():
            await rollup.add_hour_again(self._database, TenantId(tenant_id), hour)
        if self._logs is not None:
            logs = await self._logs.round(back_s=self._back_s)
            found = replace(found, compared_logs=logs.compared, wrong_logs=logs.wrong)
        if repairs:
            corrected = await spending.reconcile(self._database, datetime.now(UTC))
            found = replace(found, corrected=tuple(corrected))
        self._tell(found)
        return found

    def _tell(self, found: Found) -> None:
        self._metrics.ledger_found("unmetered_responses", len(found.unmetered))
        self._metrics.ledger_found("wrong_hours", len(found.wrong_hours))
        self._metrics.ledger_found("unbilled_responses", found.unbilled)
        self._metrics.ledger_found("wrong_logs", len(found.wrong_logs))
        self._metrics.spend_corrected(len(found.corrected))
        for _, response in found.wrong_logs[:10]:
            _log.error(
                "a usage line is not what its log has", response_id=ids.response_id(response)
            )
        for _, response in found.unmetered[:10]:
            _log.error("a response has no usage line", response_id=ids.response_id(response))
        for tenant_id, hour in found.wrong_hours[:10]:
            _log.error(
                "sums of usage were not those of their lines",
                tenant=str(tenant_id),
                reason=f"hour {hour.isoformat()}",
            )
