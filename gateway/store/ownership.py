"""Check the ownership of the tables before work that takes their owner and many transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from gateway.store.postgres.database import Connection, Database

_NO_PRIVILEGE: Final = "42501"
_OWNER: Final = Statement("""
SELECT current_user AS asking, pg_get_userbyid(relowner) AS owner,
    pg_has_role(relowner, 'USAGE') AS may
FROM pg_class WHERE oid = 'responses'::regclass
""")


async def require_owner(database: Database) -> None:
    """Raise `StoreError` unless the database's user may do everything that the tables' owner may.

    The server would refuse in the middle of the work.
    """
    async with database.owner_transaction() as connection:
        await check_owner(connection)


async def check_owner(connection: Connection) -> None:
    """Raise `StoreError` as `require_owner`, within a transaction."""
    row = (await connection.execute(_OWNER)).one()
    if not row.may:
        raise StoreError(
            f"database: this takes {row.owner}, who owns the tables, and nothing was changed: "
            f"{row.asking} may not do all of it",
            state=_NO_PRIVILEGE,
        )
