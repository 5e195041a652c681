"""Counters that replicas share: buckets, requests in progress, and spending of each replica.

Rows are locked in the order of their keys. Only the database's clock counts.

Background responses are counted by their rows, so no counter has to be decreased: before one is
queued, and before one is claimed (`store.claims`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from gateway.limits.accounting import BUSY_WAIT_S, Elsewhere, interval_starts
from gateway.limits.refusal import ReachedLimit, too_many
from gateway.limits.stored_bytes import WHOLE_TENANT, Measurement, account_of, project_of
from gateway.store.limits.key_terms import IN_SCOPE
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gateway.limits.buckets import Ask
    from gateway.limits.rules import Limit, Terms, What
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

FRESH_S: Final = 5.0
BUCKETS_MAX: Final = 256
"""Bound for one statement, which keeps their rows locked until it ends."""
PRESENT: Final = "replica"
"""Name, under the nil tenant, of the report by which replicas count each other."""

Key = tuple[UUID, str]

# A replica that still has the lower capacity of a limit that was raised does not cut the level
# that the raise has added: see `resize`.
_BUCKETS: Final = Statement("""
WITH asked AS (
    SELECT * FROM unnest(
        CAST(:tenants AS uuid[]), CAST(:names AS text[]), CAST(:rates AS double precision[]),
        CAST(:capacities AS double precision[]), CAST(:changes AS double precision[]),
        CAST(:wants AS double precision[])
    ) AS one (tenant_id, name, rate, capacity, change, want)
    ORDER BY tenant_id, name
), locked AS (
    SELECT asked.*, now_.level, now_.at
    FROM asked, LATERAL (
        SELECT level, at FROM buckets AS b
        WHERE b.tenant_id = asked.tenant_id AND b.name = asked.name
        FOR NO KEY UPDATE
    ) AS now_
), filled AS (
    SELECT tenant_id, name, want, greatest(-capacity, least(most, change + least(most,
        level + rate * greatest(0, extract(epoch FROM clock_timestamp() - at))
    ))) AS level
    FROM (SELECT *, greatest(capacity, level) AS most FROM locked) AS bounded
)
UPDATE buckets AS b
SET granted = greatest(0, least(f.want, f.level)), at = clock_timestamp(),
    level = f.level - greatest(0, least(f.want, f.level))
FROM filled AS f
WHERE b.tenant_id = f.tenant_id AND b.name = f.name
RETURNING b.tenant_id, b.name, b.granted, b.level
""")
# An unused bucket is full.
_MAKE: Final = Statement("""
INSERT INTO buckets (tenant_id, name, level, at, granted)
SELECT one.tenant_id, one.name, one.capacity, clock_timestamp(), 0
FROM unnest(CAST(:tenants AS uuid[]), CAST(:names AS text[]),
            CAST(:capacities AS double precision[])) AS one (tenant_id, name, capacity)
ORDER BY 1, 2
ON CONFLICT (tenant_id, name) DO NOTHING
""")
_RESIZE: Final = Statement("""
WITH filled AS (
    SELECT b.tenant_id, b.name, one.capacity, one.capacity - one.before AS more,
           least(one.before, b.level + one.rate
                 * greatest(0, extract(epoch FROM clock_timestamp() - b.at))) AS level
    FROM unnest(CAST(:names AS text[]), CAST(:rates AS double precision[]),
                CAST(:befores AS double precision[]), CAST(:capacities AS double precision[]))
         AS one (name, rate, before, capacity)
    JOIN buckets AS b ON b.tenant_id = :tenant AND b.name = one.name
    ORDER BY b.name
    FOR NO KEY UPDATE OF b
)
UPDATE buckets AS b
SET level = least(f.capacity, f.level + greatest(0, f.more)), at = clock_timestamp()
FROM filled AS f
WHERE b.tenant_id = f.tenant_id AND b.name = f.name
""")
_REFILL: Final = Statement("""
INSERT INTO buckets (tenant_id, name, level, at, granted)
SELECT :tenant, one.name, one.capacity, clock_timestamp(), 0
FROM unnest(CAST(:names AS text[]), CAST(:capacities AS double precision[])) AS one (name, capacity)
ORDER BY 2
ON CONFLICT (tenant_id, name) DO UPDATE SET level = excluded.level, at = excluded.at
""")
_LEVELS: Final = Statement("""
SELECT b.tenant_id, b.name, least(one.capacity, b.level
       + one.rate * greatest(0, extract(epoch FROM clock_timestamp() - b.at))) AS level
