"""Spend alerts that were reached: each fires once an interval, and is told by one process.

A process that has one to tell takes it for `TAKEN_S`; if it dies meanwhile, another one takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.store.limits.rules import SpendAlert, alert_of
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from gateway.store.postgres.database import Database

TAKEN_S: Final = 120.0
ATTEMPTS_MAX: Final = 8
"""Then it is given up; the log has said so each time."""
TAKEN_MAX: Final = 20

_SPENT: Final = Statement("""
SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM spend
WHERE tenant_id = :tenant AND meter = CAST(:meter AS text) AND starts_at = :starts_at
""")
_REACHED: Final = Statement("""
INSERT INTO alert_firings
    (tenant_id, alert_id, starts_at, fired_at, sent_at, attempts, due_at)
SELECT a.tenant_id, a.id, s.starts_at, clock_timestamp(), NULL, 0, clock_timestamp()
FROM spend_alerts AS a JOIN (
    SELECT tenant_id, meter, starts_at, sum(amount) AS amount FROM spend
    WHERE (starts_at, split_part(meter, '/', 4)) IN (
        SELECT * FROM unnest(CAST(:starts AS timestamptz[]), CAST(:spans AS text[]))
    )
    GROUP BY tenant_id, meter, starts_at
) AS s ON s.tenant_id = a.tenant_id AND s.amount >= a.threshold
     AND s.meter = concat_ws('/', a.scope, a.scope_id, a.unit, a.span)
ON CONFLICT (tenant_id, alert_id, starts_at) DO NOTHING
""")
_TAKE: Final = Statement("""
WITH due AS (
    SELECT tenant_id, alert_id, starts_at FROM alert_firings
    WHERE sent_at IS NULL AND attempts < CAST(:attempts_max AS smallint)
      AND due_at <= clock_timestamp()
    ORDER BY fired_at LIMIT :row_limit FOR UPDATE SKIP LOCKED
)
UPDATE alert_firings AS f
SET attempts = f.attempts + 1,
    due_at = clock_timestamp() + CAST(:taken AS double precision) * interval '1 second'
FROM due JOIN spend_alerts AS a ON a.tenant_id = due.tenant_id AND a.id = due.alert_id
         JOIN tenants AS t ON t.id = due.tenant_id
WHERE f.tenant_id = due.tenant_id AND f.alert_id = due.alert_id AND f.starts_at = due.starts_at
RETURNING f.tenant_id, f.starts_at, f.fired_at, f.attempts, t.name AS tenant_name,
          a.id, a.scope, a.scope_id, a.unit, a.span, a.threshold, a.channel, a.created_at
""")
_SENT: Final = Statement("""
UPDATE alert_firings SET sent_at = clock_timestamp()
WHERE tenant_id = :tenant AND alert_id = :id AND starts_at = :starts_at
""")


class Firing(NamedTuple):
    """An alert that was reached in the interval that began at `starts_at`."""

    tenant_id: UUID
    tenant_name: str
    alert: SpendAlert
    starts_at: datetime
    fired_at: datetime
    attempts: int


async def spent(database: Database, tenant_id: UUID, meter: str, starts_at: datetime) -> int:
    """What all replicas have spent of a meter in the interval that began then."""
    parameters = {"tenant": tenant_id, "meter": meter, "starts_at": starts_at}
    async with database.runs_transaction() as connection:
        found: int = await connection.scalar(_SPENT, parameters)
        return found


async def reached(database: Database, starts: Mapping[str, datetime]) -> None:
    """Have those fire that were reached in the intervals that are now: `starts` says when each kind
    began. Raises `StoreError`.
    """
    parameters = {"starts": list(starts.values()), "spans": list(starts)}
    async with database.runs_transaction() as connection:
        await connection.execute(_REACHED, parameters)


async def take(database: Database) -> list[Firing]:
    """Some that are to be told; nobody else gets them for a while. Raises `StoreError`."""
    parameters = {"attempts_max": ATTEMPTS_MAX, "row_limit": TAKEN_MAX, "taken": TAKEN_S}
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_TAKE, parameters)
    return [
        Firing(
            row.tenant_id,
            row.tenant_name,
            alert_of(row),
            row.starts_at,
            row.fired_at,
            row.attempts,
        )
        for row in rows
    ]


async def sent(database: Database, firing: Firing) -> None:
    """It was told. Raises `StoreError`."""
    parameters = {
        "tenant": firing.tenant_id,
        "id": firing.alert.id,
        "starts_at": firing.starts_at,
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_SENT, parameters)
