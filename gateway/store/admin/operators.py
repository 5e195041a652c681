"""Keys of those who run the gateway. The owner of the tables makes them; whoever serves can find
one by the hash of its secret alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.governance.audit import COMMAND_LINE
from gateway.store.governance import audit_log
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE, EVERYONE
from gateway.tenancy import Operator

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from gateway.governance.audit import Author
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy.permissions import OperatorRole

_COLUMNS: Final = "id, name, hint, created_at, disabled_at, expires_at, role"
_TAKE_ROLE: Final = Statement("SELECT set_config('role', :role, true)")
_FIND: Final = Statement("""
SELECT key_id, name, role FROM find_operator(:key_hash)
""")
_INSERT: Final = Statement(f"""
INSERT INTO operator_keys
    (tenant_id, id, name, hint, hash, pepper_id, created_at, expires_at, role)
VALUES (:tenant, :id, :name, :hint, :hash, :pepper_id, now(),
        now() + make_interval(secs => CAST(:expires_in_s AS integer)), :role)
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_ALL: Final = Statement(f"SELECT {_COLUMNS} FROM operator_keys ORDER BY created_at, id")  # noqa: S608
_DISABLE: Final = Statement(f"""
UPDATE operator_keys SET disabled_at = coalesce(disabled_at, now()) WHERE id = :id
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """A key of an operator without its secret."""

    id: UUID
    name: str
    hint: str
    created_at: datetime
    disabled_at: datetime | None
    expires_at: datetime | None
    role: OperatorRole


@dataclass(frozen=True, slots=True)
class NewOperatorKey:
    """One that is made; `expires_in_s` None: it works until it is disabled."""

    id: UUID
    name: str
    hint: str
    hash: bytes
    pepper_id: int
    expires_in_s: int | None
    role: OperatorRole = "owner"


async def insert(
    database: Database, new: NewOperatorKey, author: Author = COMMAND_LINE
) -> OperatorKey:
    """As the owner of the tables."""
    row = {
        "tenant": EVERYONE,
        "id": new.id,
        "name": new.name,
        "hint": new.hint,
        "hash": new.hash,
        "pepper_id": new.pepper_id,
        "expires_in_s": new.expires_in_s,
        "role": new.role,
    }
    async with database.owner_transaction() as connection:
        made = _key((await connection.execute(_INSERT, row)).one())
        told = {"name": new.name, "role": new.role}
        event = author.event("harmony.operator.created", str(new.id), data=told)
        await audit_log.record(connection, None, event)
        return made


async def all_keys(database: Database) -> list[OperatorKey]:
    """The oldest first, those that work no more included."""
    async with database.owner_transaction() as connection:
        return [_key(row) for row in await connection.execute(_ALL)]


async def disable(
    database: Database, key_id: UUID, author: Author = COMMAND_LINE
) -> OperatorKey | None:
    """The key works no more. None: unknown."""
    async with database.owner_transaction() as connection:
        row = (await connection.execute(_DISABLE, {"id": key_id})).one_or_none()
        if row is not None:
            event = author.event("harmony.operator.disabled", str(key_id))
            await audit_log.record(connection, None, event)
    return None if row is None else _key(row)


async def find(database: Database, key_hash: bytes) -> Operator | None:
    """Whose key this is; None: unknown, disabled or expired."""
    async with database.owner_transaction() as connection:
        await connection.execute(_TAKE_ROLE, {"role": APP_ROLE})
        row = (await connection.execute(_FIND, {"key_hash": key_hash})).one_or_none()
    return None if row is None else Operator(row.key_id, row.name, _role(row))


def _key(row: Row) -> OperatorKey:
    return OperatorKey(
        row.id,
        row.name,
        row.hint,
        row.created_at,
        row.disabled_at,
        row.expires_at,
        _role(row),
    )


def _role(row: Row) -> OperatorRole:
    """That of keys from before there were roles is an owner's."""
    role: OperatorRole = row.role or "owner"
    return role
