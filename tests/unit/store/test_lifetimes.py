"""What becomes of the rows of each table is said of every table, and is what statements do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.retention.tenant_data import SCRUBBED, TABLES
from gateway.store.content import CONTENT
from gateway.store.tables.columns import Kept, about, metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

LIFETIMES = {table.name: about(table).lifetime for table in metadata.tables.values()}
DOCS = Path(__file__).parents[3] / "docs" / "data.md"


def gone_with(table: str) -> Iterator[str]:
    """The table, and those whose rows go with its rows."""
    yield table
    for other in metadata.tables.values():
        for key in other.foreign_key_constraints:
            if key.ondelete == "CASCADE" and key.referred_table.name == table:
                yield from gone_with(other.name)


def test_what_a_tenant_had_goes_with_it_unless_it_is_said_why_not() -> None:
    removed = {one for table in TABLES for one in gone_with(table)}
    assert removed == {table for table, one in LIFETIMES.items() if not one.stays}


def test_no_content_of_a_tenant_stays() -> None:
    content = {Kept.SEALED, Kept.NAME, Kept.LOG, Kept.DECLARED}
    for table, columns in CONTENT.items():
        told = {name for name, kept in columns.items() if kept in content}
        if told and LIFETIMES[table].stays:
            assert told <= set(SCRUBBED[table]), table


def test_operators_are_told_the_same() -> None:
    cells = r" \| ([^|]*)" * 4
    rows = re.findall(rf"^\| (`[^|]+){cells} \|$", DOCS.read_text(), re.MULTILINE)
    told = {
        name: (deleted, erased, expires, purged)
        for names, deleted, erased, expires, purged in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    for table, one in LIFETIMES.items():
        purged = f"stays: {one.stays}" if one.stays else "goes"
        expected = (one.deleted or "-", one.erased or "-", one.expires or "-", purged)
        assert told[table] == expected, table
