"""Holds: no data of a tenant is removed while the law requires it to be kept.

A transaction that removes data calls `check`, and a new hold waits until it ends. So when `hold`
has committed, no removal is under way. Removals of all tenants at once leave out held tenants:
retention takes a lock of its own, all others call `locks.removing`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from gateway.errors import DataHeld
from gateway.store import audit_log, locks
from gateway.store.locks import Lock, TenantLock
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.audit import AuditEvent
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

_IS_HELD: Final = Statement("SELECT held_at IS NOT NULL FROM tenants WHERE id = :tenant")
_HOLD: Final = Statement("""
UPDATE tenants SET held_at = CASE WHEN CAST(:is_held AS boolean) THEN coalesce(held_at, now()) END
WHERE id = :tenant
""")


async def check(connection: Connection, tenant_id: TenantId) -> None:
    """Raise `DataHeld` if the tenant is held. Call it in the removing transaction, before the
    removal.
    """
    await locks.removing_of(connection, tenant_id)
    if await connection.scalar(_IS_HELD, {"tenant": tenant_id}):
        raise DataHeld


@asynccontextmanager
async def unheld(database: Database, tenant_id: TenantId) -> AsyncIterator[None]:
    """Keep holds away during the block, for removals outside the database. Raises `DataHeld`."""
    async with database.owner_transaction() as connection:
        await check(connection, tenant_id)
        yield


async def hold(
    database: Database, tenant_id: TenantId, event: AuditEvent, *, is_held: bool
) -> None:
    async with database.owner_transaction() as connection:
        if is_held:
            for lock in (Lock.HOUSEKEEPING, Lock.REMOVALS):
                await locks.take(connection, lock)
            await locks.take_turns(connection, tenant_id, TenantLock.HOLD)
        await connection.execute(_HOLD, {"tenant": tenant_id, "is_held": is_held})
        await audit_log.record(connection, tenant_id, event)
