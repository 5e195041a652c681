"""What statements say of columns is what the tables have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy.dialects import postgresql

from gateway.store import endings, messages, responses, usage
from gateway.store.schema import COST_COLUMNS
from gateway.store.tables import metadata
from gateway.store.tables.responses import ITEM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.store.postgres.statements import Rows

SPELLED = {"timestamptz": "timestamp with time zone"}


def kinds_of(table: str) -> dict[str, str]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return {
        column.name: column.type.compile(dialect).lower() for column in metadata.tables[table].c
    }


def assert_alike(found: Mapping[str, str], *tables: str) -> None:
    kinds = {name: kind for table in tables for name, kind in kinds_of(table).items()}
    for name, kind in found.items():
        assert SPELLED.get(kind, kind) == kinds[name], name


@pytest.mark.parametrize("table", ["messages", "conversation_items"])
def test_items_have_all_their_columns(table: str) -> None:
    of_place = {"tenant_id", "response_id", "conversation_id", "position", "is_output"}
    assert set(ITEM) == set(kinds_of(table)) - of_place
    assert_alike(ITEM, table)


@pytest.mark.parametrize(
    ("rows", "tables", "own"),
    [
        (responses._NEW, ["events", "responses"], {"lease"}),
        (messages.ADDED, ["messages"], set()),
        (endings._ENDS, ["usage", "events", "responses"], set()),
        (usage._LINES, ["usage"], set()),
    ],
    ids=["accepted", "items", "ended", "usage"],
)
def test_what_is_sent_in_rows_has_the_types_of_its_columns(
    rows: Rows, tables: list[str], own: set[str]
) -> None:
    kinds = dict(zip(rows.columns, rows.kinds, strict=True))
    assert_alike({name: kind for name, kind in kinds.items() if name not in own}, *tables)


def test_all_of_a_response_is_written_when_it_is_accepted_or_when_it_ends() -> None:
    later = {"tenant_id", "completed_at", "body", "recoveries", "lease_until", "tool_state"}
    later |= {"placement"}
    accepted = set(responses._NEW.columns) - {"lease", "entries"}
    assert accepted == set(kinds_of("responses")) - later
    assert set(usage._LINES.columns) == set(kinds_of("usage")) - {
        *("tenant_id", "seq", "reason", "author", "tx", "price_id", *COST_COLUMNS)
    }
