"""Every column that can hold content is classified, and sealed where that is what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway.encryption.cipher import MAGIC, ContentCipher
from gateway.errors import ContentSealed
from gateway.sealing import DataKey
from gateway.store.content import BOUND_BY, CONTENT, opened, place_of, sealed
from gateway.store.tables.columns import Kept, metadata, types
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator

CIPHER = ContentCipher(UUID(int=1), {1: DataKey(bytes(32))}, 1)


def sealed_columns() -> Iterator[tuple[str, str]]:
    for table, columns in CONTENT.items():
        for column, kept in columns.items():
            if kept is Kept.SEALED:
                yield table, column


def test_what_is_sealed_is_bytes_and_bound_to_columns_of_its_row() -> None:
    for table, column in sealed_columns():
        columns = types(metadata.tables[table])
        assert columns[column] == "bytea"
        of_row = {*columns, *(types(metadata.tables["files"]) if table == "file_chunks" else ())}
        assert of_row.issuperset(BOUND_BY[table])


@each(("table", "column"), list(sealed_columns()))
def test_a_sealed_column_opens_in_its_row_alone(table: str, column: str) -> None:
    key: dict[str, Any] = {name: bytes([7]) for name in BOUND_BY[table]}
    row = sealed(CIPHER, table, {**key, column: b"words"})
    assert row[column][:4] == MAGIC
    assert b"words" not in row[column]
    assert opened(CIPHER, table, row, [column]) == {column: b"words"}
    if key:
        other = row | dict.fromkeys(key, b"8")
        with pytest.raises(ContentSealed):
            opened(CIPHER, table, other, [column])
    assert sealed(CIPHER, table, {**key, column: None})[column] is None


def test_an_item_of_a_response_opens_in_a_conversation() -> None:
    row = sealed(CIPHER, "messages", {"item_id": b"msg_1", "item": b"{}"})
    assert opened(CIPHER, "conversation_items", row, ["item"]) == {"item": b"{}"}
    assert place_of("files", "name") == "files.name"
