"""Jobs of the ledger: add usage lines up, and compare them with the sums made of them.

A replica that dies loses the spending of about a second; a new price may be missed; people change
rows by hand. The lines are the truth: their excess over the reports of replicas becomes the row of
the replica '' of a meter (below zero: replicas reported too much).

All statements are raw SQL: they compare whole tables, group by group.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway import ids
from gateway.limits.money import begins
from gateway.limits.rules import meter_of
from gateway.store.ledger import cursors, rollup
from gateway.store.ledger.cursors import ROLLUP, SINK_PREFIX
from gateway.store.ledger.rollup import LINE_KEY, LINE_KEY_AS, LINE_VALUES_AS
from gateway.store.limits.counters import PRESENT
from gateway.store.limits.key_terms import IN_SCOPE, successors
from gateway.store.periodic import run_periodically
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.store.tables.ledger import SUMS
from gateway.telemetry.logs import EventLog
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.limits.rules import Budget
    from gateway.store.limits.alerts import SpendAlert
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.telemetry.metrics import Metrics

_log = EventLog(__name__)

ADDING_INTERVAL_S: Final = 15.0
RECONCILING_INTERVAL_S: Final = 3600.0
BACK_S: Final = 2 * 86_400.0
"""Age of what is compared. Lines are kept for as long, at least (`ledger.lines_s`)."""
DIFFERENCES_MAX: Final = 1_000
LOGGED_MAX: Final = 10
DAYS_MAX: Final = 31
"""Of an interval."""


class Adding:
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
        failure = "adding usage up failed, will be tried again"
        await run_periodically(self.round, self._interval_s, _log.warning, failure, at_once=True)

    async def round(self) -> int:
        lines = 0
        while True:
            done = await rollup.advance(
                self._database, lines_max=self._lines_max, minutes_s=self._minutes_s
            )
            if done is None:
                break
            lines += done.lines
            self._metrics.ledger_added(done.costs_nano)
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
    def __init__(
        self, database: Database, *, interval_s: float = RECONCILING_INTERVAL_S, metrics: Metrics
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
                failure = f"{what} failed, will be tried again"
                job = run_periodically(work, self._interval_s, _log.warning, failure, at_once=True)
                group.create_task(job)

    async def forget(self) -> None:
        await forget_spending(self._database, datetime.now(UTC))

    async def round(self, *, repairs: bool = True) -> Differences:
        database, now = self._database, datetime.now(UTC)
        corrected: list[Correction] = []
        if repairs:
            # First: it is short, and the comparison of a large ledger may run out of time.
            corrected = await correct_spending(database, now)
            self._report_spending(corrected)
        differences = await compare(database, back_s=BACK_S, rows_max=DIFFERENCES_MAX)
        if repairs:
            for tenant_id, hour in differences.wrong_hours:
                await rollup.add_hour_again(database, TenantId(tenant_id), hour)
        self._report(differences)
        return replace(differences, corrected=tuple(corrected))

    def _report_spending(self, corrected: Sequence[Correction]) -> None:
        self._metrics.spend_corrected(len(corrected))
        for one in corrected[:LOGGED_MAX]:
            _log.warning(
                "what is spent was not what usage has",
                kind=one.meter.rpartition("/")[2],
                count=one.truth - one.recorded,
            )

    def _report(self, differences: Differences) -> None:
        self._metrics.ledger_discrepancies("unmetered_responses", len(differences.unmetered))
        self._metrics.ledger_discrepancies("wrong_hours", len(differences.wrong_hours))
        self._metrics.ledger_discrepancies("unbilled_responses", differences.unbilled)
        for _, response in differences.unmetered[:LOGGED_MAX]:
            _log.error("a response has no usage line", response_id=ids.response_id(response))
        for tenant_id, hour in differences.wrong_hours[:LOGGED_MAX]:
            _log.error(
                "sums of usage were not those of their lines",
                tenant=str(tenant_id),
                reason=f"hour {hour.isoformat()}",
            )


TOLERATED_SHARE: Final = 0.001
"""Share by which record and lines may differ: a response may be recorded a moment before its line
is visible."""
SETTLED_S: Final = 60.0
"""Age of lines that count as missing in the record: replicas report once a second."""
KEPT_DAYS: Final = 62
"""Age of intervals that are removed; the month before can be looked up."""
SILENT_S: Final = 86_400.0
"""Age of a meter's last write from which an absent process counts as gone."""

