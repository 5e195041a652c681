"""Rows as the tables have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.store.postgres.statements import Statement, insert_into

if TYPE_CHECKING:
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId


async def add_rows(connection: Connection, table: str, *rows: dict[str, Any]) -> None:
    """At least one; all have the same columns."""
    await connection.execute(Statement(insert_into(table, rows[0])), rows)


async def all_rows(connection: Connection, table: str) -> list[Any]:
    """All that are seen on this connection."""
    return await connection.execute(Statement(f"SELECT * FROM {table}"))


async def count(database: Database, tenant: TenantId, table: str) -> int:
    """How many rows the tenant has."""
    async with database.transaction(tenant) as connection:
        return len(await all_rows(connection, table))
