"""Removal of what has expired: logs, responses, idempotency keys, traces, usage and the like.

Every process runs rounds, and whichever comes first does the work; nothing depends on a round.
Expiry is decided by the database's clock alone, and data of held tenants stays. Every function is
one short transaction that removes a bounded number of rows, and nothing while another process does
the same.

A partition holds the logs of responses that were created on one day (UTC), and goes with one DROP.
Only the owner of the tables can make and drop them; other roles leave that to `harmony-gateway db
maintain`. A transaction on them waits a moment at most for a lock, because a waiter for an
exclusive lock makes all others behind it wait; a locked partition is left to a later round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from gateway import ids
from gateway.audit import trimmed
from gateway.errors import StoreError
from gateway.store import audit_log, claim_order, flushes
from gateway.store.events import day_of
from gateway.store.ledger import rollup
from gateway.store.locks import Lock, removing, try_take
from gateway.store.periodic import run_periodically
from gateway.store.postgres.statements import Statement
from gateway.store.schema import AUDIT_LOG_KEPT_DAYS, EVERYONE, RUNS_ROLE
from gateway.store.tables import TABLES
from gateway.store.tables.columns import about, keys_of_table
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Table

    from gateway.settings.sections import Ledger, Retention
    from gateway.store.postgres.database import Connection, Database

INTERVAL_S: Final = 900.0
"""Seconds between two rounds."""
BATCH_ROWS_MAX: Final = 1000
DAYS_AHEAD: Final = 3
"""Days of partitions made ahead, should rounds fail for a while."""
SILENT_S: Final = 60
"""Seconds after which the flushes of a process that runs nothing are removed."""

_log = EventLog(__name__)
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


async def delete_logs(database: Database, keep: Retention, *, rows_max: int) -> int:
    """Delete expired log rows that go with no partition: of tenants with shorter log retention, or
    in the default partition.
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
    """Delete expired responses with items and logs, but those that run, or that others continue."""
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


async def delete_audit(database: Database, _keep: Retention, *, rows_max: int) -> int:
    """Delete expired entries of one audit chain. An entry at its other end records that."""
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        bounds = {"operator": EVERYONE, "audit_days": AUDIT_LOG_KEPT_DAYS, "rows_max": rows_max}
        old = (await connection.execute(_OLD_CHAINS, bounds)).one_or_none()
        if old is None:
            return 0
        chain = None if old.id == EVERYONE else old.id
        await audit_log.record(connection, chain, trimmed(old.id, old.number, old.hash))
        return await connection.count(_DELETE_AUDIT, {"tenant": old.id, "number": old.number})


def _deletions(table: Table) -> tuple[Statement, ...]:
    keys = ("tenant_id", *keys_of_table(table.name))
    same = " AND ".join(f"gone.{key} = expired.{key}" for key in keys)
    return tuple(
        Statement(f"""
DELETE FROM {table.name} AS gone USING (
    SELECT old.* FROM tenants CROSS JOIN LATERAL (
        SELECT {", ".join(keys)} FROM {table.name} AS one
        WHERE tenants.held_at IS NULL AND one.tenant_id = tenants.id AND {condition}
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE {same}
""")  # noqa: S608 - constants only
        for condition in about(table).lifetime.expired
    )


_DELETE_EXPIRED: Final = {
    name: statements for name, table in TABLES.items() if (statements := _deletions(table))
}


async def _delete(connection: Connection, table: str, keep: Mapping[str, Any], most: int) -> int:
    removed = 0
    for statement in _DELETE_EXPIRED[table]:
        removed += await connection.count(statement, {**keep, "rows_max": most - removed})
        if removed == most:
            break
    return removed


async def delete_expired(table: str, database: Database, keep: Retention, *, rows_max: int) -> int:
    async with database.runs_transaction() as connection:
        if not await is_alone(connection):
            return 0
        return await _delete(connection, table, vars(keep), rows_max)


def _gaps(days: Sequence[date]) -> list[tuple[date, date]]:
    # Days without a partition, whose rows are in the default one, as (first, end).
    firsts = [date.min, *(day + _DAY for day in days)]
    ends = [*days, date.max]
    return [(first, end) for first, end in zip(firsts, ends, strict=True) if first < end]


LOCK_WAIT_S: Final = 0.2
_PARTITION: Final = re.compile(r"events_(\d{4})(\d\d)(\d\d)\Z")
_DAY: Final = timedelta(days=1)
_CLOCKS_DIFFER_S: Final = 3600
_IN_THE_WAY: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.CheckViolationError,
)

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
    days: tuple[date, ...] = ()
    busy: tuple[date, ...] = ()


async def is_alone(connection: Connection) -> bool:
    # Takes the lock for the transaction. False: another process holds it.
    return await try_take(connection, Lock.HOUSEKEEPING)


async def owns_partitions(database: Database) -> bool:
    async with database.owner_transaction() as connection:
        return bool(await connection.scalar(_IS_OWNED))


async def partition_days(connection: Connection) -> list[date]:
    names = (_PARTITION.match(name) for name in await connection.scalars(_PARTITIONS))
    return sorted(date(int(name[1]), int(name[2]), int(name[3])) for name in names if name)


