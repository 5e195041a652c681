"""Tenants that are deleted: when what they have goes, and how.

Usage and the audit log stay, without a word of the tenant's: somebody may have to be shown them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.store.governance import audit_log, holds
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.tables import TABLES as ALL_TABLES
from gateway.store.tables import about, columns_of, metadata
from gateway.tenancy import Tenant, TenantId

if TYPE_CHECKING:
    from sqlalchemy import Table

    from gateway.governance.audit import AuditEvent
    from gateway.store.postgres.database import Database


def _goes_with_another(table: Table) -> bool:
    return any(
        key.ondelete == "CASCADE" and not any(column.nullable for column in key.columns)
        for key in table.foreign_key_constraints
    )


_CHILDREN_FIRST: Final = metadata.sorted_tables[::-1]
TABLES: Final = tuple(
    str(table.name)
    for table in sorted(_CHILDREN_FIRST, key=lambda one: not about(one).is_log)
    if not about(table).lifetime.stays and not _goes_with_another(table)
)
"""Of which a tenant that is removed loses all rows; others go with these by their foreign keys. In
this order: a log is nobody's once its response is gone, and a project outlives its accounts."""
SCRUBBED: Final = {
    name: scrubbed
    for name, table in ALL_TABLES.items()
    if (scrubbed := [one for one, of in columns_of(table).items() if of.info["scrubbed"]])
}
"""Of which it keeps the rows, with nothing in these columns."""
_DELETE_SOME: Final = {
    table: Statement(f"""
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table} WHERE tenant_id = :tenant LIMIT :rows_max
    )) AND tenant_id = :tenant
    """)  # noqa: S608 - constants only
    for table in TABLES
} | {
    table: Statement(f"""
    UPDATE {table} SET {", ".join(f"{name} = NULL" for name in names)}
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table}
        WHERE tenant_id = :tenant AND ({" OR ".join(f"{name} IS NOT NULL" for name in names)})
        LIMIT :rows_max
    )) AND tenant_id = :tenant
    """)  # noqa: S608 - constants only
    for table, names in SCRUBBED.items()
}
_TENANT: Final = "id, name, created_at, disabled_at"
_MARK: Final = Statement(f"""
UPDATE tenants SET deleted_at = coalesce(deleted_at, now()) WHERE name = :name RETURNING {_TENANT}
""")  # noqa: S608 - constants only
_RESTORE: Final = Statement(f"""
UPDATE tenants SET deleted_at = NULL
WHERE name = :name AND deleted_at > now() - make_interval(secs => :window_s)
RETURNING {_TENANT}
""")  # noqa: S608 - constants only
_DUE: Final = Statement(f"""
SELECT {_TENANT} FROM tenants
WHERE deleted_at <= now() - make_interval(secs => :window_s) AND held_at IS NULL
  AND (purged_at IS NULL OR purged_at > now() - interval '1 day')
ORDER BY deleted_at
""")  # noqa: S608 - constants only
_IS_DUE: Final = Statement("""
SELECT count(*) > 0 FROM tenants
WHERE id = :tenant AND deleted_at <= now() - make_interval(secs => :window_s) AND held_at IS NULL
""")
_PURGED: Final = Statement("""
UPDATE tenants SET purged_at = now(), disabled_at = coalesce(disabled_at, now())
WHERE id = :tenant AND (purged_at IS NULL OR CAST(:is_more AS boolean))
RETURNING true
""")


async def mark_deleted(database: Database, name: str, event: AuditEvent) -> Tenant | None:
    """Mark a tenant deleted: its keys stop working, its data is erased later.

    Return None if it is unknown.
    """
    return await _change(database, _MARK, {"name": name}, event)


async def restore(
    database: Database, name: str, event: AuditEvent, *, window_s: float
) -> Tenant | None:
    """Undo `mark_deleted`.

    Return None if the tenant is unknown, not deleted, or past `window_s`.
    """
    return await _change(database, _RESTORE, {"name": name, "window_s": window_s}, event)


async def due(database: Database, *, window_s: float) -> list[Tenant]:
    """Return unheld tenants that were deleted more than `window_s` ago.

    Tenants already removed are returned for one more day, in case data arrived late.
    """
    async with database.owner_transaction() as connection:
        rows = await connection.execute(_DUE, {"window_s": window_s})
    return [Tenant(TenantId(row.id), row.name, row.created_at, row.disabled_at) for row in rows]


async def is_due(database: Database, tenant_id: TenantId, *, window_s: float) -> bool:
    """Return True if the tenant is still one of `due`. It may have been restored or held since."""
    async with database.owner_transaction() as connection:
        asked = {"tenant": tenant_id, "window_s": window_s}
        return bool(await connection.scalar(_IS_DUE, asked))


async def delete_some(database: Database, tenant_id: TenantId, table: str, *, rows_max: int) -> int:
    """Delete or scrub up to `rows_max` rows of a tenant in one table; return their number.

    `table` is one of `TABLES` or `SCRUBBED`. Raises `DataHeld`.
    """
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant_id)
        await holds.check(connection, tenant_id)
        bounds = {"tenant": tenant_id, "rows_max": rows_max}
        return await connection.count(_DELETE_SOME[table], bounds)


async def finish_removal(
    database: Database, tenant_id: TenantId, event: AuditEvent, *, is_more: bool
) -> bool:
    """Record that all data of a tenant is gone. Its row, usage and audit entries stay.

    Return False if that was recorded before and nothing more was found (`is_more`).
    """
    async with database.owner_transaction() as connection:
        wanted = {"tenant": tenant_id, "is_more": is_more}
        if not await connection.scalar(_PURGED, wanted):
            return False
        await audit_log.record(connection, tenant_id, event)
    return True


async def _change(
    database: Database, statement: Statement, parameters: dict[str, Any], event: AuditEvent
) -> Tenant | None:
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement, parameters)).one_or_none()
        if row is None:
            return None
        await audit_log.record(connection, row.id, event)
    return Tenant(TenantId(row.id), row.name, row.created_at, row.disabled_at)
