from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.store.postgres.statements import Statement
from gateway.store.tables import TABLES
from gateway.store.tables.columns import Kept, about, columns_of, kept, keys_of_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.encryption.cipher import ContentCipher

CONTENT: Final[Mapping[str, Mapping[str, Kept]]] = {
    name: {column: how for column, of in columns_of(table).items() if (how := kept(of))}
    for name, table in TABLES.items()
}
"""Numbers, times, uuids and truth values are never content."""
BOUND_BY: Final = {name: about(table).bound_by for name, table in TABLES.items()}
"""Columns that a seal is bound to, beside tenant and column. Items and chunks are copied from row
to row unopened, so these are copied with them."""


def place_of(table: str, column: str) -> str:
    return f"{about(TABLES[table]).sealed_as or table}.{column}"


_SEALED: Final = {
    table: tuple(
        (column, place_of(table, column)) for column, kept in columns.items() if kept is Kept.SEALED
    )
    for table, columns in CONTENT.items()
}


def pages_by_key(table: str, columns: Iterable[str]) -> tuple[Statement, Statement]:
    """Return the statements of a page of a tenant's rows by primary key: the first, and a next one.

    A next page begins behind the key in the parameters `after_*`.
    """
    source = f"{table} AS t"
    if table == "file_chunks":
        source += " JOIN files AS f ON f.tenant_id = t.tenant_id AND f.id = t.file_id"
    names = ", ".join(
        "f.digest" if (table, name) == ("file_chunks", "digest") else f"t.{name}"
        for name in dict.fromkeys([*columns, *BOUND_BY[table]])
    )
    keys = keys_of_table(table)
    order = ", ".join(f"t.{name}" for name in keys)
    after = ", ".join(f"CAST(:after_{name} AS {kind})" for name, kind in keys.items())
    first, behind = (
        Statement(
            f"SELECT {names} FROM {source} WHERE t.tenant_id = :tenant {beyond}"  # noqa: S608
            f" ORDER BY {order} LIMIT :rows_max"
        )
        for beyond in ("", f"AND ({order}) > ({after})")
    )
    return first, behind


def sealed(cipher: ContentCipher, table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with those of its sealed columns sealed that it has. The caller seals
    names.
    """
    if not cipher.seals:
        return row
    bound_by = [row[name] for name in BOUND_BY[table]]
    changed = {
        column: cipher.seal(row[column], place, *bound_by)
        for column, place in _SEALED[table]
        if column in row
    }
    return row | changed


def opened(
    cipher: ContentCipher, table: str, row: Mapping[str, Any], names: Iterable[str]
) -> dict[str, Any]:
    bound_by = [row[name] for name in BOUND_BY[table]]
    return {name: cipher.open(row[name], place_of(table, name), *bound_by) for name in names}