FROM unnest(CAST(:tenants AS uuid[]), CAST(:names AS text[]), CAST(:rates AS double precision[]),
            CAST(:capacities AS double precision[])) AS one (tenant_id, name, rate, capacity)
JOIN buckets AS b ON b.tenant_id = one.tenant_id AND b.name = one.name
""")
_REPORT: Final = Statement("""
INSERT INTO limit_reports (tenant_id, name, replica, at, amount)
SELECT one.tenant_id, one.name, CAST(:replica AS text), clock_timestamp(), one.amount
FROM unnest(CAST(:tenants AS uuid[]), CAST(:names AS text[]), CAST(:amounts AS bigint[]))
     AS one (tenant_id, name, amount)
ORDER BY 1, 2
ON CONFLICT (tenant_id, name, replica) DO UPDATE SET at = excluded.at, amount = excluded.amount
""")
_ELSEWHERE: Final = Statement("""
SELECT r.tenant_id, r.name, CAST(sum(r.amount) AS bigint) AS amount
FROM unnest(CAST(:tenants AS uuid[]), CAST(:names AS text[])) AS one (tenant_id, name)
JOIN limit_reports AS r ON r.tenant_id = one.tenant_id AND r.name = one.name
WHERE r.replica <> CAST(:replica AS text)
  AND r.at > clock_timestamp() - CAST(:fresh AS double precision) * interval '1 second'
GROUP BY r.tenant_id, r.name
""")
_FORGET: Final = Statement("""
DELETE FROM limit_reports WHERE (tenant_id, name, replica) IN (
    SELECT tenant_id, name, replica FROM limit_reports
    WHERE at < clock_timestamp() - interval '1 minute' LIMIT 1000 FOR UPDATE SKIP LOCKED
)
""")
_SPEND: Final = Statement("""
INSERT INTO spend (tenant_id, meter, starts_at, replica, amount, at)
SELECT one.tenant_id, one.meter, one.starts_at, CAST(:replica AS text), one.amount,
       clock_timestamp()
FROM unnest(CAST(:tenants AS uuid[]), CAST(:meters AS text[]), CAST(:starts AS timestamptz[]),
            CAST(:amounts AS bigint[])) AS one (tenant_id, meter, starts_at, amount)
WHERE one.amount > 0
ORDER BY 1, 2, 3
ON CONFLICT (tenant_id, meter, starts_at, replica)
DO UPDATE SET amount = greatest(spend.amount, excluded.amount), at = excluded.at
""")
_SPENT: Final = Statement("""
SELECT s.tenant_id, s.meter,
       CAST(sum(CASE s.replica WHEN me.replica THEN 0 ELSE s.amount END) AS bigint) AS others,
       CAST(sum(CASE s.replica WHEN me.replica THEN s.amount ELSE 0 END) AS bigint) AS mine
FROM (SELECT CAST(:replica AS text) AS replica) AS me
CROSS JOIN unnest(
    CAST(:tenants AS uuid[]), CAST(:meters AS text[]), CAST(:starts AS timestamptz[])
) AS one (tenant_id, meter, starts_at)
JOIN spend AS s ON s.tenant_id = one.tenant_id AND s.meter = one.meter
     AND s.starts_at = one.starts_at
GROUP BY s.tenant_id, s.meter
""")


# A project has no row while it has nothing: its tenant's row says when it was measured.
_STORED: Final = Statement("""
SELECT one.tenant_id, one.name, coalesce(s.bytes, 0) AS bytes,
       CAST(extract(epoch FROM clock_timestamp() - whole.at) AS double precision) AS age_s
FROM unnest(CAST(:tenants AS uuid[]), CAST(:names AS text[]), CAST(:projects AS uuid[]))
     AS one (tenant_id, name, project_id)
JOIN stored_bytes AS whole
    ON whole.tenant_id = one.tenant_id AND whole.project_id = CAST(:whole AS uuid)
LEFT JOIN stored_bytes AS s ON s.tenant_id = one.tenant_id AND s.project_id = one.project_id
WHERE whole.bytes IS NOT NULL
""")


class SpentSoFar(NamedTuple):
    others: int = 0
    mine: int = 0


NOTHING_SPENT: Final = SpentSoFar()


class SpendRow(NamedTuple):
    tenant_id: UUID
    meter: str
    starts_at: datetime
    amount: int


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Request to `exchange`. `reports` are repeated in each round; `watched` meters are read."""

    asks: Mapping[Key, Ask] = field(default_factory=dict)
    reports: Mapping[Key, int] = field(default_factory=dict)
    spend: Sequence[SpendRow] = ()
    watched: Sequence[SpendRow] = ()
    stored: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class SyncReply:
    """Reply: granted tokens and level by bucket; only with `is_round` also requests in progress of
    other replicas (`elsewhere`) and their number (`others`).
    """

    buckets: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    elsewhere: Mapping[Key, int] = field(default_factory=dict)
    spent: Mapping[Key, SpentSoFar] = field(default_factory=dict)
    others: int = 0
    is_round: bool = False
    stored: Mapping[Key, Measurement] = field(default_factory=dict)


