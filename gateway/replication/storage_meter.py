"""Measured sizes of what tenants with a limit of stored bytes have stored.

A process measures one tenant at a time, page by page, so that no statement takes long. Content
counts as stored (compressed, sealed), without indexes and row overhead. `stored_bytes` gets a row
per project and one for the tenant, under the nil project, which also says when the next measurement
is due.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from gateway.limits.stored_bytes import WHOLE_TENANT
from gateway.store.periodic import run_periodically
from gateway.store.postgres.statements import Statement
from gateway.telemetry.logs import EventLog
from gateway.tenancy import TenantId, default_project

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.store.postgres.database import Database

FIRST: Final = UUID(int=0)
INTERVAL_S: Final = 300.0
PAUSE_FACTOR: Final = 20
"""Measuring takes at most this part of the time (1 in 20), so large tenants are measured less
often.
"""
ROWS_MAX: Final = 1_000
TURN_S: Final = 600.0
"""A tenant is reserved for so long."""


def _size(columns: str) -> str:
    return " + ".join(f"coalesce(pg_column_size({name}), 0)" for name in columns.split())


_ITEM: Final = _size("item ids name includable")
# Take the tenant that was measured the longest ago; concurrent callers get others.
_TURN: Final = Statement("""
INSERT INTO stored_bytes AS known (tenant_id, project_id, due_at)
SELECT wanted.tenant_id, CAST(:whole AS uuid), clock_timestamp() + make_interval(secs => :turn_s)
FROM (SELECT DISTINCT tenant_id FROM limits WHERE what = 'stored_bytes') AS wanted
LEFT JOIN stored_bytes AS last
    ON last.tenant_id = wanted.tenant_id AND last.project_id = CAST(:whole AS uuid)
WHERE last.tenant_id IS NULL OR last.due_at < clock_timestamp()
ORDER BY last.due_at NULLS FIRST, wanted.tenant_id
LIMIT 1
ON CONFLICT (tenant_id, project_id)
DO UPDATE SET due_at = excluded.due_at WHERE known.due_at < clock_timestamp()
RETURNING tenant_id, clock_timestamp() AS begun_at
""")
_RESPONSES: Final = Statement(f"""
WITH page AS MATERIALIZED (
    SELECT id, project_id, created_at,
           {_size("request body recoveries plan prompt tool_state placement")} AS size
    FROM responses WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :rows_max
)
SELECT page.project_id, count(*) AS rows, max(CAST(page.id AS text)) AS last,
       CAST(sum(page.size + coalesce(items.size, 0) + coalesce(log.size, 0)) AS bigint) AS size
FROM page
CROSS JOIN LATERAL (
    SELECT sum({_ITEM}) AS size FROM messages
    WHERE tenant_id = :tenant AND response_id = page.id
) AS items
CROSS JOIN LATERAL (
    SELECT sum(pg_column_size(entries)) AS size FROM events
    WHERE tenant_id = :tenant AND response_id = page.id
      AND day = CAST(page.created_at AT TIME ZONE 'UTC' AS date)
) AS log
GROUP BY page.project_id
""")  # noqa: S608 - constants only
_CONVERSATIONS: Final = Statement(f"""
WITH page AS MATERIALIZED (
    SELECT id, project_id, pg_column_size(metadata) AS size
    FROM conversations WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :rows_max
)
SELECT page.project_id, count(*) AS rows, max(CAST(page.id AS text)) AS last,
       CAST(sum(page.size + coalesce(items.size, 0)) AS bigint) AS size
FROM page
CROSS JOIN LATERAL (
    SELECT sum({_ITEM}) AS size FROM conversation_items
    WHERE tenant_id = :tenant AND conversation_id = page.id
) AS items
GROUP BY page.project_id
""")  # noqa: S608 - constants only
# A container's file belongs to the container's project.
_FILES: Final = Statement("""
WITH page AS MATERIALIZED (
    SELECT id, container_id, project_id, size_bytes AS size
    FROM files WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :rows_max
)
SELECT CASE WHEN page.container_id IS NULL THEN page.project_id ELSE held.project_id END
           AS project_id,
       count(*) AS rows, max(CAST(page.id AS text)) AS last, CAST(sum(page.size) AS bigint) AS size
FROM page LEFT JOIN containers AS held
    ON held.tenant_id = :tenant AND held.id = page.container_id
GROUP BY 1
""")
_BY_ID: Final = (_RESPONSES, _CONVERSATIONS, _FILES)


def _by_key(table: str, key: str, columns: str) -> Statement:
    # For tables without a project: browser pages, traces, and logs that are not moved yet.
    return Statement(f"""
WITH page AS MATERIALIZED (
    SELECT {key} AS place, {_size(columns)} AS size FROM {table}
    WHERE tenant_id = :tenant AND {key} > :after ORDER BY {key} LIMIT :rows_max
)
SELECT count(*) AS rows, (SELECT place FROM page ORDER BY place DESC LIMIT 1) AS last,
       CAST(coalesce(sum(size), 0) AS bigint) AS size
FROM page
""")  # noqa: S608 - constants only


_PAGES: Final = _by_key("tool_pages", "key", "url title text links")
_TRACES: Final = _by_key("traces", "key", "trace_id record_id record")
_FLUSHES: Final = Statement("""
SELECT CAST(coalesce(sum(pg_column_size(members) + pg_column_size(entries)), 0) AS bigint) AS size
FROM flushes WHERE tenant_id = :tenant
""")
_WRITE: Final = Statement("""
INSERT INTO stored_bytes (tenant_id, project_id, bytes, at, due_at)
SELECT CAST(:tenant AS uuid), one.project_id, one.bytes, CAST(:begun_at AS timestamptz),
       clock_timestamp() + greatest(
           make_interval(secs => :interval_s),
           :pause_factor * (clock_timestamp() - CAST(:begun_at AS timestamptz))
       )
