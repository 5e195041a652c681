"""The logs that are followed here and written elsewhere: how far they are, and what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from gateway.store import flushes
from gateway.store.claims import Head

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from gateway.store.engine import Database
    from gateway.store.events import LogRow
    from gateway.tenancy import TenantId

Seen = dict[tuple["UUID", str], int]
"""By tenant and owner: the number of the last flush that was read."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was found: heads, where the logs have their places, and what flushes have brought since.

    `parts` are of all responses in these flushes: the bytes of an id, the epoch, the entries.
    """

    heads: dict[UUID, Head]
    parts: list[tuple[bytes, int, LogRow]]


# In one statement, and so of one moment: what is settled in between is never missed, nor is time.
_LOOK: Final = text("""
WITH head AS MATERIALIZED (
    SELECT one.tenant_id, one.id, one.epoch, one.next_entry, one.status, one.owner
    FROM unnest(CAST(:tenants AS uuid[]), CAST(:responses AS uuid[])) AS asked (tenant_id, id)
    JOIN responses AS one ON one.tenant_id = asked.tenant_id AND one.id = asked.id
    WHERE one.tenant_id = ANY(CAST(:tenants AS uuid[]))
      AND one.id = ANY(CAST(:responses AS uuid[]))
), written AS MATERIALIZED (
    SELECT DISTINCT head.tenant_id, head.owner, coalesce(seen.number, 0) AS number
    FROM head
    LEFT JOIN unnest(
        CAST(:seen_tenants AS uuid[]), CAST(:seen_owners AS text[]), CAST(:numbers AS bigint[])
    ) AS seen (tenant_id, owner, number)
      ON seen.tenant_id = head.tenant_id AND seen.owner = head.owner
    WHERE head.status = 'in_progress' AND head.owner IS NOT NULL
)
SELECT tenant_id, owner, id, epoch, next_entry, status, CAST(NULL AS bigint) AS number,
       CAST(NULL AS bytea) AS members, CAST(NULL AS bytea) AS entries
FROM head
UNION ALL
SELECT written.tenant_id, written.owner, NULL, NULL, NULL, NULL,
       row.number, row.members, row.entries
FROM written
CROSS JOIN LATERAL (
    SELECT * FROM flushes
    WHERE flushes.tenant_id = written.tenant_id AND flushes.owner = written.owner
      AND flushes.number > written.number
) AS row
ORDER BY number NULLS FIRST
""")


async def look(database: Database, asked: Collection[tuple[TenantId, UUID]], seen: Seen) -> Look:
    """Look at these logs, at flushes that come after those `seen`, which is brought up to date.

    Unknown and deleted responses have no head. Raises `StoreUnavailable`.
    """
    columns = {
        "tenants": [tenant_id for tenant_id, _ in asked],
        "responses": [uuid for _, uuid in asked],
        "seen_tenants": [tenant_id for tenant_id, _ in seen],
        "seen_owners": [owner for _, owner in seen],
        "numbers": list(seen.values()),
    }
    heads: dict[UUID, Head] = {}
    parts: list[tuple[bytes, int, LogRow]] = []
    async with database.runs_transaction(in_bulk=True) as connection:
        rows = await connection.execute(_LOOK, columns)
    for row in rows:
        if row.number is None:
            heads[row.id] = Head(row.epoch, row.next_entry, row.status)
        else:
            parts += flushes.parts(row.members, row.entries)
            seen[row.tenant_id, row.owner] = row.number
    return Look(heads, parts)
