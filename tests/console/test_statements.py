"""What pages ask the database for: no column with content, and no counting of whole tables."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from gateway.console.pages import PAGES
from gateway.store.content import CONTENT
from gateway.store.postgres.database import Connection
from gateway.store.tables.columns import Kept

if TYPE_CHECKING:
    import pytest

    from gateway.store.postgres.statements import Statement
    from tests.console.hostile_site import HostileSite

IS_RECORDED = ContextVar("is_recorded", default=False)
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


def counts_rows(sql: str) -> bool:
    """Whether it reads rows that it does not return; groups of few rows may be counted."""
    return "OFFSET" in sql or ("count(*)" in sql and "GROUP BY" not in sql)


def test_content_is_noticed() -> None:
    assert content_in("SELECT body FROM responses") == ["responses.body"]
    assert content_in("SELECT r.* FROM responses AS r") == ["responses.*"]
    assert content_in("SELECT id, model FROM responses") == []


async def test_no_page_reads_content_or_counts_rows(
    hostile_site: HostileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With something in every list, and all that can be chosen on a page."""
    statements: list[str] = []
    execute = Connection.execute

    async def recorded(self: Connection, statement: Statement, *rest: Any) -> Any:
        # Tasks that a page begins have its context; other gateways of this process do not.
        if IS_RECORDED.get():
            statements.append(statement.sql)
        return await execute(self, statement, *rest)

    paths = await hostile_site.paths()
    monkeypatch.setattr(Connection, "execute", recorded)
    async with hostile_site.site.browser() as owner:
        IS_RECORDED.set(True)
        for page, addresses in paths.items():
            before = len(statements)
            for path in addresses:
                assert (await owner.get(path, follow_redirects=True)).status_code == 200, path
            assert len(statements) > before, page
        for live in PAGES:
            if live.live:
                await hostile_site.site.console._renewing(live)()
        IS_RECORDED.set(False)
    assert [sql for sql in statements if content_in(sql)] == []
    assert [sql for sql in statements if counts_rows(sql)] == []