async def exchange(
    database: Database, replica: str, request: SyncRequest, *, is_round: bool
) -> SyncReply:
    async with database.runs_transaction(durable=bool(request.spend)) as connection:
        buckets = await _fill(connection, request.asks)
        spent = await _spend(connection, replica, request)
        elsewhere: dict[Key, int] = {}
        others = 0
        if is_round:
            elsewhere, others = await _report(connection, replica, request.reports)
        stored = await _read_stored(connection, request.stored)
    return SyncReply(buckets, elsewhere, spent, others, is_round, stored)


async def read(database: Database, replica: str, tenant_id: UUID, terms: Terms) -> Elsewhere:
    buckets = [one for one in terms.limits if one.window_s]
    names = [one.name for one in terms.limits if not one.window_s]
    names += [one.meter for one in terms.budgets]
    accounts = [(tenant_id, account_of(one)) for one in terms.stored]
    names += [name for _, name in accounts]
    starts = interval_starts(terms, datetime.now(UTC))
    rows = [SpendRow(tenant_id, meter, at, 0) for meter, at in starts.items()]
    async with database.runs_transaction(durable=False) as connection:
        rows_of = {
            (tenant_id, one.name): await count_background(connection, tenant_id, one)
            for one in terms.background
        }
        parameters = {
            **_keys([(tenant_id, one.name) for one in buckets]),
            "rates": [one.rate for one in buckets],
            "capacities": [float(one.value) for one in buckets],
        }
        levels = await connection.execute(_LEVELS, parameters)
        keys = _keys([(tenant_id, name) for name in names])
        others = await connection.execute(
            _ELSEWHERE, {**keys, "replica": replica, "fresh": FRESH_S}
        )
        spent = await _spend(connection, replica, SyncRequest(watched=rows))
        stored = await _read_stored(connection, accounts)
    return Elsewhere(
        {(row.tenant_id, row.name): float(row.level) for row in levels},
        {**{(row.tenant_id, row.name): row.amount for row in others}, **rows_of},
        {key: one.others for key, one in spent.items()},
        {key: one.mine for key, one in spent.items()},
        {key: one.size_bytes for key, one in stored.items()},
    )


async def resize(
    database: Database, tenant_id: TenantId, before: Mapping[str, Limit], limits: Collection[Limit]
) -> None:
    """Adjust buckets to limits that were just set; `before` has the old ones.

    Usage is kept: a raised limit adds the difference, a lowered one caps what is left.
    """
    windows = [one for one in limits if one.window_s]
    if not windows:
        return
    changed = [one for one in windows if one.name in before]
    new = [one for one in windows if one.name not in before]
    async with database.runs_transaction(durable=False) as connection:
        rates = [before[one.name].rate for one in changed]
        befores = [float(before[one.name].value) for one in changed]
        sizes = {"rates": rates, "befores": befores}
        await connection.execute(_RESIZE, {**_sizes(tenant_id, changed), **sizes})
        await connection.execute(_REFILL, _sizes(tenant_id, new))


async def forget(database: Database) -> None:
    async with database.runs_transaction(durable=False) as connection:
        await connection.execute(_FORGET, {})


async def _fill(connection: Connection, asks: Mapping[Key, Ask]) -> dict[Key, tuple[float, float]]:
    if not asks:
        return {}
    filled = await _fill_existing(connection, asks)
    missing = {key: ask for key, ask in asks.items() if key not in filled}
    if missing:
        capacities = [one.capacity for one in missing.values()]
        await connection.execute(_MAKE, {**_keys(list(missing)), "capacities": capacities})
        filled |= await _fill_existing(connection, missing)
    return filled


async def _fill_existing(
    connection: Connection, asks: Mapping[Key, Ask]
) -> dict[Key, tuple[float, float]]:
    rows = await connection.execute(
        _BUCKETS,
        {
            **_keys(list(asks)),
            "rates": [one.rate for one in asks.values()],
            "capacities": [one.capacity for one in asks.values()],
            "changes": [one.change for one in asks.values()],
            "wants": [one.want for one in asks.values()],
        },
    )
    return {(row.tenant_id, row.name): (row.granted, row.level) for row in rows}