_UNMETERED: Final = Statement("""
SELECT r.tenant_id, r.id
FROM tenants t CROSS JOIN LATERAL (
    SELECT one.tenant_id, one.id FROM responses AS one
    WHERE one.tenant_id = t.id AND one.status IN ('completed', 'incomplete', 'cancelled')
      AND one.completed_at >= now() - make_interval(secs => :back_s)
      AND one.completed_at < now() - interval '1 minute'
      AND NOT EXISTS (
          SELECT FROM usage AS line
          WHERE line.tenant_id = one.tenant_id AND line.response_id = one.id AND line.seq = 0
      )
    LIMIT :rows_max
) AS r
LIMIT :rows_max
""")
_UNBILLED: Final = Statement("""
SELECT count(*) FROM tenants t CROSS JOIN LATERAL (
    SELECT FROM responses AS one
    WHERE one.tenant_id = t.id AND one.status = 'failed'
      AND one.completed_at >= now() - make_interval(secs => :back_s)
      AND NOT EXISTS (
          SELECT FROM usage AS line
          WHERE line.tenant_id = one.tenant_id AND line.response_id = one.id AND line.seq = 0
      )
) AS r
""")
_SUMMED_BY: Final = ", ".join(LINE_KEY)
_DIFFERS: Final = " OR ".join(
    f"coalesce(sum(line.{name}), 0) <> coalesce(sum(line.summed_{name}), 0)" for name in SUMS
)
_NONE: Final = ", ".join(f"0 AS summed_{name}" for name in SUMS)
_SUMMED: Final = ", ".join(f"0 AS {name}" for name in SUMS)
_AS_SUMMED: Final = ", ".join(f"{name} AS summed_{name}" for name in SUMS)
# Both in one statement: a line that is added up meanwhile is in neither of the two, or in both.
_WRONG_HOURS: Final = Statement(f"""
WITH cursor AS (
    SELECT coalesce(max(tx), CAST('0' AS xid8)) AS tx FROM usage_cursors WHERE name = '{ROLLUP}'
)
SELECT tenant_id, hour FROM (
    SELECT date_trunc('hour', line.at, 'UTC') AS hour, {LINE_KEY_AS}, {LINE_VALUES_AS}, {_NONE}
    FROM usage AS line, cursor
    WHERE line.at >= CAST(:since AS timestamptz) AND (line.tx IS NULL OR line.tx < cursor.tx)
    UNION ALL
    SELECT at AS hour, {_SUMMED_BY}, {_SUMMED}, {_AS_SUMMED}
    FROM usage_hours WHERE at >= CAST(:since AS timestamptz)
) AS line
GROUP BY tenant_id, hour, {_SUMMED_BY}
HAVING {_DIFFERS}
ORDER BY hour
LIMIT :rows_max
""")  # noqa: S608 - constants only
# Whole hours, and time to compare and to correct: lines that are older may be removed meanwhile.
_SINCE: Final = Statement("""
SELECT date_trunc('hour', now() - make_interval(secs => :back_s), 'UTC') + interval '2 hours'
""")
_STOPPED: Final = Statement(
    "SELECT name FROM usage_cursors WHERE stopped IS NOT NULL ORDER BY name"
)
_METERS: Final = Statement("""
SELECT tenant_id, scope, scope_id, unit, span, min(created_at) AS since
FROM (
    SELECT tenant_id, scope, scope_id, unit, span, created_at FROM budgets
    UNION ALL
    SELECT tenant_id, scope, scope_id, unit, span, created_at FROM spend_alerts
) AS wanted
GROUP BY tenant_id, scope, scope_id, unit, span
""")
_AMOUNTS: Final = {
    "usd": "coalesce(one.cost_nano, 0)",
    "tokens": "one.input_tokens + one.output_tokens",
}
# Both of one statement, so that neither has what the other lacks. Lines may be missing, unless one
# from before the interval, or a tenant from after it began, shows that none was removed.
_COMPARE: Final = {
    (scope, unit): Statement(f"""
SELECT lines.*, recorded.*,
       (SELECT created_at FROM tenants WHERE id = :tenant) >= :from_at OR EXISTS (
           SELECT FROM usage AS line WHERE line.tenant_id = :tenant AND line.at < :from_at
       ) AS has_all_lines
FROM (
    SELECT CAST(coalesce(sum({amount}), 0) AS bigint) AS amount,
           CAST(coalesce(sum({amount}) FILTER (
               WHERE one.at < clock_timestamp() - make_interval(secs => :settled_s)
           ), 0) AS bigint) AS settled
    FROM usage AS one
    WHERE one.tenant_id = :tenant AND one.at >= CAST(:from_at AS timestamptz) AND {of_scope}
) AS lines, (
    SELECT CAST(coalesce(sum(amount), 0) AS bigint) AS recorded,
           CAST(coalesce(sum(amount) FILTER (WHERE replica = ''), 0) AS bigint) AS corrected
    FROM spend WHERE tenant_id = :tenant AND meter = :meter AND starts_at = :starts_at
) AS recorded
""")  # noqa: S608 - constants only
    for scope, of_scope in IN_SCOPE.items()
    for unit, amount in _AMOUNTS.items()
}
# Unless the row has changed since it was compared: then the next round corrects.
_CORRECT: Final = Statement("""
INSERT INTO spend AS s (tenant_id, meter, starts_at, replica, amount, at)
VALUES (:tenant, :meter, :starts_at, '', :amount, clock_timestamp())
ON CONFLICT (tenant_id, meter, starts_at, replica)
DO UPDATE SET amount = excluded.amount, at = excluded.at
WHERE s.amount = CAST(:corrected AS bigint)
""")
# Replicas may have counted it before, under a budget that was removed. Nothing is given back.
_BEGIN: Final = Statement("""
INSERT INTO spend AS s (tenant_id, meter, starts_at, replica, amount, at)
SELECT :tenant, CAST(:meter AS text), CAST(:starts_at AS timestamptz), '',
       CAST(CAST(:amount AS bigint) - coalesce(sum(amount), 0) AS bigint), clock_timestamp()
FROM spend
WHERE tenant_id = :tenant AND meter = CAST(:meter AS text)
  AND starts_at = CAST(:starts_at AS timestamptz) AND replica <> ''
HAVING CAST(:amount AS bigint) > coalesce(sum(amount), 0)
ON CONFLICT (tenant_id, meter, starts_at, replica)
DO UPDATE SET amount = excluded.amount, at = excluded.at
WHERE s.amount < excluded.amount
""")
_FORGET: Final = Statement("DELETE FROM spend WHERE starts_at < :before AND starts_at > :forever")
_FORGET_FIRINGS: Final = Statement("""
DELETE FROM alert_firings AS one
WHERE starts_at < :before AND starts_at > :forever OR NOT EXISTS (
    SELECT FROM spend_alerts WHERE tenant_id = one.tenant_id AND id = one.alert_id
)
""")
# An interval without an end would have a row for every process that ever began. Those that are gone
# become part of the row '', which is the difference to the lines and so stays right. A process that
# has the meter in its memory writes its total again, so it must be gone: one that is there tells so
# every second (`counters.PRESENT`).
_FOLD: Final = Statement("""
WITH gone AS (
    DELETE FROM spend AS s
    WHERE s.starts_at = :forever AND s.replica <> ''
      AND s.at < clock_timestamp() - make_interval(secs => CAST(:silent_s AS double precision))
      AND NOT EXISTS (
          SELECT FROM limit_reports AS r
          WHERE r.tenant_id = CAST(:everyone AS uuid) AND r.name = CAST(:present AS text)
            AND r.replica = s.replica
            AND r.at > clock_timestamp() - interval '1 minute'
      )
    RETURNING s.tenant_id, s.meter, s.starts_at, s.amount
)
INSERT INTO spend AS s (tenant_id, meter, starts_at, replica, amount, at)
SELECT tenant_id, meter, starts_at, '', CAST(sum(amount) AS bigint), clock_timestamp()
FROM gone GROUP BY tenant_id, meter, starts_at ORDER BY 1, 2, 3
ON CONFLICT (tenant_id, meter, starts_at, replica)
DO UPDATE SET amount = s.amount + excluded.amount, at = excluded.at
""")


