"""The log's partitions: one holds the logs of all responses that were created on one day (UTC).

So they go with one DROP. They are made ahead; rows of a day that has none go into the default
partition. Every transaction here is short and waits a moment at most for a lock, because whoever
waits for one that excludes all others makes everyone behind it wait as well; what cannot be had now
is left to a later round.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg

from gateway.store.postgres.statements import Statement
from gateway.store.schema import RUNS_ROLE

if TYPE_CHECKING:
    from gateway.store.postgres.connection import Connection
    from gateway.store.postgres.database import Database

LOCK_WAIT_S: Final = 0.2
_LOCK_KEY: Final = 0x486F7573656B6570  # "Housekep", as the number of an advisory lock
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
    """What became of expired days: `busy` ones are in use just now and go in a later round."""

    days: tuple[date, ...] = ()
    busy: tuple[date, ...] = ()


async def is_alone(connection: Connection) -> bool:
    """Is no other process making or removing anything? Then none will, in this transaction.

    The lock is one of the transaction, so a transaction pooler may sit in between.
    """
    return bool(await connection.scalar(_TRY_LOCK, {"key": _LOCK_KEY}))


async def are_ours(database: Database) -> bool:
    """May this login make and drop partitions? Only whoever owns the log may."""
    async with database.owner_transaction() as connection:
        return bool(await connection.scalar(_IS_OWNED))


async def days_of(connection: Connection) -> list[date]:
    """The days that have a partition of their own, ascending."""
    names = (_PARTITION.match(name) for name in await connection.scalars(_PARTITIONS))
    return sorted(date(int(name[1]), int(name[2]), int(name[3])) for name in names if name)


async def prepare(
    database: Database, today: date, days_ahead: int, *, lock_wait_s: float = LOCK_WAIT_S
) -> tuple[date, ...]:
    """Make the partitions of `today` and of the `days_ahead` days after it; returns the new ones.

    A day that has rows in the default partition keeps them there and gets no partition. Nor is one
    made while another process makes it, or while the log is locked for longer than `lock_wait_s`.
    """
    async with database.owner_transaction() as connection:
        existing = await days_of(connection)
    wanted = [today + _DAY * ahead for ahead in range(days_ahead + 1)]
    return tuple(
        [day for day in wanted if day not in existing and await _make(database, day, lock_wait_s)]
    )


async def drop_expired(
    database: Database, log_s: int, *, lock_wait_s: float = LOCK_WAIT_S
) -> Dropped:
    """Drop the partitions of days whose logs nobody may read any more.

    That is when the day ended longer ago than the longest retention of any tenant (`log_s`, or its
    own), and so did every response that was created on it. Appenders wait for `lock_wait_s` and a
    DROP at most.
    """
    async with database.owner_transaction() as connection:
        existing = await days_of(connection)
    days: list[date] = []
    busy: list[date] = []
    for day in existing:
        if not await _is_needed(database, day, log_s):
            (days if await _drop(database, day, lock_wait_s) else busy).append(day)
    return Dropped(tuple(days), tuple(busy))


async def _make(database: Database, day: date, lock_wait_s: float) -> bool:
    """Attached instead of created as a partition, because that lets others append meanwhile.

    Like the default one it can be reached through its parent only: no privilege, no policy.
    """
    name, end = f"events_{day:%Y%m%d}", day + _DAY
    async with database.owner_transaction() as connection:
        if not await is_alone(connection) or day in await days_of(connection):
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
    """May anybody still read a log of that day, or write one?"""
    begins, ends = _bounds(day)
    ids = {
        "first_id": _first_id(begins - _CLOCKS_DIFFER),
        "last_id": _first_id(ends + _CLOCKS_DIFFER),
    }
    times = {"begins": begins, "ends": ends}
    async with database.runs_transaction() as connection:
        if await connection.scalar(_MAY_BE_READ, {"log_s": log_s, **ids, **times}):
            return True
        return bool(await connection.scalar(_RUNS, times))


async def _drop(database: Database, day: date, lock_wait_s: float) -> bool:
    """False: it is in use, or a response of that day runs.

    The whole log is locked first, as a DROP would do in the end: then nobody can append to the day
    after it was looked at. Responses are seen by the role of runs, tables dropped by their owner.
    """
    begins, ends = _bounds(day)
    async with database.owner_transaction() as connection:
        if not await is_alone(connection):
            return False
        locked = "LOCK TABLE ONLY events IN ACCESS EXCLUSIVE MODE"
        if not await _unless_in_the_way(connection, lock_wait_s, locked):
            return False
        await connection.execute(_TAKE_ROLE, {"role": RUNS_ROLE})
        runs = await connection.scalar(_RUNS, {"begins": begins, "ends": ends})
        await connection.execute(_TAKE_ROLE, {"role": "none"})
        if runs:
            return False
        dropped = f"DROP TABLE IF EXISTS events_{day:%Y%m%d}"
        return await _unless_in_the_way(connection, lock_wait_s, dropped)


async def _unless_in_the_way(connection: Connection, lock_wait_s: float, *statements: str) -> bool:
    """Execute all of them, or (False) none: a lock, or a row of the default partition, is there."""
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
    """No id that was made at or after `moment` is smaller (UUIDv7: milliseconds in 48 bits)."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