async def _report(
    connection: Connection, replica: str, reports: Mapping[Key, int]
) -> tuple[dict[Key, int], int]:
    present = (EVERYONE, PRESENT)
    reports = {present: 1, **reports}
    keys = _keys(list(reports))
    await connection.execute(
        _REPORT, {**keys, "replica": replica, "amounts": list(reports.values())}
    )
    rows = await connection.execute(_ELSEWHERE, {**keys, "replica": replica, "fresh": FRESH_S})
    elsewhere = {(row.tenant_id, row.name): row.amount for row in rows}
    others = elsewhere.pop(present, 0)
    return elsewhere, others


async def _read_stored(connection: Connection, accounts: Sequence[Key]) -> dict[Key, Measurement]:
    if not accounts:
        return {}
    projects = [project_of(name) for _, name in accounts]
    of_accounts = {**_keys(accounts), "projects": projects, "whole": WHOLE_TENANT}
    rows = await connection.execute(_STORED, of_accounts)
    return {(row.tenant_id, row.name): Measurement(row.bytes, row.age_s) for row in rows}


async def _spend(
    connection: Connection, replica: str, request: SyncRequest
) -> dict[Key, SpentSoFar]:
    if request.spend:
        amounts = [row.amount for row in request.spend]
        parameters = {**_meters(request.spend), "replica": replica, "amounts": amounts}
        await connection.execute(_SPEND, parameters)
    if not request.watched:
        return {}
    rows = await connection.execute(_SPENT, {**_meters(request.watched), "replica": replica})
    return {(row.tenant_id, row.meter): SpentSoFar(row.others, row.mine) for row in rows}


def _sizes(tenant_id: TenantId, limits: Sequence[Limit]) -> dict[str, Any]:
    capacities = [float(one.value) for one in limits]
    return {"tenant": tenant_id, "names": [one.name for one in limits], "capacities": capacities}


def _keys(keys: Sequence[Key]) -> dict[str, Any]:
    return {"tenants": [tenant for tenant, _ in keys], "names": [name for _, name in keys]}


def _meters(rows: Sequence[SpendRow]) -> dict[str, Any]:
    return {
        "tenants": [row.tenant_id for row in rows],
        "meters": [row.meter for row in rows],
        "starts": [row.starts_at for row in rows],
    }


_STATES: Final[Mapping[str, str]] = {
    "background_queued": "status = 'queued'",
    "background_running": "status = 'in_progress' AND durable AND background",
}
_COUNTS: Final = {
    (what, scope): Statement(f"""
SELECT count(*) FROM (
    SELECT FROM responses AS one
    WHERE tenant_id = :tenant AND {state} AND {of_scope} LIMIT :value
) AS found
""")  # noqa: S608 - constants only
    for what, state in _STATES.items()
    for scope, of_scope in IN_SCOPE.items()
}


async def count_background(connection: Connection, tenant_id: UUID, limit: Limit) -> int:
    parameters = {"tenant": tenant_id, "scope_id": limit.scope_id, "value": limit.value}
    count: int = await connection.scalar(_COUNTS[limit.what, limit.scope], parameters)
    return count


async def check_queue(
    connection: Connection, tenant_id: TenantId, terms: Terms, *, in_turn: bool
) -> None:
    """Raise `RateLimited` if one more response may not be queued.

    With `in_turn` the caller's transaction queues it; others of the tenant wait until that ends.
    """
    binding = _queues(terms, "enforce")
    if binding and in_turn:
        await take_turns(connection, tenant_id, TenantLock.BACKGROUND)
    for limit in binding:
        used = await count_background(connection, tenant_id, limit)
        if used >= limit.value:
            raise too_many(ReachedLimit(limit, terms, ""), used=used, wait_s=BUSY_WAIT_S)


async def observed_queues(database: Database, tenant_id: TenantId, terms: Terms) -> list[Limit]:
    observing = _queues(terms, "observe")
    if not observing:
        return []
    async with database.transaction(tenant_id) as connection:
        return [
            limit
            for limit in observing
            if await count_background(connection, tenant_id, limit) >= limit.value
        ]


def _queues(terms: Terms, mode: str) -> list[Limit]:
    queued: What = "background_queued"
    return [one for one in terms.background if (one.what, one.mode) == (queued, mode)]
