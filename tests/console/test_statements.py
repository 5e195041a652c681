"""What pages ask the database for: no column with content, and no counting of whole tables."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from gateway.console.pages import PAGES
from gateway.store.content import CONTENT
from gateway.store.postgres.database import Connection
from gateway.store.tables.columns import Kept

if TYPE_CHECKING:
    import pytest

    from gateway.store.postgres.statements import Statement
    from tests.console.conftest import Browser, Site

OPEN = {Kept.ID, Kept.WORD, Kept.OPERATOR, Kept.DIGEST, Kept.DECLARED}
"""How columns are kept that have nothing of what clients and models say."""
SECRET = {
    table: {column for column, how in columns.items() if how not in OPEN}
    for table, columns in CONTENT.items()
}


def content_in(sql: str) -> list[str]:
    """The columns with content that a statement names, or may read by a star."""
    sql = re.sub(r"'[^']*'", "''", sql)
    words = set(re.findall(r"\w+", sql))
    tables = [table for table, columns in SECRET.items() if columns and table in words]
    named = [f"{table}.{column}" for table in tables for column in SECRET[table] & words]
    return [*named, *(f"{table}.*" for table in tables if "*" in sql.replace("count(*)", ""))]


def test_content_is_noticed() -> None:
    assert content_in("SELECT body FROM responses") == ["responses.body"]
    assert content_in("SELECT r.* FROM responses AS r") == ["responses.*"]
    assert content_in("SELECT id, model FROM responses") == []


async def test_no_page_reads_content_or_counts_rows(
    site: Site, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    task = asyncio.current_task()
    execute = Connection.execute

    async def recorded(self: Connection, statement: Statement, *rest: Any) -> Any:
        # Other gateways of this process have tasks of their own.
        if asyncio.current_task() is task:
            statements.append(statement.sql)
        return await execute(self, statement, *rest)

    paths = [await site.path_of(page) for page in PAGES]
    monkeypatch.setattr(Connection, "execute", recorded)
    for path in paths:
        assert (await owner.get(path, follow_redirects=True)).status_code == 200, path
    assert len(statements) > len(PAGES)
    assert [sql for sql in statements if content_in(sql)] == []
    assert [sql for sql in statements if re.search(r"count\(\*\)|\bOFFSET\b", sql)] == []
