"""The removal of what has expired: logs, stored responses, idempotency keys, traces.

Only the database's clock says what that is. Every function is one short transaction that removes a
bounded number of rows, and nothing at all while another process is at it. Logs mostly go with their
day's partition (see `partitions`): what is deleted here is what cannot wait for that.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import TYPE_CHECKING, Final

from gateway.store.partitions import days_of, is_alone
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Database

_DAY: Final = timedelta(days=1)
_ALWAYS: Final = (date.min, date.max)

_BRIEF: Final = Statement("""
SELECT id FROM tenants
WHERE coalesce(log_retention_s, CAST(:log_s AS integer))
      < greatest(CAST(:log_s AS integer), (SELECT max(log_retention_s) FROM tenants))
""")
_DELETE_LOGS: Final = Statement("""
DELETE FROM events USING (
    SELECT e.tenant_id, e.response_id, e.first_entry, e.day
    FROM events e
    JOIN tenants t ON t.id = e.tenant_id
    LEFT JOIN responses r ON r.tenant_id = e.tenant_id AND r.id = e.response_id
    WHERE e.day >= :first_day AND e.day < :end_day
      AND (CAST(:tenant_ids AS uuid[]) IS NULL OR e.tenant_id = ANY (CAST(:tenant_ids AS uuid[])))
      AND (r.id IS NULL OR r.status NOT IN ('queued', 'in_progress') AND r.completed_at
           < now() - make_interval(secs => coalesce(t.log_retention_s, CAST(:log_s AS integer))))
    LIMIT :rows_max
) AS expired
WHERE events.day >= :first_day AND events.day < :end_day
  AND events.tenant_id = expired.tenant_id AND events.response_id = expired.response_id
  AND events.first_entry = expired.first_entry AND events.day = expired.day
""")
_DELETE_LOGS_OF: Final = Statement("""
DELETE FROM events
USING unnest(CAST(:tenant_ids AS uuid[]), CAST(:response_ids AS uuid[]))
      AS gone (tenant_id, response_id)
WHERE events.day = :day
  AND events.tenant_id = gone.tenant_id AND events.response_id = gone.response_id
