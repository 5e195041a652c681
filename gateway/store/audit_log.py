"""The audit log: entries are added in the transaction of the change, and only read afterwards.

A trigger keeps even the owner of the table from changing entries, or removing them before
`KEPT_DAYS`. Each tenant has a chain, and the operator has one more.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.audit import BEGINNING, AuditEntry, entry_of
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.statements import Statement, insert_into
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from gateway.audit import AuditEvent
    from gateway.store.postgres.database import Connection, Database, Row, Transaction

KEPT_DAYS: Final = 400
"""The trigger has the same number."""
_LAST: Final = Statement("""
SELECT clock_timestamp() AS at, last.number, last.hash
FROM (SELECT) AS one LEFT JOIN LATERAL (
    SELECT number, hash FROM audit_log WHERE tenant_id = :tenant ORDER BY number DESC LIMIT 1
) AS last ON true
""")
_NAMES: Final = [one.name for one in fields(AuditEntry)]
_COLUMNS: Final = ", ".join(_NAMES)
_ADD: Final = Statement(insert_into("audit_log", _NAMES))
_PAGE: Final = """
SELECT {columns} FROM audit_log
WHERE tenant_id = :tenant
  AND (CAST(:types AS text[]) IS NULL OR type = ANY(CAST(:types AS text[])))
  AND (CAST(:targets AS text[]) IS NULL OR target = ANY(CAST(:targets AS text[])))
  AND (CAST(:projects AS uuid[]) IS NULL OR project_id = ANY(CAST(:projects AS uuid[])))
  AND (CAST(:actors AS text[]) IS NULL
       OR convert_from(actor, 'UTF8')::jsonb ->> 'key_id' = ANY(CAST(:actors AS text[]))
       OR convert_from(actor, 'UTF8')::jsonb ->> 'owner_id' = ANY(CAST(:actors AS text[])))
  AND (CAST(:emails AS text[]) IS NULL
       OR convert_from(actor, 'UTF8')::jsonb ->> 'email' = ANY(CAST(:emails AS text[])))
  AND at >= coalesce(CAST(:from_at AS timestamptz), '-infinity')
  AND at < coalesce(CAST(:until_at AS timestamptz), 'infinity')
  AND (CAST(:number AS bigint) IS NULL OR number {beyond} CAST(:number AS bigint))
ORDER BY number {direction}
LIMIT :row_limit
"""
_PAGES: Final = {
    False: Statement(_PAGE.format(columns=_COLUMNS, beyond="<", direction="DESC")),
    True: Statement(_PAGE.format(columns=_COLUMNS, beyond=">", direction="ASC")),
}
_NUMBER: Final = Statement("""
SELECT number FROM audit_log WHERE tenant_id = :tenant AND id = :id
""")
_PROJECTS: Final = Statement("""
SELECT id, name FROM projects WHERE id = ANY(CAST(:ids AS uuid[]))
""")
_CHAINS: Final = Statement("SELECT DISTINCT tenant_id FROM audit_log ORDER BY tenant_id")
_HEADS: Final = Statement("""
SELECT DISTINCT ON (tenant_id) tenant_id, number, hash FROM audit_log
WHERE at > now() - make_interval(secs => CAST(:since_s AS double precision))
ORDER BY tenant_id, number DESC
LIMIT :row_limit
""")
_SINCE: Final = Statement(f"""
SELECT {_COLUMNS} FROM audit_log
WHERE tenant_id = :tenant AND (CAST(:number AS bigint) IS NULL OR number > CAST(:number AS bigint))
ORDER BY number LIMIT :row_limit
""")  # noqa: S608 - constants only


async def record(connection: Connection, tenant_id: UUID | None, event: AuditEvent) -> AuditEntry:
    """Add an entry to a tenant's chain, or the operator's if None.

    Call this after the recorded change, in a tenant's or the owner's transaction: others of the
    tenant wait from here to the commit.
    """
    chain = tenant_id or EVERYONE
    await take_turns(connection, chain, TenantLock.AUDIT_LOG)
    last = (await connection.execute(_LAST, {"tenant": chain})).one()
    number, previous = (last.number, last.hash) if last.number is not None else (0, BEGINNING)
    entry = entry_of(event, chain, number + 1, ids.new_uuid(), last.at, previous)
    await connection.execute(_ADD, {name: getattr(entry, name) for name in _NAMES})
    return entry


async def page(
    database: Database,
    tenant_id: UUID | None,
    filters: Mapping[str, Any],
    *,
    limit: int,
    after: UUID | None = None,
    before: UUID | None = None,
) -> tuple[list[AuditEntry], bool] | None:
    """Return entries, newest first, and True if there are more on that side.

    `filters` are the parameters of `_PAGE`. None: `after` or `before` is no entry of this chain.
    """
    chain = tenant_id or EVERYONE
    parameters = {"tenant": chain, "number": None, "row_limit": limit + 1, **filters}
    async with _reading(database, tenant_id) as connection:
        place = after or before
        if place is not None:
            number = await connection.scalar(_NUMBER, {"tenant": chain, "id": place})
            if number is None:
                return None
            parameters["number"] = number
        is_newer = before is not None and after is None
        rows = await connection.execute(_PAGES[is_newer], parameters)
    entries = [_entry(row) for row in rows[:limit]]
    return (entries[::-1] if is_newer else entries), len(rows) > limit


def _reading(database: Database, tenant_id: UUID | None) -> Transaction:
    # Read with the role that serves, which need not own the table. The nil tenant has the
    # operator's chain.
    return database.transaction(TenantId(tenant_id or EVERYONE))


async def project_names(
    database: Database, tenant_id: UUID, projects: Collection[UUID]
) -> dict[UUID, str]:
    async with _reading(database, tenant_id) as connection:
        rows = await connection.execute(_PROJECTS, {"ids": list(projects)})
    return {row.id: row.name for row in rows}


async def chains(database: Database) -> list[UUID]:
    async with database.owner_transaction() as connection:
        return list(await connection.scalars(_CHAINS))


async def heads(
    database: Database, *, since_s: float, rows_max: int
) -> list[tuple[UUID, int, bytes]]:
    parameters = {"since_s": since_s, "row_limit": rows_max}
    async with database.runs_transaction() as connection:
        return [tuple(row) for row in await connection.execute(_HEADS, parameters)]


async def since(
    database: Database, chain: UUID, number: int | None, *, rows_max: int
) -> list[AuditEntry]:
    parameters = {"tenant": chain, "number": number, "row_limit": rows_max}
    async with database.owner_transaction() as connection:
        return [_entry(row) for row in await connection.execute(_SINCE, parameters)]


def _entry(row: Row) -> AuditEntry:
    return AuditEntry(*row)