async def make_partitions(
    database: Database, today: date, days_ahead: int, *, lock_wait_s: float = LOCK_WAIT_S
) -> tuple[date, ...]:
    """Make the missing partitions from `today` on; return their days.

    A day that has rows in the default partition gets none, nor does any while the log is locked.
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
    """Drop the partitions of days whose logs have expired for all tenants."""
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
    of_day = {
        "first_id": ids.first_uuid(begins.timestamp() - _CLOCKS_DIFFER_S),
        "last_id": ids.first_uuid(ends.timestamp() + _CLOCKS_DIFFER_S),
    }
    times = {"begins": begins, "ends": ends}
    async with database.runs_transaction() as connection:
        # First: what ends meanwhile may be read.
        if await connection.scalar(_RUNS, times):
            return True
        if await connection.scalar(_IS_HELD, {"day": day}):
            return True
        return bool(await connection.scalar(_MAY_BE_READ, {"log_s": log_s, **of_day, **times}))


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


async def remove_expired(
    database: Database, keep: Ledger, *, rows_max: int, batches_max: int = 100
) -> int:
    """Remove expired usage, and sum up hours into days; return the number of rows removed.

    Raises `StoreUnavailable`; earlier batches stay removed.
    """
    removed = 0
    for table in ("usage_hours", "usage", "usage_minutes", "usage_days", "usage_end_user_days"):
        for _ in range(batches_max):
            async with database.runs_transaction() as connection:
                await removing(connection)
                if table == "usage_hours":
                    rows = await rollup.days_of_hours(connection, keep.hours_s, rows_max=rows_max)
                else:
                    rows = await _delete(connection, table, vars(keep), rows_max)
            removed += rows
            if rows < rows_max:
                break
    return removed


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """Result of one round. `days_owned` False: it left days to their owner."""

    days_owned: bool
    days_made: int = 0
    days_dropped: int = 0
    days_busy: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)


REMOVED: Final = {
    "log_rows": "rows of logs",
    "audit": "audit log",
    "idempotency_keys": "idempotency keys",
    "traces": "traces and spans",
    "tool_calls": "audit of tools",
    "pages": "pages",
    "approvals": "approvals",
    "consents": "consents",
    "files": "files",
    "containers": "containers",
    "responses": "responses",
}
"""Descriptions in log lines and `db maintain`, by name."""
_NAMES: Final = {
    "pages": "tool_pages",
    "approvals": "tool_approvals",
    "consents": "content_consents",
}
_DELETIONS: Final[Mapping[str, Callable[..., Awaitable[int]]]] = {
    "log_rows": delete_logs,
    "audit": delete_audit,
    **{
        name: partial(delete_expired, table)
        for name in REMOVED
        if (table := _NAMES.get(name, name)) in _DELETE_EXPIRED
    },
    "responses": delete_responses,
}


@contextmanager
def _noting(failures: list[StoreError]) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        failures.append(error)


class Housekeeping:
    def __init__(
        self,
        database: Database,
        keep: Retention,
        *,
        interval_s: float = INTERVAL_S,
        batch_rows_max: int = BATCH_ROWS_MAX,
        batches_max: int = 100,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
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
        """Make partitions at once, then run rounds until cancelled, despite database errors."""
        failure = "housekeeping failed, will be tried again"
        try:
            await self._begin()
        except StoreError as error:
            _log.warning(failure, error=error)
        await run_periodically(self.round, self._interval_s, _log.warning, failure)

    async def _begin(self) -> None:
        if await owns_partitions(self._database):
            await self.prepare()
        else:
            _log.info("days of logs are left to `db maintain`, run as the owner of the tables")

    async def prepare(self) -> int:
        return len(await make_partitions(self._database, self._today(), DAYS_AHEAD))

    async def round(self) -> RetentionReport:
        """Do everything once, then raise the first `StoreError`: what runs out of time must not
        keep all else from being removed.
        """
        days_owned = await owns_partitions(self._database)
        days_made, dropped = 0, Dropped()
        removed = dict.fromkeys(REMOVED, 0)
        failures: list[StoreError] = []
        if days_owned:
            with _noting(failures):
                days_made = await self.prepare()
            with _noting(failures):
                dropped = await drop_partitions(self._database, self._keep.log_s)
        for kind, delete in _DELETIONS.items():
            with _noting(failures):
                removed[kind] = await self._remove(delete)
        with _noting(failures):
            removed["log_rows"] += await flushes.remove_left(self._database, silent_s=SILENT_S)
        with _noting(failures):
            await claim_order.forget_shares(self._database)
        report = RetentionReport(
            days_owned, days_made, len(dropped.days), len(dropped.busy), removed
        )
        _tell(report)
        if failures:
            raise failures[0]
        return report

    async def _remove(self, delete: Callable[..., Awaitable[int]]) -> int:
        removed = 0
        for _ in range(self._batches_max):
            rows = await delete(self._database, self._keep, rows_max=self._batch_rows_max)
            if not rows:
                break
            removed += rows
        return removed


def _tell(report: RetentionReport) -> None:
    counts = {"days of logs": report.days_dropped}
    counts |= {rule: report.removed[kind] for kind, rule in REMOVED.items()}
    for rule, count in counts.items():
        if count:
            _log.info("expired and removed", rule=rule, count=count)
    if report.days_busy:
        _log.info("expired logs are in use and stay for now", count=report.days_busy)