""")
# No index has `created_at`. Ids begin with the time at which they were made, so that the primary
# key finds the old ones, tenant by tenant. From each leaf it goes up while nothing else continues
# from the parent; a parent of several is a leaf itself once they are gone. The limits also keep the
# planner from reading all responses instead of the index.
_DELETE_RESPONSES: Final = Statement("""
WITH RECURSIVE policy AS (
    SELECT id AS tenant_id, now() - make_interval(
        secs => coalesce(response_retention_s, CAST(:response_s AS integer))
    ) AS cutoff
    FROM tenants
), leaves AS (
    SELECT leaf.tenant_id, leaf.id, leaf.parent_id, policy.cutoff
    FROM policy CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.id, r.parent_id FROM responses r
        WHERE r.tenant_id = policy.tenant_id
          AND r.id < (lpad(to_hex((extract(epoch FROM policy.cutoff) * 1000)::bigint), 12, '0')
                      || repeat('0', 20))::uuid
          AND r.created_at < policy.cutoff AND r.status NOT IN ('queued', 'in_progress')
          AND NOT EXISTS (
              SELECT FROM responses c WHERE c.tenant_id = r.tenant_id AND c.parent_id = r.id
          )
        LIMIT :rows_max
    ) AS leaf
    LIMIT :rows_max
), chain AS (
    SELECT tenant_id, id, parent_id, cutoff, 0 AS height FROM leaves
    UNION ALL
    SELECT parent.tenant_id, parent.id, parent.parent_id, chain.cutoff, chain.height + 1
    FROM chain CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.id, r.parent_id FROM responses r
        WHERE r.tenant_id = chain.tenant_id AND r.id = chain.parent_id
          AND r.created_at < chain.cutoff AND r.status NOT IN ('queued', 'in_progress')
          AND NOT EXISTS (
              SELECT FROM responses c
              WHERE c.tenant_id = r.tenant_id AND c.parent_id = r.id AND c.id <> chain.id
          )
        LIMIT 1
    ) AS parent
), expired AS (
    SELECT tenant_id, id FROM chain ORDER BY height LIMIT :rows_max
)
DELETE FROM responses r USING expired e
WHERE r.tenant_id = e.tenant_id AND r.id = e.id
RETURNING r.tenant_id, r.id, r.created_at, r.durable
""")
_DELETE_KEYS: Final = Statement("""
DELETE FROM idempotency_keys k USING (
    SELECT tenant_id, key_hash FROM idempotency_keys
    WHERE created_at < now() - make_interval(secs => CAST(:idempotency_key_s AS integer))
    LIMIT :rows_max
) AS expired
WHERE k.tenant_id = expired.tenant_id AND k.key_hash = expired.key_hash
""")
_DELETE_TRACES: Final = Statement("""
DELETE FROM traces t USING (
    SELECT old.tenant_id, old.key FROM tenants CROSS JOIN LATERAL (
        SELECT tenant_id, key FROM traces
        WHERE tenant_id = tenants.id
          AND received_at < now() - make_interval(secs => CAST(:traces_s AS integer))
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE t.tenant_id = expired.tenant_id AND t.key = expired.key
""")


@dataclass(frozen=True, slots=True)
class Keep:
    """How long things are kept where the tenant has no policy of its own, in seconds.

    A log after the end of its response; a response and an idempotency key after their creation; a
    trace or a span after it came last.
    """

    log_s: int
    response_s: int
    idempotency_key_s: int
    traces_s: int


async def delete_logs(database: Database, keep: Keep, *, rows_max: int) -> int:
    """Delete up to `rows_max` log rows that no partition takes with it; returns how many.

    They are of tenants that keep their logs shorter than others, or in the default partition.
    """
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        brief = await connection.scalars(_BRIEF, {"log_s": keep.log_s})
        for (first, end), tenant_ids in [
            *([(_ALWAYS, brief)] if brief else []),
            *((gap, None) for gap in _gaps(await days_of(connection))),
        ]:
            expired = {"first_day": first, "end_day": end, "tenant_ids": tenant_ids}
            bounds = {"log_s": keep.log_s, "rows_max": rows_max}
            deleted = await connection.count(_DELETE_LOGS, expired | bounds)
            if deleted:
                return deleted
    return 0


async def delete_responses(database: Database, keep: Keep, *, rows_max: int) -> int:
    """Delete up to `rows_max` expired responses with their items and logs; returns how many.

    None that still runs, none before the ones that continue from it: those are deleted first.
    """
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        found = await connection.execute(
            _DELETE_RESPONSES, {"response_s": keep.response_s, "rows_max": rows_max}
        )
        gone = list(found)
        logs: dict[date, list[tuple[UUID, UUID]]] = defaultdict(list)
        for row in gone:
            if row.durable:
                logs[row.created_at.astimezone(UTC).date()].append((row.tenant_id, row.id))
        for day, keys in logs.items():
            tenant_ids, response_ids = zip(*keys, strict=True)
            of_day = {"day": day, "tenant_ids": tenant_ids, "response_ids": response_ids}
            await connection.execute(_DELETE_LOGS_OF, of_day)
    return len(gone)


async def delete_keys(database: Database, keep: Keep, *, rows_max: int) -> int:
    """Delete up to `rows_max` idempotency keys that stand for nothing any more."""
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        expired = {"idempotency_key_s": keep.idempotency_key_s, "rows_max": rows_max}
        return await connection.count(_DELETE_KEYS, expired)


async def delete_traces(database: Database, keep: Keep, *, rows_max: int) -> int:
    """Delete up to `rows_max` traces and spans that have not come again for so long."""
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        expired = {"traces_s": keep.traces_s, "rows_max": rows_max}
        return await connection.count(_DELETE_TRACES, expired)


def _gaps(days: Sequence[date]) -> list[tuple[date, date]]:
    """The stretches of days (first, end) without a partition: their rows are in the default one."""
    firsts = [date.min, *(day + _DAY for day in days)]
    ends = [*days, date.max]
    return [(first, end) for first, end in zip(firsts, ends, strict=True) if first < end]
