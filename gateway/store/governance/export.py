"""All that a tenant has, row by row, with its content opened."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from gateway.store.content import BOUND_BY, CONTENT, Kept, place_of
from gateway.store.governance.resealing import KEYS
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.schema import columns_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

TABLES: Final = {
    **KEYS,
    "usage": {"response_id": "uuid"},
    "projects": {"id": "uuid"},
    "audit_log": {"number": "bigint"},
}
"""What is exported, with the keys by which it is read. `events`, the logs, hold what is in the
items of responses, too, but for what was said and taken back."""
_LEFT_OUT: Final = {
    "responses": {"plan", "prompt", "placement", "owner", "lease_until", "epoch"},
    "containers": {"owner", "handle"},
}
"""What says how the gateway works, and nothing of the tenant."""


def _columns(table: str) -> list[str]:
    left_out = _LEFT_OUT.get(table, set())
    return [name for name in columns_of(table) if name != "tenant_id" and name not in left_out]


def _page(table: str, *, is_first: bool) -> Statement:
    keys = TABLES[table]
    names, source = ", ".join(f"t.{name}" for name in _columns(table)), f"{table} t"
    if table == "file_chunks":
        names += ", f.digest"
        source = "file_chunks t JOIN files f ON f.tenant_id = t.tenant_id AND f.id = t.file_id"
    order = ", ".join(f"t.{name}" for name in keys)
    given = ", ".join(f"CAST(:after_{name} AS {kind})" for name, kind in keys.items())
    beyond = "" if is_first else f"AND ({order}) > ({given})"
    return Statement(
        f"SELECT {names} FROM {source} WHERE t.tenant_id = :tenant {beyond}"  # noqa: S608
        f" ORDER BY {order} LIMIT :rows_max"
    )


_FIRST: Final = {table: _page(table, is_first=True) for table in TABLES}
_NEXT: Final = {table: _page(table, is_first=False) for table in TABLES}


async def rows(
    database: Database, tenant_id: TenantId, table: str, *, rows_max: int
) -> AsyncIterator[dict[str, Any]]:
    """The rows of one of `TABLES`, `rows_max` in memory at once, as values that JSON has: bytes are
    text where they are UTF-8, else `{"hex": …}`. Raises `ContentSealed`.
    """
    after: dict[str, Any] = {}
    while True:
        await database.keyring.ready([tenant_id])
        async with database.owner_transaction() as connection:
            await turn_to(connection, tenant_id)
            statement = (_NEXT if after else _FIRST)[table]
            bounds = {"tenant": tenant_id, "rows_max": rows_max}
            page = await connection.execute(statement, bounds | after)
            cipher = connection.cipher(tenant_id)
        for row in page:
            yield _shown(cipher, table, row)
        if len(page) < rows_max:
            return
        after = {f"after_{name}": page[-1][name] for name in TABLES[table]}


def _shown(cipher: ContentCipher, table: str, row: Row) -> dict[str, Any]:
    kept = CONTENT[table]
    bound_by = [row[name] for name in BOUND_BY.get(table, ())]
    told: dict[str, Any] = {}
    for name in _columns(table):
        value = row[name]
        if kept.get(name) in {Kept.SEALED, Kept.NAME}:
            value = cipher.open(value, place_of(table, name), *bound_by)
        elif kept.get(name) is Kept.LOG:
            value = cipher.open_entries(value, _response(row).bytes)
        told[name] = _json(value)
    return told


def _response(row: Row) -> UUID:
    found: UUID = row["response_id"]
    return found


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value if value is None or isinstance(value, (bool, int, str, list)) else str(value)
