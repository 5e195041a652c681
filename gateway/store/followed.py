"""The logs that are followed here and written elsewhere: how far they are, and what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from gateway.store import flushes
from gateway.store.claims import Head

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
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
    `writers` are those that write what was asked for, as `Seen` has them.
    """

    heads: dict[UUID, Head]
    parts: list[tuple[bytes, int, LogRow]]
    writers: Collection[tuple[UUID, str | None]] = ()


_HEADS: Final = text("""
SELECT one.tenant_id, one.id, one.epoch, one.next_entry, one.status, one.owner
FROM unnest(CAST(:tenants AS uuid[]), CAST(:responses AS uuid[])) AS asked (tenant_id, id)
JOIN responses AS one ON one.tenant_id = asked.tenant_id AND one.id = asked.id
""")
_NEW: Final = text("""
SELECT row.tenant_id, row.owner, row.number, row.members, row.entries
FROM unnest(CAST(:tenants AS uuid[]), CAST(:owners AS text[]), CAST(:numbers AS bigint[]))
     AS seen (tenant_id, owner, number)
CROSS JOIN LATERAL (
    SELECT * FROM flushes
    WHERE flushes.tenant_id = seen.tenant_id AND flushes.owner = seen.owner
      AND flushes.number > seen.number
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
    }
    async with database.runs_transaction() as connection:
        found = (await connection.execute(_HEADS, columns)).all()
        owners = {(row.tenant_id, row.owner) for row in found if row.status == "in_progress"}
        rows = await connection.execute(_NEW, _after(owners, seen))
    heads = {row.id: Head(row.epoch, row.next_entry, row.status) for row in found}
    parts: list[tuple[bytes, int, LogRow]] = []
    for tenant_id, owner, number, members, entries in rows:
        parts += flushes.parts(members, entries)
        seen[tenant_id, owner] = number
    return Look(heads, parts, owners)


def _after(owners: Iterable[tuple[UUID, str | None]], seen: Seen) -> dict[str, list[object]]:
    known = [(tenant_id, owner) for tenant_id, owner in owners if owner is not None]
    return {
        "tenants": [tenant_id for tenant_id, _ in known],
        "owners": [owner for _, owner in known],
        "numbers": [seen.get(one, 0) for one in known],
    }
