"""Secrets that a request sends to MCP servers, sealed, for as long as its response runs.

A process that takes the response over needs them, too. They are written with the response and
erased with its end; nothing else of a response holds any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

_ADD: Final = Statement("""
INSERT INTO run_secrets (tenant_id, response_id, sealed) VALUES (:tenant, :id, :sealed)
""")
_FIND: Final = Statement("""
SELECT sealed FROM run_secrets WHERE tenant_id = :tenant AND response_id = :id
""")
_ERASE: Final = Statement("""
DELETE FROM run_secrets WHERE tenant_id = :tenant AND response_id = :id
""")


async def add(connection: Connection, tenant_id: TenantId, response: UUID, sealed: bytes) -> None:
    # In the transaction that accepts the response.
    await connection.execute(_ADD, {"tenant": tenant_id, "id": response, "sealed": sealed})


async def load(database: Database, tenant_id: TenantId, response: UUID) -> bytes | None:
    """Return the sealed secrets of a response. None: it has none, or it is over."""
    async with database.transaction(tenant_id) as connection:
        sealed: bytes | None = await connection.scalar(_FIND, {"tenant": tenant_id, "id": response})
        return sealed


async def erase(connection: Connection, tenant_id: TenantId, response: UUID) -> None:
    # In the transaction that ends the response.
    await connection.execute(_ERASE, {"tenant": tenant_id, "id": response})
