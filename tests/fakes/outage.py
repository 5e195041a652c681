"""A database that breaks off every connection."""

from __future__ import annotations

from gateway.store.postgres.statements import Statement
from tests.conftest import opened


async def cut_connections(database_url: str) -> None:
    """All but the one that does it; new ones may come at once."""
    async with opened(database_url) as other, other.owner_transaction() as connection:
        await connection.execute(
            Statement(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
