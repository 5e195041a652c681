"""The logs that are followed here and written elsewhere: how far they are, and what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from gateway.store import claims, flushes

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from gateway.store.claims import Head
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


_NEW: Final = text("""
WITH source AS (
    SELECT DISTINCT one.tenant_id, one.owner
    FROM unnest(CAST(:tenants AS uuid[]), CAST(:responses AS uuid[])) AS asked (tenant_id, id)
    JOIN responses AS one ON one.tenant_id = asked.tenant_id AND one.id = asked.id
    WHERE one.status = 'in_progress' AND one.owner IS NOT NULL
)
SELECT row.tenant_id, row.owner, row.number, row.members, row.entries
FROM source
LEFT JOIN unnest(CAST(:seen_tenants AS uuid[]), CAST(:seen_owners AS text[]),
                 CAST(:seen_numbers AS bigint[])) AS seen (tenant_id, owner, number)
    ON seen.tenant_id = source.tenant_id AND seen.owner = source.owner
CROSS JOIN LATERAL (
    SELECT * FROM flushes
    WHERE flushes.tenant_id = source.tenant_id AND flushes.owner = source.owner
      AND flushes.number > coalesce(seen.number, 0)
    ORDER BY flushes.number
) AS row
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
        "seen_numbers": list(seen.values()),
    }
    async with database.runs_transaction() as connection:
        heads = await claims.heads_of(connection, asked)
        rows = await connection.execute(_NEW, columns)
    parts: list[tuple[bytes, int, LogRow]] = []
    for tenant_id, owner, number, members, entries in rows:
        parts += flushes.parts(members, entries)
        seen[tenant_id, owner] = number
    return Look(heads, parts)
