from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.script import ScriptDirectory

from gateway.errors import StartupError
from gateway.store import schema as store_revisions
from gateway.store.migration.migrate import alembic_config, run_locked
from gateway.store.schema import REVISION, migrations_folder
from gateway.store.tables.columns import metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from tests.fakes.postgres import PostgresServer

FILE_NAME = re.compile(r"20\d{6}_([0-9a-f]{12})_(expand|contract)_[a-z0-9_]+\.py\Z")
TABLES = (
    "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull"
    " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
    " WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped"
    " UNION ALL SELECT 'function', proname, prosrc, prosecdef FROM pg_proc"
    " WHERE pronamespace = 'public'::regnamespace"
    " UNION ALL SELECT 'policy', tablename || policyname, coalesce(qual, ''), true FROM pg_policies"
    " ORDER BY 1, 2"
)


def script_directory() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config())


def revisions() -> list[str]:
    """The oldest first."""
    return [script.revision for script in script_directory().walk_revisions()][::-1]


async def migrate(url: str, work: Callable[[Connection], None]) -> None:
    await run_locked(url, work, wait_s=30, connect_timeout_s=30)


async def upgrade_to(url: str, revision: str) -> None:
    await migrate(url, lambda connection: command.upgrade(alembic_config(connection), revision))


async def downgrade_to(url: str, revision: str) -> None:
    await migrate(url, lambda connection: command.downgrade(alembic_config(connection), revision))


async def schema(postgres: PostgresServer, url: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await postgres.fetch(TABLES, url=url)]


def test_file_names_say_when_what_and_whether_the_last_release_can_stay() -> None:
    found = {
        match[1]
        for path in (migrations_folder() / "versions").glob("*.py")
        if (match := FILE_NAME.match(path.name))
    }
    assert found == set(revisions())


def test_an_installed_package_brings_its_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel carries `migrations` as `gateway/_migrations` (pyproject's force-include)."""
    shutil.copytree(migrations_folder(), tmp_path / "_migrations")
    monkeypatch.setattr(store_revisions, "_PACKAGE", tmp_path)
    assert migrations_folder() == tmp_path / "_migrations"
    assert revisions()[-1] == REVISION


def test_a_second_revision_freezes_the_first() -> None:
    """Built from the tables as they are, the first would make what the second adds."""
    first, *later = revisions()
    script = script_directory().get_revision(first)
    assert not later or "gateway.store" not in Path(script.path).read_text("utf-8")


def test_there_is_one_line_of_revisions() -> None:
    assert script_directory().get_heads() == [REVISION]


@pytest.mark.slow
async def test_every_revision_can_be_undone_and_done_again(
    postgres: PostgresServer, empty_database_url: str
) -> None:
    url = empty_database_url
    await upgrade_to(url, "base")
    states = [await schema(postgres, url)]
    for revision in revisions():
        await upgrade_to(url, revision)
        states.append(await schema(postgres, url))
        await downgrade_to(url, "-1")
        undone = [row for row in await schema(postgres, url) if row[0] != "alembic_version"]
        before = [row for row in states[-2] if row[0] != "alembic_version"]
        assert [row for row in undone if row[0] != "alembic_version_pkc"] == [
            row for row in before if row[0] != "alembic_version_pkc"
        ]
        await upgrade_to(url, revision)
        assert await schema(postgres, url) == states[-1]


@pytest.mark.slow
async def test_the_migrations_build_what_the_tables_say(database_url: str) -> None:
    await migrate(database_url, lambda connection: command.check(alembic_config(connection)))


@pytest.mark.slow
async def test_a_difference_from_the_tables_would_be_found(
    postgres: PostgresServer, database_url: str
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("DROP INDEX ix_usage_tenant_id_at", database=name)
    await postgres.execute("ALTER TABLE usage ALTER key_id DROP NOT NULL", database=name)
    with pytest.raises(StartupError, match="modify_nullable") as caught:
        await migrate(database_url, lambda connection: command.check(alembic_config(connection)))
    assert "add_index" in str(caught.value)


async def test_rows_of_responses_leave_room_for_updates(
    postgres: PostgresServer, database_url: str
) -> None:
    rows = await postgres.fetch(
        "SELECT reloptions FROM pg_class WHERE relname = 'responses'", url=database_url
    )
    assert rows[0]["reloptions"] == ["fillfactor=50"]
    assert metadata.tables["responses"].dialect_options["postgresql"]["with"] == {"fillfactor": 50}


def test_the_migrations_can_be_written_out_as_sql(capsys: pytest.CaptureFixture[str]) -> None:
    command.upgrade(alembic_config(), "head", sql=True)
    sql = capsys.readouterr().out
    assert sql.index("lock_timeout") < sql.index("CREATE TABLE responses")
    assert "FORCE ROW LEVEL SECURITY" in sql