class Correction(NamedTuple):
    tenant_id: UUID
    meter: str
    truth: int
    recorded: int


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences, up to a bound of each kind. `unmetered` responses have output and no line;
    `unbilled` failed without a line, mostly foreground ones whose process was lost with their
    usage.
    """

    unmetered: tuple[tuple[UUID, UUID], ...] = ()
    wrong_hours: tuple[tuple[UUID, datetime], ...] = ()
    unbilled: int = 0
    behind_s: float = 0.0
    stopped_sinks: tuple[str, ...] = ()
    corrected: tuple[Correction, ...] = ()

    @property
    def agrees(self) -> bool:
        # Lines, responses and sums match.
        return not (self.unmetered or self.wrong_hours)


async def compare(database: Database, *, back_s: float, rows_max: int) -> Differences:
    async with database.runs_transaction() as connection:
        parameters = {"back_s": back_s, "rows_max": rows_max}
        unmetered = await connection.execute(_UNMETERED, parameters)
        unbilled = await connection.scalar(_UNBILLED, {"back_s": back_s})
        since = await connection.scalar(_SINCE, {"back_s": back_s})
        hours = await connection.execute(_WRONG_HOURS, {"since": since, "rows_max": rows_max})
        behind_s = await cursors.behind_s(connection, await cursors.of_rollup(connection))
        stopped = await connection.scalars(_STOPPED)
    return Differences(
        unmetered=tuple((row.tenant_id, row.id) for row in unmetered),
        wrong_hours=tuple(dict.fromkeys((row.tenant_id, row.hour) for row in hours)),
        unbilled=unbilled,
        behind_s=behind_s,
        stopped_sinks=tuple(name.removeprefix(SINK_PREFIX) for name in stopped),
    )


async def correct_spending(database: Database, now: datetime) -> list[Correction]:
    """Correct the recorded spending in the intervals of `now`.

    Endless intervals count from the creation of the budget or alert.
    """
    corrections = []
    async with database.runs_transaction() as connection:
        meters = await connection.execute(_METERS)
    for row in meters:
        # One at a time, so that no lock is held while lines of others are added up.
        async with database.runs_transaction() as connection:
            correction = await _correct(connection, row, now)
        if correction is not None:
            corrections.append(correction)
    return corrections


async def _correct(connection: Connection, row: Row, now: datetime) -> Correction | None:
    starts_at = begins(row.span, now)
    place = {
        "tenant": row.tenant_id,
        "meter": meter_of(row.scope, row.scope_id, row.unit, row.span),
        "starts_at": starts_at,
    }
    parameters = {
        **place,
        "scope_id": row.scope_id,
        "from_at": row.since if row.span == "none" else starts_at,
        "settled_s": SETTLED_S,
    }
    is_ = (await connection.execute(_COMPARE[row.scope, row.unit], parameters)).one()
    lacks = is_.settled - is_.recorded > TOLERATED_SHARE * is_.settled
    exceeds = is_.recorded - is_.amount > TOLERATED_SHARE * is_.recorded
    # Nothing is given back where lines may be missing, as those of a key that has been removed.
    may_give_back = row.scope != "key" and is_.has_all_lines
    if not lacks and not (exceeds and may_give_back):
        return None
    truth = is_.settled if is_.settled > is_.recorded else is_.amount
    amount = is_.corrected + truth - is_.recorded
    is_done = await connection.count(
        _CORRECT, {**place, "amount": amount, "corrected": is_.corrected}
    )
    if not is_done:
        return None
    return Correction(row.tenant_id, place["meter"], truth, is_.recorded)


async def count_from_beginning(
    database: Database, tenant_id: TenantId, wanted: Budget | SpendAlert
) -> None:
    """Add the usage of its interval to the spending of a meter that nobody counts yet.

    Endless intervals count from now on.
    """
    if wanted.interval == "none":
        return
    starts_at = begins(wanted.interval, datetime.now(UTC))
    ends_at = starts_at + timedelta(days=DAYS_MAX)
    filters: dict[str, Sequence[UUID]] = {}
    if wanted.scope == "project":
        filters = {"project_id": [wanted.scope_id]}
    elif wanted.scope == "key":
        filters = {"key_id": await successors(database, tenant_id, wanted.scope_id)}
    question = rollup.Question(
        span=rollup.LineSpan(
            start=starts_at, end=ends_at, inner_start=starts_at, inner_end=ends_at
        ),
        unit="day",
        filters=filters,
        sums=("input_tokens", "output_tokens", "cost_nano"),
    )
    days = await rollup.read_usage(database, tenant_id, question, rows_max=DAYS_MAX)
    amounts = {
        "usd": sum(day.cost_nano for day in days),
        "tokens": sum(day.input_tokens + day.output_tokens for day in days),
    }
    parameters = {
        "tenant": tenant_id,
        "meter": wanted.meter,
        "starts_at": starts_at,
        "amount": amounts[wanted.unit],
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_BEGIN, parameters)


async def forget_spending(database: Database, now: datetime) -> None:
    """Remove spending and firings of intervals that ended long ago, and firings of removed alerts.

    In endless intervals, the spending of gone processes becomes one row per meter.
    """
    forever = begins("none", now)
    bounds = {"before": now - timedelta(days=KEPT_DAYS), "forever": forever}
    folded = {"silent_s": SILENT_S, "everyone": EVERYONE, "present": PRESENT}
    async with database.runs_transaction() as connection:
        await connection.execute(_FORGET, bounds)
        await connection.execute(_FORGET_FIRINGS, bounds)
        await connection.execute(_FOLD, {**folded, "forever": forever})
