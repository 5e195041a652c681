"""The removal of what has expired: logs, responses, idempotency keys, traces and the like.

Nothing goes of a tenant that is held. Only the database's clock says what has expired. Every
function is one short transaction that removes a bounded number of rows, and nothing at all while
another process is at it. Logs mostly go with their day's partition, with one DROP: what is deleted
here is what cannot wait for that.

A partition holds the logs of all responses that were created on one day (UTC). They are made ahead;
rows of a day that has none go into the default partition. Every transaction on them is short and
waits a moment at most for a lock, because whoever waits for one that excludes all others makes
everyone behind it wait as well; what cannot be had now is left to a later round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg

from gateway.governance.audit import trimmed
from gateway.store.events import day_of
from gateway.store.governance import audit_log
from gateway.store.governance.audit_log import KEPT_DAYS
from gateway.store.governance.holds import HOUSEKEEPING_LOCK
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE, RUNS_ROLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.settings.sections import Retention
    from gateway.store.postgres.database import Connection, Database

CONTAINER_KEPT_S: Final = 86_400
"""Seconds that the row of an expired container is kept, to say so; its files go at once."""
_ALWAYS: Final = (date.min, date.max)

_BRIEF: Final = Statement("""
SELECT id FROM tenants
WHERE held_at IS NULL
  AND (coalesce(log_retention_s, CAST(:log_s AS integer))
       < greatest(CAST(:log_s AS integer), (SELECT max(log_retention_s) FROM tenants))
       OR EXISTS (SELECT FROM tenants WHERE held_at IS NOT NULL))