FROM unnest(CAST(:projects AS uuid[]), CAST(:sizes AS bigint[])) AS one (project_id, bytes)
ORDER BY one.project_id
ON CONFLICT (tenant_id, project_id)
DO UPDATE SET bytes = excluded.bytes, at = excluded.at, due_at = excluded.due_at
""")
# Projects without content, and tenants without limits.
_FORGET: Final = Statement("""
DELETE FROM stored_bytes AS one
WHERE tenant_id = :tenant AND at < :begun_at
   OR NOT EXISTS (
       SELECT FROM limits WHERE limits.tenant_id = one.tenant_id AND what = 'stored_bytes'
   )
""")
_STATE: Final = Statement("""
SELECT CAST(coalesce(sum(bytes) FILTER (WHERE project_id = CAST(:whole AS uuid)), 0) AS bigint)
           AS size,
       coalesce(max(
           CAST(one.bytes AS double precision) / CASE l.value WHEN 0 THEN 1 ELSE l.value END
       ), 0) AS fullest
FROM stored_bytes AS one
LEFT JOIN limits AS l
    ON l.tenant_id = one.tenant_id AND l.what = 'stored_bytes' AND one.project_id = CASE l.scope
       WHEN 'project' THEN l.scope_id ELSE CAST(:whole AS uuid) END
""")


class MeasuredTenant(NamedTuple):
    """Tenant to measure; `begun_at` is by the database's clock."""

    tenant_id: TenantId
    begun_at: datetime


class StoredState(NamedTuple):
    """Total, and the highest use of a limit as a share of it."""

    size_bytes: int
    fullest: float


async def take_turn(database: Database) -> MeasuredTenant | None:
    """Reserve a tenant that is due."""
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_TURN, {"whole": WHOLE_TENANT, "turn_s": TURN_S})
        row = rows.one_or_none()
    return None if row is None else MeasuredTenant(TenantId(row.tenant_id), row.begun_at)


async def measure(
    database: Database, tenant_id: TenantId, *, rows_max: int = ROWS_MAX
) -> dict[UUID, int]:
    """Return bytes by project; `WHOLE_TENANT` is the total."""
    sizes: dict[UUID, int] = defaultdict(int)
    for statement in _BY_ID:
        after: UUID | None = FIRST
        while after is not None:
            after = await _page(database, tenant_id, statement, after, rows_max, sizes)
    whole = sum(sizes.values())
    for statement in (_PAGES, _TRACES):
        place: bytes | None = b""
        while place is not None:
            parameters = {"tenant": tenant_id, "after": place, "rows_max": rows_max}
            async with database.transaction(tenant_id) as connection:
                row = (await connection.execute(statement, parameters)).one()
            whole += row.size
            place = row.last if row.rows == rows_max else None
    async with database.transaction(tenant_id) as connection:
        whole += await connection.scalar(_FLUSHES, {"tenant": tenant_id})
    return {**sizes, WHOLE_TENANT: whole}


async def _page(
    database: Database,
    tenant_id: TenantId,
    statement: Statement,
    after: UUID,
    rows_max: int,
    sizes: dict[UUID, int],
) -> UUID | None:
    # Add one page to `sizes`. Returns where the next page begins, None after the last.
    parameters = {"tenant": tenant_id, "after": after, "rows_max": rows_max}
    async with database.transaction(tenant_id) as connection:
        rows = list(await connection.execute(statement, parameters))
    for row in rows:
        sizes[row.project_id or default_project(tenant_id)] += row.size
    is_full = sum(row.rows for row in rows) == rows_max
    return max(UUID(row.last) for row in rows) if is_full else None


async def write(
    database: Database, turn: MeasuredTenant, sizes: dict[UUID, int], *, interval_s: float
) -> StoredState:
    parameters = {
        "tenant": turn.tenant_id,
        "begun_at": turn.begun_at,
        "projects": list(sizes),
        "sizes": list(sizes.values()),
        "interval_s": interval_s,
        "pause_factor": PAUSE_FACTOR,
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_WRITE, parameters)
        await connection.execute(_FORGET, {"tenant": turn.tenant_id, "begun_at": turn.begun_at})
        return StoredState(*(await connection.execute(_STATE, {"whole": WHOLE_TENANT})).one())


LOOK_S = 10.0
"""Interval of checks for due tenants, such as those with a new limit."""

_log = EventLog(__name__)


class StorageObserver(Protocol):
    def storage_measured(self, *, size_bytes: int, fullest: float, seconds: float) -> None: ...


class StorageMeter:
    """Rounds of one process. `tenants` reads content; `counters` reserves and writes."""

    def __init__(
        self,
        tenants: Database,
        counters: Database,
        observer: StorageObserver,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._tenants = tenants
        self._counters = counters
        self._observer = observer
        self._interval_s = interval_s

    async def run(self) -> None:
        pause_s = min(LOOK_S, self._interval_s)
        failure = "what is stored was not measured"
        await run_periodically(self._measure_all, pause_s, _log.warning, failure)

    async def _measure_all(self) -> None:
        while await self.once():
            pass

    async def once(self) -> bool:
        turn = await take_turn(self._counters)
        if turn is None:
            return False
        begun = time.perf_counter()
        sizes = await measure(self._tenants, turn.tenant_id)
        state = await write(self._counters, turn, sizes, interval_s=self._interval_s)
        self._observer.storage_measured(
            size_bytes=state.size_bytes, fullest=state.fullest, seconds=time.perf_counter() - begun
        )
        return True
