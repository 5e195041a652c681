"""Content that goes for good before its time: that of a person, and that of a tenant.

Usage and the audit log stay: they have no content, and somebody may have to be shown them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import orjson

from gateway.errors import ContentSealed
from gateway.store.content import opened
from gateway.store.governance import audit_log
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.tenancy import Tenant, TenantId

if TYPE_CHECKING:
    from gateway.governance.audit import AuditEvent
    from gateway.store.postgres.database import Database

PERSON_FIELDS: Final = ("safety_identifier", "user")
"""Where a request says for whom it is, as its response repeats it."""
BEFORE_ALL: Final = UUID(int=0)
TABLES: Final = (
    *("flushes", "writers", "events", "responses", "conversations", "traces", "tool_pages"),
    *("tool_approvals", "tool_calls", "files", "containers", "mcp_servers", "idempotency_keys"),
)
"""Of which a tenant that is removed loses all rows; others go with these by their foreign keys. In
this order: a log is nobody's once its response is gone."""
_PAGE: Final = Statement("""
SELECT id, request, conversation_id FROM responses
WHERE tenant_id = :tenant AND id > :after
ORDER BY id
LIMIT :rows_max
""")
_DELETE_SOME: Final = {
    table: Statement(f"""
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table} WHERE tenant_id = :tenant LIMIT :rows_max
    )) AND tenant_id = :tenant
    """)  # noqa: S608 - constants only
    for table in TABLES
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
_HOLD: Final = Statement(f"""
UPDATE tenants SET held_at = CASE WHEN CAST(:is_held AS boolean) THEN coalesce(held_at, now()) END
WHERE name = :name RETURNING {_TENANT}
""")  # noqa: S608 - constants only
_DUE: Final = Statement(f"""
SELECT {_TENANT} FROM tenants
WHERE deleted_at <= now() - make_interval(secs => :window_s) AND held_at IS NULL
ORDER BY deleted_at
""")  # noqa: S608 - constants only
_IS_DUE: Final = Statement("""
SELECT count(*) > 0 FROM tenants
WHERE id = :tenant AND deleted_at <= now() - make_interval(secs => :window_s) AND held_at IS NULL
""")
_IS_HELD: Final = Statement("SELECT held_at IS NOT NULL FROM tenants WHERE id = :tenant")
_REMOVE_KEYS: Final = Statement("DELETE FROM api_keys WHERE tenant_id = :tenant")
_DISABLE: Final = Statement("""
UPDATE tenants SET disabled_at = coalesce(disabled_at, now()) WHERE id = :tenant
""")


class FoundResponse(NamedTuple):
    """A response of a person, and the conversation that it continued."""

    uuid: UUID
    conversation: UUID | None


class FoundPage(NamedTuple):
    """Of a page of responses those of the person, and the last one of all; None: no more.

    `seen` were looked at, of which `sealed` could not be opened: whose they are nobody can tell.
    """

    found: list[FoundResponse]
    last: UUID | None
    seen: int
    sealed: int


async def of_person(
    database: Database, tenant_id: TenantId, person: str, *, after: UUID, rows_max: int
) -> FoundPage:
    """A page of the responses of a tenant, behind the one with the id `after`, whose requests name
    this person. Raises `ContentSealed` where the tenant has no key any more.
    """
    parameters = {"tenant": tenant_id, "after": after, "rows_max": rows_max}
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_PAGE, parameters)
        cipher = connection.cipher(tenant_id)
    found, sealed = [], 0
    for row in rows:
        try:
            content = opened(cipher, "responses", row, ["request"])["request"]
        except ContentSealed:
            sealed += 1
            continue
        request: dict[str, Any] = orjson.loads(content)
        if any(request.get(name) == person for name in PERSON_FIELDS):
            found.append(FoundResponse(row.id, row.conversation_id))
    last = rows[-1].id if len(rows) == rows_max else None
    return FoundPage(found, last, len(rows), sealed)


async def mark_deleted(database: Database, name: str, event: AuditEvent) -> Tenant | None:
    """None of its keys works from now on; its data goes later. None: there is no such tenant."""
    return await _changed(database, _MARK, {"name": name}, event)


async def restore(
    database: Database, name: str, event: AuditEvent, *, window_s: float
) -> Tenant | None:
    """Take that back. None: there is no such tenant, or it was not deleted, or too long ago."""
    return await _changed(database, _RESTORE, {"name": name, "window_s": window_s}, event)


async def hold(database: Database, name: str, event: AuditEvent, *, is_held: bool) -> Tenant | None:
    """Keep a tenant that is deleted from being removed, or let it be. None: no such tenant."""
    return await _changed(database, _HOLD, {"name": name, "is_held": is_held}, event)


async def due(database: Database, *, window_s: float) -> list[Tenant]:
    """Tenants that were deleted so long ago, and that nobody holds."""
    async with database.owner_transaction() as connection:
        rows = await connection.execute(_DUE, {"window_s": window_s})
    return [Tenant(TenantId(row.id), row.name, row.created_at, row.disabled_at) for row in rows]


async def is_due(database: Database, tenant_id: TenantId, *, window_s: float) -> bool:
    """Is it one of `due` still? It may have been restored since, or held."""
    async with database.owner_transaction() as connection:
        asked = {"tenant": tenant_id, "window_s": window_s}
        return bool(await connection.scalar(_IS_DUE, asked))


async def is_held(database: Database, tenant_id: TenantId) -> bool:
    """Is what it has to be kept?"""
    async with database.owner_transaction() as connection:
        return bool(await connection.scalar(_IS_HELD, {"tenant": tenant_id}))


async def delete_some(database: Database, tenant_id: TenantId, table: str, *, rows_max: int) -> int:
    """Delete up to so many rows of a tenant from one of `TABLES`; how many there were."""
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant_id)
        bounds = {"tenant": tenant_id, "rows_max": rows_max}
        return await connection.count(_DELETE_SOME[table], bounds)


async def finish_removal(database: Database, tenant_id: TenantId) -> None:
    """Its keys go, too. Its row stays, and so do its usage and its part of the audit log."""
    async with database.owner_transaction() as connection:
        await connection.execute(_REMOVE_KEYS, {"tenant": tenant_id})
        await connection.execute(_DISABLE, {"tenant": tenant_id})


async def _changed(
    database: Database, statement: Statement, parameters: dict[str, Any], event: AuditEvent
) -> Tenant | None:
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement, parameters)).one_or_none()
        if row is None:
            return None
        await audit_log.record(connection, row.id, event)
    return Tenant(TenantId(row.id), row.name, row.created_at, row.disabled_at)