""")
_DELETE_LOGS: Final = Statement("""
DELETE FROM events USING (
    SELECT e.tenant_id, e.response_id, e.first_entry, e.day
    FROM events e
    JOIN tenants t ON t.id = e.tenant_id
    LEFT JOIN responses r ON r.tenant_id = e.tenant_id AND r.id = e.response_id
    WHERE e.day >= :first_day AND e.day < :end_day
      AND (CAST(:tenant_ids AS uuid[]) IS NULL OR e.tenant_id = ANY (CAST(:tenant_ids AS uuid[])))
      AND t.held_at IS NULL
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
    FROM tenants WHERE held_at IS NULL
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
      AND NOT EXISTS (
          SELECT FROM tenants
          WHERE tenants.id = idempotency_keys.tenant_id AND tenants.held_at IS NOT NULL
      )
    LIMIT :rows_max
) AS expired
WHERE k.tenant_id = expired.tenant_id AND k.key_hash = expired.key_hash
""")
_DELETE_TRACES: Final = Statement("""
DELETE FROM traces t USING (
    SELECT old.tenant_id, old.key FROM tenants CROSS JOIN LATERAL (
        SELECT tenant_id, key FROM traces
        WHERE tenants.held_at IS NULL AND tenant_id = tenants.id
          AND received_at < now() - make_interval(secs => CAST(:traces_s AS integer))
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE t.tenant_id = expired.tenant_id AND t.key = expired.key
""")
_DELETE_APPROVALS: Final = Statement("""
DELETE FROM tool_approvals a USING (
    SELECT old.tenant_id, old.request_id FROM tenants CROSS JOIN LATERAL (
        SELECT tenant_id, request_id FROM tool_approvals
        WHERE tenants.held_at IS NULL AND tenant_id = tenants.id
          AND expires_at < now() - interval '7 days'
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE a.tenant_id = expired.tenant_id AND a.request_id = expired.request_id
""")
_DELETE_CALLS: Final = Statement("""
DELETE FROM tool_calls c USING (
    SELECT old.* FROM tenants CROSS JOIN LATERAL (
        SELECT tenant_id, response_id, ordinal, attempt FROM tool_calls
        WHERE tenants.held_at IS NULL AND tenant_id = tenants.id
          AND at < now() - make_interval(secs => CAST(:tool_calls_s AS integer))
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE c.tenant_id = expired.tenant_id AND c.response_id = expired.response_id
  AND c.ordinal = expired.ordinal AND c.attempt = expired.attempt
""")
_OLD_CHAINS: Final = Statement("""
SELECT chain.id, last.number, last.hash FROM (
    SELECT id FROM tenants WHERE held_at IS NULL
    UNION ALL SELECT CAST(:operator AS uuid)
) AS chain CROSS JOIN LATERAL (
    SELECT number, at FROM audit_log WHERE tenant_id = chain.id ORDER BY number LIMIT 1
) AS first CROSS JOIN LATERAL (
    SELECT coalesce(min(number) - 1, 9223372036854775807) AS number FROM audit_log
    WHERE tenant_id = chain.id AND at >= now() - make_interval(days => CAST(:audit_days AS integer))
) AS old CROSS JOIN LATERAL (
    SELECT number, hash FROM audit_log
    WHERE tenant_id = chain.id AND number <= least(old.number, first.number - 1 + :rows_max)
    ORDER BY number DESC LIMIT 1
) AS last
WHERE first.at < now() - make_interval(days => CAST(:audit_days AS integer))
LIMIT 1
""")
_DELETE_AUDIT: Final = Statement("""
DELETE FROM audit_log WHERE tenant_id = :tenant AND number <= :number
""")
_DELETE_PAGES: Final = Statement("""
DELETE FROM tool_pages p USING (
    SELECT old.tenant_id, old.key FROM tenants t CROSS JOIN LATERAL (
        SELECT tenant_id, key FROM tool_pages
        WHERE t.held_at IS NULL AND tenant_id = t.id AND fetched_at < now() - make_interval(
            secs => coalesce(t.response_retention_s, CAST(:response_s AS integer))
        )
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE p.tenant_id = expired.tenant_id AND p.key = expired.key
""")


_DELETE_FILES: Final = Statement("""
DELETE FROM files f USING (
    SELECT old.tenant_id, old.id FROM tenants CROSS JOIN LATERAL (
        SELECT tenant_id, id FROM files
        WHERE tenants.held_at IS NULL AND tenant_id = tenants.id AND expires_at < now()
        LIMIT :rows_max
    ) AS old
    UNION ALL
    SELECT old.tenant_id, old.id FROM tenants CROSS JOIN LATERAL (
        SELECT held.tenant_id, held.id
        FROM containers c JOIN files held
            ON held.tenant_id = c.tenant_id AND held.container_id = c.id
        WHERE tenants.held_at IS NULL AND c.tenant_id = tenants.id AND c.expires_at < now()
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE f.tenant_id = expired.tenant_id AND f.id = expired.id
""")
_DELETE_CONTAINERS: Final = Statement(f"""
DELETE FROM containers c USING (
    SELECT old.tenant_id, old.id FROM tenants CROSS JOIN LATERAL (
        SELECT tenant_id, id FROM containers
        WHERE tenants.held_at IS NULL AND tenant_id = tenants.id
          AND expires_at < now() - make_interval(secs => {CONTAINER_KEPT_S})
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE c.tenant_id = expired.tenant_id AND c.id = expired.id
""")  # noqa: S608 - constants only


async def delete_logs(database: Database, keep: Retention, *, rows_max: int) -> int:
    """Delete up to `rows_max` log rows that go with no partition; return their number.

    They belong to tenants with shorter log retention, or are in the default partition.
    """
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        brief = await connection.scalars(_BRIEF, {"log_s": keep.log_s})
        for (first, end), tenant_ids in [
            *([(_ALWAYS, brief)] if brief else []),
            *((gap, None) for gap in _gaps(await partition_days(connection))),
        ]:
            expired = {"first_day": first, "end_day": end, "tenant_ids": tenant_ids}
            bounds = {"log_s": keep.log_s, "rows_max": rows_max}
            deleted = await connection.count(_DELETE_LOGS, expired | bounds)
            if deleted:
                return deleted
    return 0


async def delete_responses(database: Database, keep: Retention, *, rows_max: int) -> int:
    """Delete up to `rows_max` expired responses with items and logs; return their number.

    A response that runs stays, and so does one until those that continue it are deleted.
    """
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        bounds = {"response_s": keep.response_s, "rows_max": rows_max}
        gone = await connection.execute(_DELETE_RESPONSES, bounds)
        logs: dict[date, list[tuple[UUID, UUID]]] = defaultdict(list)
        for row in gone:
            if row.durable:
                logs[day_of(row.created_at)].append((row.tenant_id, row.id))
        for day, keys in logs.items():
            tenant_ids, response_ids = zip(*keys, strict=True)
            of_day = {"day": day, "tenant_ids": tenant_ids, "response_ids": response_ids}
            await connection.execute(_DELETE_LOGS_OF, of_day)
    return len(gone)


async def delete_keys(database: Database, keep: Retention, *, rows_max: int) -> int:
    return await _delete(database, _DELETE_KEYS, keep, rows_max)


async def delete_traces(database: Database, keep: Retention, *, rows_max: int) -> int:
    return await _delete(database, _DELETE_TRACES, keep, rows_max)


async def delete_calls(database: Database, keep: Retention, *, rows_max: int) -> int:
    # The audit of hosted tools.
    return await _delete(database, _DELETE_CALLS, keep, rows_max)


async def delete_audit(database: Database, _keep: Retention, *, rows_max: int) -> int:
    """Delete up to `rows_max` entries of one audit chain that need not be kept any longer.

    An entry at the other end of the chain records the removal; the remaining entries still link to
    it.
    """
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        bounds = {"operator": EVERYONE, "audit_days": KEPT_DAYS, "rows_max": rows_max}
        old = (await connection.execute(_OLD_CHAINS, bounds)).one_or_none()
        if old is None:
            return 0
        chain = None if old.id == EVERYONE else old.id
        await audit_log.record(connection, chain, trimmed(old.id, old.number, old.hash))
        return await connection.count(_DELETE_AUDIT, {"tenant": old.id, "number": old.number})


async def delete_pages(database: Database, keep: Retention, *, rows_max: int) -> int:
    # Pages of browsers that are older than responses may get.
    return await _delete(database, _DELETE_PAGES, keep, rows_max)


async def delete_approvals(database: Database, keep: Retention, *, rows_max: int) -> int:
    # A week after expiry; until then, using one gets an error that says it expired.
    return await _delete(database, _DELETE_APPROVALS, keep, rows_max)


async def delete_files(database: Database, keep: Retention, *, rows_max: int) -> int:
    # Files that have expired, or whose containers have.
    return await _delete(database, _DELETE_FILES, keep, rows_max)


async def delete_containers(database: Database, keep: Retention, *, rows_max: int) -> int:
    # Containers that expired `CONTAINER_KEPT_S` ago.
    return await _delete(database, _DELETE_CONTAINERS, keep, rows_max)


async def _delete(database: Database, statement: Statement, keep: Retention, rows_max: int) -> int:
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        return await connection.count(statement, keep.model_dump() | {"rows_max": rows_max})


def _gaps(days: Sequence[date]) -> list[tuple[date, date]]:
    # Days without a partition, whose rows are in the default one, as (first, end).
    firsts = [date.min, *(day + _DAY for day in days)]
    ends = [*days, date.max]
    return [(first, end) for first, end in zip(firsts, ends, strict=True) if first < end]


LOCK_WAIT_S: Final = 0.2
_PARTITION: Final = re.compile(r"events_(\d{4})(\d\d)(\d\d)\Z")
_DAY: Final = timedelta(days=1)
_CLOCKS_DIFFER: Final = timedelta(hours=1)
_IN_THE_WAY: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.CheckViolationError,
)

_TRY_LOCK: Final = Statement("SELECT pg_try_advisory_xact_lock(:key)")
_LIMIT_WAIT: Final = Statement("SELECT set_config('lock_timeout', :wait_ms, true)")
_TAKE_ROLE: Final = Statement("SELECT set_config('role', :role, true)")
_PARTITIONS: Final = Statement(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'events'::regclass"
)
_IS_OWNED: Final = Statement(
    "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'events'::regclass"
)
_RUNS: Final = Statement("""
SELECT EXISTS (
    SELECT FROM responses
    WHERE status IN ('queued', 'in_progress') AND created_at >= :begins AND created_at < :ends
)
""")
_IS_HELD: Final = Statement("""
SELECT EXISTS (
    SELECT FROM tenants CROSS JOIN LATERAL (
        SELECT FROM events WHERE tenant_id = tenants.id AND day = :day LIMIT 1
    ) AS found
    WHERE tenants.held_at IS NOT NULL
)
""")
# No index has `created_at`. Ids begin with the time at which they were made, so that the primary
# key finds the responses of a day, tenant by tenant.
_MAY_BE_READ: Final = Statement("""
WITH policy AS (
    SELECT now() - make_interval(
        secs => greatest(CAST(:log_s AS integer), (SELECT max(log_retention_s) FROM tenants))
    ) AS readable
)
SELECT :ends >= readable OR EXISTS (
    SELECT FROM tenants CROSS JOIN LATERAL (
        SELECT FROM responses
        WHERE tenant_id = tenants.id AND responses.id BETWEEN :first_id AND :last_id
          AND responses.created_at >= :begins AND responses.created_at < :ends
          AND completed_at >= readable
        LIMIT 1
    ) AS found
)
FROM policy
""")


@dataclass(frozen=True, slots=True)
class Dropped:
    """Expired days: `days` are dropped, `busy` ones are in use just now and go in a later round."""

    days: tuple[date, ...] = ()
    busy: tuple[date, ...] = ()


async def is_alone(connection: Connection) -> bool:
    """Take the housekeeping lock for the transaction. Return False if another process holds it.

    It is a lock of the transaction, so it works through a transaction pooler.
    """
    return bool(await connection.scalar(_TRY_LOCK, {"key": HOUSEKEEPING_LOCK}))


async def owns_partitions(database: Database) -> bool:
    """Return True if this login may make and drop partitions: it must own the log."""
    async with database.owner_transaction() as connection:
        return bool(await connection.scalar(_IS_OWNED))


async def partition_days(connection: Connection) -> list[date]:
    """Return the days that have a partition of their own, ascending."""
    names = (_PARTITION.match(name) for name in await connection.scalars(_PARTITIONS))
    return sorted(date(int(name[1]), int(name[2]), int(name[3])) for name in names if name)


async def make_partitions(
    database: Database, today: date, days_ahead: int, *, lock_wait_s: float = LOCK_WAIT_S
) -> tuple[date, ...]:
    """Make the partitions of `today` and the `days_ahead` days after it; return the new ones.

    A day that has rows in the default partition keeps them there and gets no partition. None is
    made while another process makes partitions, or while the log is locked for longer than
    `lock_wait_s`.
    """
    async with database.owner_transaction() as connection:
        existing = await partition_days(connection)
    wanted = [today + _DAY * ahead for ahead in range(days_ahead + 1)]
    return tuple(
        [day for day in wanted if day not in existing and await _make(database, day, lock_wait_s)]
    )


async def drop_partitions(
    database: Database, log_s: int, *, lock_wait_s: float = LOCK_WAIT_S
) -> Dropped:
    """Drop the partitions of days whose logs nobody may read any more.

    The day, and every response created on it, must have ended longer ago than the longest retention
    of any tenant (`log_s`, or its own). Appenders wait for at most `lock_wait_s` and a DROP.
    """
    async with database.owner_transaction() as connection:
        existing = await partition_days(connection)
    days: list[date] = []
    busy: list[date] = []
    for day in existing:
        if not await _is_needed(database, day, log_s):
            (days if await _drop(database, day, lock_wait_s) else busy).append(day)
    return Dropped(tuple(days), tuple(busy))


async def _make(database: Database, day: date, lock_wait_s: float) -> bool:
    # Attached, not created as a partition, so that others can append meanwhile. Like the default
    # partition it is reached through its parent only: no privilege, no policy.
    name, end = f"events_{day:%Y%m%d}", day + _DAY
    async with database.owner_transaction() as connection:
        if not await is_alone(connection) or day in await partition_days(connection):
            return False
        return await _unless_in_the_way(
            connection,
            lock_wait_s,
            f"CREATE TABLE {name} (LIKE events INCLUDING DEFAULTS)",
            f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
            f"ALTER TABLE events ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{end}')",
        )


async def _is_needed(database: Database, day: date, log_s: int) -> bool:
    # True if a log of that day may still be read or written, or is held.
    begins, ends = _bounds(day)
    ids = {
        "first_id": _first_id(begins - _CLOCKS_DIFFER),
        "last_id": _first_id(ends + _CLOCKS_DIFFER),
    }
    times = {"begins": begins, "ends": ends}
    async with database.runs_transaction() as connection:
        if await connection.scalar(_MAY_BE_READ, {"log_s": log_s, **ids, **times}):
            return True
        if await connection.scalar(_IS_HELD, {"day": day}):
            return True
        return bool(await connection.scalar(_RUNS, times))


async def _drop(database: Database, day: date, lock_wait_s: float) -> bool:
    # False: in use, a response of that day runs, or a log is held. The whole log is locked first,
    # as DROP does in the end, so nobody can append after the check. The role of runs sees the
    # responses; only the owner can drop tables.
    begins, ends = _bounds(day)
    async with database.owner_transaction() as connection:
        if not await is_alone(connection):
            return False
        locked = "LOCK TABLE ONLY events IN ACCESS EXCLUSIVE MODE"
        if not await _unless_in_the_way(connection, lock_wait_s, locked):
            return False
        await connection.execute(_TAKE_ROLE, {"role": RUNS_ROLE})
        is_needed = await connection.scalar(_RUNS, {"begins": begins, "ends": ends})
        is_needed = is_needed or await connection.scalar(_IS_HELD, {"day": day})
        await connection.execute(_TAKE_ROLE, {"role": "none"})
        if is_needed:
            return False
        dropped = f"DROP TABLE IF EXISTS events_{day:%Y%m%d}"
        return await _unless_in_the_way(connection, lock_wait_s, dropped)


async def _unless_in_the_way(connection: Connection, lock_wait_s: float, *statements: str) -> bool:
    # All of the statements, or none (False) if a lock or a row of the default partition is there.
    await connection.execute(_LIMIT_WAIT, {"wait_ms": str(max(1, int(lock_wait_s * 1000)))})
    await connection.script("SAVEPOINT before")
    try:
        for statement in statements:
            await connection.script(statement)
    except _IN_THE_WAY:
        await connection.script("ROLLBACK TO SAVEPOINT before")
        return False
    return True


def _bounds(day: date) -> tuple[datetime, datetime]:
    begins = datetime.combine(day, time(), UTC)
    return begins, begins + _DAY


def _first_id(moment: datetime) -> UUID:
    # UUIDv7: 48 bits of milliseconds. No id made at or after `moment` is smaller.
    return UUID(int=int(moment.timestamp() * 1000) << 80)
