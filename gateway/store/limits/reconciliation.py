"""Compare recorded spending with the lines of `usage`, and correct it.

A replica that dies loses the spending of about a second that it had not reported; a price that was
set a moment ago may be missed; people change rows by hand. The lines are the truth. Their excess
over the reports of replicas becomes the row of the replica '' (below zero: replicas reported too
much).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from gateway.limits.money import begins
from gateway.limits.terms import Interval
from gateway.store.limits.counters import PRESENT
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from gateway.store.postgres.database import Database

TOLERATED_SHARE: Final = 0.001
"""Of what is spent: what ends just now may be told a moment before it is in the lines."""
TOLD_S: Final = 60.0
"""Lines are so old before they are missed in what was told: replicas tell about once a second."""

# Nothing is given back where lines may be missing. A line from before the interval or a tenant from
# after it began, shows that none was removed; keys that took each other's place spend together.
_RECONCILE: Final = Statement("""
WITH meters AS (
    SELECT tenant_id, scope, scope_id, unit, span, min(created_at) AS since
    FROM (
        SELECT tenant_id, scope, scope_id, unit, span, created_at FROM budgets
        UNION ALL
        SELECT tenant_id, scope, scope_id, unit, span, created_at FROM spend_alerts
    ) AS wanted
    GROUP BY tenant_id, scope, scope_id, unit, span
), now_ AS (
    SELECT m.*, concat_ws('/', m.scope, m.scope_id, m.unit, m.span) AS meter, s.starts_at,
           CASE m.span WHEN 'none' THEN m.since ELSE s.starts_at END AS from_at,
           CASE m.scope WHEN 'key' THEN ARRAY(
               WITH RECURSIVE line AS (
                   SELECT m.scope_id AS id
                   UNION
                   SELECT k.replaced_by FROM api_keys AS k JOIN line ON k.id = line.id
                   WHERE k.tenant_id = m.tenant_id AND k.replaced_by IS NOT NULL
               )
               SELECT id FROM line
           ) END AS keys
    FROM meters AS m
    JOIN unnest(CAST(:spans AS text[]), CAST(:starts AS timestamptz[])) AS s (span, starts_at)
         ON s.span = m.span
), compared AS (
    SELECT n.tenant_id, n.meter, n.starts_at,
           n.scope <> 'key' AND (
               (SELECT created_at FROM tenants WHERE id = n.tenant_id) >= n.from_at
               OR EXISTS (
                   SELECT FROM usage AS u WHERE u.tenant_id = n.tenant_id AND u.at < n.from_at
               )
           ) AS is_whole,
           lines.amount, lines.settled,
           (SELECT coalesce(sum(amount), 0) FROM spend AS p
            WHERE p.tenant_id = n.tenant_id AND p.meter = n.meter
              AND p.starts_at = n.starts_at) AS told,
           (SELECT coalesce(sum(amount), 0) FROM spend AS p
            WHERE p.tenant_id = n.tenant_id AND p.meter = n.meter
              AND p.starts_at = n.starts_at AND p.replica = '') AS corrected
    FROM now_ AS n CROSS JOIN LATERAL (
        SELECT coalesce(sum(spent), 0) AS amount,
               coalesce(sum(spent) FILTER (
                   WHERE at < clock_timestamp() - make_interval(secs => :told_s)
               ), 0) AS settled
        FROM (
            SELECT u.at, CASE n.unit WHEN 'usd' THEN coalesce(u.cost_nano, 0)
                         ELSE u.input_tokens + u.output_tokens END AS spent
            FROM usage AS u
            WHERE u.tenant_id = n.tenant_id AND u.at >= n.from_at
              AND (n.scope IN ('tenant', 'organization')
                   OR n.scope = 'project' AND coalesce(u.project_id, u.tenant_id) = n.scope_id
                   OR n.scope = 'key' AND u.key_id = ANY (n.keys))
        ) AS line
    ) AS lines
), judged AS (
    SELECT *, CASE WHEN settled > told THEN settled ELSE amount END AS truth FROM compared
), written AS (
    INSERT INTO spend (tenant_id, meter, starts_at, replica, amount, at)
    SELECT tenant_id, meter, starts_at, '', corrected + truth - told, clock_timestamp()
    FROM judged
    WHERE settled - told > CAST(:share AS double precision) * settled
       OR told - amount > CAST(:share AS double precision) * told AND is_whole
    ON CONFLICT (tenant_id, meter, starts_at, replica)
    DO UPDATE SET amount = excluded.amount, at = excluded.at
    RETURNING tenant_id, meter, starts_at
)
SELECT c.tenant_id, c.meter, CAST(c.truth AS bigint) AS truth, CAST(c.told AS bigint) AS told
FROM written AS w JOIN judged AS c
     ON c.tenant_id = w.tenant_id AND c.meter = w.meter AND c.starts_at = w.starts_at
""")

KEPT_DAYS: Final = 62
"""Days that ended intervals are kept, so that the month before can be looked up."""
_FORGET: Final = Statement("DELETE FROM spend WHERE starts_at < :before AND starts_at > :forever")
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
SILENT_S: Final = 86_400.0
"""Seconds without a write of a meter after which an absent process counts as gone."""
_FORGET_FIRINGS: Final = Statement("""
DELETE FROM alert_firings WHERE starts_at < :before AND starts_at > :forever
""")


class Correction(NamedTuple):
    """Correction of a meter from `told`, its recorded spending, to `truth`, that of the lines."""

    tenant_id: UUID
    meter: str
    truth: int
    told: int


async def reconcile(database: Database, now: datetime) -> list[Correction]:
    """Correct what is recorded as spent in the intervals of `now`.

    Endless intervals count from the creation of the budget or alert. Raises `StoreError`.
    """
    spans: tuple[Interval, ...] = get_args(Interval)
    parameters = {
        "spans": list(spans),
        "starts": [begins(span, now) for span in spans],
        "share": TOLERATED_SHARE,
        "told_s": TOLD_S,
    }
    async with database.runs_transaction() as connection:
        return [Correction(*row) for row in await connection.execute(_RECONCILE, parameters)]


async def forget(database: Database, now: datetime) -> None:
    """Remove spending and firings of intervals that ended long ago.

    In endless intervals, the spending of processes that are gone becomes one row per meter. Raises
    `StoreError`.
    """
    forever = begins("none", now)
    bounds = {"before": now - timedelta(days=KEPT_DAYS), "forever": forever}
    folded = {"silent_s": SILENT_S, "everyone": EVERYONE, "present": PRESENT}
    async with database.runs_transaction() as connection:
        await connection.execute(_FORGET, bounds)
        await connection.execute(_FORGET_FIRINGS, bounds)
        await connection.execute(_FOLD, {**folded, "forever": forever})
