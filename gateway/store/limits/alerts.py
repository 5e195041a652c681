"""Spend alerts that were reached: each fires once an interval, and is sent by one process, which
takes it for `TAKEN_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway.limits.rules import meter_of
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime
    from uuid import UUID

    from gateway.limits.rules import Interval, Scope, Unit
    from gateway.store.postgres.database import Connection, Database, Row

TAKEN_S: Final = 120.0
ATTEMPTS_MAX: Final = 8
OPERATORS: Final = "operator"
"""Channel type of alerts that the operator set beside a budget, at a `percent` of it."""

_SPENT: Final = Statement("""
SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM spend
WHERE tenant_id = :tenant AND meter = CAST(:meter AS text) AND starts_at = :starts_at
""")
_REACHED: Final = Statement("""
INSERT INTO alert_firings
    (tenant_id, alert_id, starts_at, fired_at, sent_at, attempts, due_at)
SELECT a.tenant_id, a.id, s.starts_at, clock_timestamp(), NULL, 0, clock_timestamp()
FROM spend_alerts AS a JOIN (
    SELECT spend.tenant_id, spend.meter, spend.starts_at, looked.ends_at,
           sum(spend.amount) AS amount
    FROM spend JOIN unnest(
        CAST(:spans AS text[]), CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
    ) AS looked (span, starts_at, ends_at)
         ON looked.starts_at = spend.starts_at AND looked.span = split_part(spend.meter, '/', 4)
    GROUP BY spend.tenant_id, spend.meter, spend.starts_at, looked.ends_at
) AS s ON s.tenant_id = a.tenant_id AND s.amount >= a.threshold
     AND s.meter = concat_ws('/', a.scope, a.scope_id, a.unit, a.span)
     AND (s.ends_at IS NULL OR a.created_at < s.ends_at)
ON CONFLICT (tenant_id, alert_id, starts_at) DO NOTHING
""")
# A firing outlives its alert: without the alert it is not due, or it would keep all others waiting.
_TAKE: Final = Statement("""
WITH due AS (
    SELECT tenant_id, alert_id, starts_at FROM alert_firings AS one
    WHERE sent_at IS NULL AND attempts < CAST(:attempts_max AS smallint)
      AND due_at <= clock_timestamp()
      AND EXISTS (SELECT FROM spend_alerts WHERE tenant_id = one.tenant_id AND id = one.alert_id)
    ORDER BY fired_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE alert_firings AS f
SET attempts = f.attempts + 1,
    due_at = clock_timestamp() + CAST(:taken AS double precision) * interval '1 second'
FROM due JOIN spend_alerts AS a ON a.tenant_id = due.tenant_id AND a.id = due.alert_id
         JOIN tenants AS t ON t.id = due.tenant_id
WHERE f.tenant_id = due.tenant_id AND f.alert_id = due.alert_id AND f.starts_at = due.starts_at
RETURNING f.tenant_id, f.starts_at, f.fired_at, f.attempts, f.told, t.name AS tenant_name,
          a.id, a.scope, a.scope_id, a.unit, a.span, a.threshold, a.channel, a.created_at
""")
_RECORD_DELIVERY: Final = Statement("""
UPDATE alert_firings
SET told = :told, sent_at = CASE WHEN :is_sent THEN clock_timestamp() END
WHERE tenant_id = :tenant AND alert_id = :id AND starts_at = :starts_at AND sent_at IS NULL
""")
# Firings go with their alerts, and with a new threshold: mails are counted where they stay.
_COUNT_MAIL: Final = Statement("""
INSERT INTO spend (tenant_id, meter, starts_at, replica, amount, at)
VALUES (:tenant, 'mails', CAST(:day AS timestamptz), '', 1, clock_timestamp())
ON CONFLICT (tenant_id, meter, starts_at, replica)
DO UPDATE SET amount = spend.amount + 1, at = excluded.at
RETURNING amount
""")
_AGAIN: Final = Statement("""
DELETE FROM alert_firings WHERE tenant_id = :tenant AND alert_id = :id
""")


@dataclass(frozen=True, slots=True)
class SpendAlert:
    id: UUID
    scope: Scope
    scope_id: UUID
    unit: Unit
    interval: Interval
    threshold: int
    channel: dict[str, Any]
    created_at: datetime | None = None

    @property
    def meter(self) -> str:
        return meter_of(self.scope, self.scope_id, self.unit, self.interval)

    @property
    def percent(self) -> int | None:
        # A percentage of the budget for operators' alerts, None for administrators'.
        return self.channel["percent"] if self.channel.get("type") == OPERATORS else None


def alert_of(row: Row) -> SpendAlert:
    # `row` is one of `spend_alerts`.
    return SpendAlert(
        row.id,
        row.scope,
        row.scope_id,
        row.unit,
        row.span,
        row.threshold,
        orjson.loads(row.channel),
        row.created_at,
    )


class Firing(NamedTuple):
    tenant_id: UUID
    tenant_name: str
    alert: SpendAlert
    starts_at: datetime
    fired_at: datetime
    attempts: int
    delivered: frozenset[str] = frozenset()


class DatedInterval(NamedTuple):
    interval: Interval
    starts_at: datetime
    ends_at: datetime | None


async def spent(database: Database, tenant_id: UUID, meter: str, starts_at: datetime) -> int:
    parameters = {"tenant": tenant_id, "meter": meter, "starts_at": starts_at}
    async with database.runs_transaction() as connection:
        amount: int = await connection.scalar(_SPENT, parameters)
        return amount


async def reached(database: Database, spans: Collection[DatedInterval]) -> None:
    """Record firings, except those of alerts that were made after the interval ended."""
    parameters = {
        "spans": [one.interval for one in spans],
        "starts": [one.starts_at for one in spans],
        "ends": [one.ends_at for one in spans],
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_REACHED, parameters)


async def take(database: Database) -> Firing | None:
    parameters = {"attempts_max": ATTEMPTS_MAX, "taken": TAKEN_S}
    async with database.runs_transaction() as connection:
        row = (await connection.execute(_TAKE, parameters)).one_or_none()
    if row is None:
        return None
    return Firing(
        row.tenant_id,
        row.tenant_name,
        alert_of(row),
        row.starts_at,
        row.fired_at,
        row.attempts,
        frozenset((row.told or "").split()),
    )


async def count_mail(database: Database, firing: Firing, day: datetime) -> int:
    """Count a mail; return how many there are of the tenant on that day."""
    async with database.runs_transaction() as connection:
        count: int = await connection.scalar(_COUNT_MAIL, {"tenant": firing.tenant_id, "day": day})
    return count


async def record_delivery(
    database: Database, firing: Firing, ways: Collection[str], *, is_sent: bool
) -> None:
    parameters = {
        "tenant": firing.tenant_id,
        "id": firing.alert.id,
        "starts_at": firing.starts_at,
        "told": " ".join(sorted(ways)),
        "is_sent": is_sent,
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_RECORD_DELIVERY, parameters)


async def again(connection: Connection, tenant_id: UUID, alert_id: UUID) -> None:
    """Let an alert fire again in intervals in which it has fired, in the transaction that gives it
    a new threshold.
    """
    await connection.execute(_AGAIN, {"tenant": tenant_id, "id": alert_id})
