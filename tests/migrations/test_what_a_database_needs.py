"""A revision is only a word in a table: what a database has is looked at, and made again."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint

from gateway import ids
from gateway.admin import limits, spend_limits
from gateway.admin.transactions import CoreStatement
from gateway.devdb.embedded import bundled_programs
from gateway.errors import StartupError
from gateway.store import claims, responses
from gateway.store.migration import verification
from gateway.store.migration.migrate import upgrade
from gateway.store.migration.verification import missing
from gateway.store.schema import APP_ROLE, REVISION, RUNS_ROLE
from gateway.store.tables.columns import metadata
from tests.conftest import new_tenant, opened
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder, server_programs
from tests.fakes.stored import TERMS, durable_response, store_turn

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def new_server() -> Iterator[PostgresServer]:
    """A cluster that has never seen this gateway: roles belong to the cluster."""
    with reachable_folder() as folder, embedded(folder / "data") as server:
        yield PostgresServer(server.url)


async def lacking(url: str) -> list[str]:
    async with opened(url) as database:
        return [requirement.text.partition(": ")[0] for requirement in await missing(database)]


async def assert_it_serves(url: str) -> None:
    async with opened(url) as database:
        tenant = await new_tenant(database)
        uuid = await store_turn(database, tenant, "1")
        assert await responses.delete(database, tenant, uuid)
        await responses.insert(database, tenant, durable_response())
        assert len(await claims.claim(database, "me", TERMS, limit=9, take_over=True)) == 1


async def output_of(
    program: Path, *arguments: str, given: bytes = b"", code: int = 0
) -> tuple[bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"LC_ALL": "C"},
    )
    said = await process.communicate(given)
    assert process.returncode == code
    return said


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


async def test_nothing_is_missing_from_what_the_migrations_build(database_url: str) -> None:
    assert await lacking(database_url) == []


async def test_there_is_no_policy_and_no_privilege_that_is_not_required(
    postgres: PostgresServer, database_url: str
) -> None:
    found = await postgres.fetch(
        "SELECT grantee, table_name, privilege_type FROM information_schema.table_privileges"
        f" WHERE grantee IN ('{APP_ROLE}', '{RUNS_ROLE}')"
        # Every upgrade grants it anew.
        " AND table_name <> 'alembic_version'",
        url=database_url,
    )
    texts = {requirement.text for requirement in verification.requirements()}
    assert {verification.privilege_text(role, verb, table) for role, table, verb in found} <= texts
    policies = await postgres.fetch(
        "SELECT tablename, policyname FROM pg_policies", url=database_url
    )
    assert {f"policy {name} on {table}" for table, name in policies} == {
        policy.text.partition(" to ")[0].replace(" AS RESTRICTIVE", "")
        for policy in verification.policies()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            f"REVOKE UPDATE ON responses FROM {APP_ROLE}",
            f"privilege UPDATE on responses of {APP_ROLE}",
        ),
        (
            f"REVOKE SELECT (plan) ON responses FROM {RUNS_ROLE}",
            f"privilege SELECT on responses.plan of {RUNS_ROLE}",
        ),
        ("DROP POLICY runs ON flushes", f"policy runs on flushes to {RUNS_ROLE}"),
        (
            "ALTER POLICY own_tenant ON messages USING (true)",
            "policy own_tenant on messages to public",
        ),
        ("ALTER TABLE usage DISABLE ROW LEVEL SECURITY", "row-level security of usage"),
        ("ALTER TABLE usage NO FORCE ROW LEVEL SECURITY", "row-level security of usage"),
        (
            f"REVOKE EXECUTE ON FUNCTION find_caller(bytea) FROM {APP_ROLE}",
            f"privilege EXECUTE on find_caller of {APP_ROLE}",
        ),
        (
            "GRANT EXECUTE ON FUNCTION find_caller(bytea) TO PUBLIC",
            "no privilege EXECUTE on find_caller of everybody",
        ),
        (
            "GRANT EXECUTE ON FUNCTION find_caller(bytea) TO PUBLIC;"
            f" REVOKE EXECUTE ON FUNCTION find_caller(bytea) FROM {APP_ROLE}",
            "no privilege EXECUTE on find_caller of everybody",
        ),
    ],
)  # fmt: skip
async def test_what_roles_may_is_missed_and_made_again(
    postgres: PostgresServer, database_url: str, damage: str, told: str
) -> None:
    await postgres.execute(damage, database=name_of(database_url))
    assert await lacking(database_url) == [told]
    repaired = await upgrade(database_url)
    assert repaired.mended == (told,)
    assert await lacking(database_url) == []
    assert (await upgrade(database_url)).mended == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("ALTER TABLE responses DROP COLUMN recoveries", "column responses.recoveries bytea"),
        ("ALTER TABLE usage ALTER at TYPE text", "column usage.at timestamp with time zone"),
        (
            "ALTER TABLE tenants ALTER disabled_at SET NOT NULL",
            "no NOT NULL on tenants.disabled_at",
        ),
        ("ALTER TABLE writers DROP CONSTRAINT pk_writers", "index pk_writers"),
        ("DROP FUNCTION find_caller(bytea)", "function find_caller"),
    ],
)
async def test_what_no_statement_brings_back_is_told(
    postgres: PostgresServer, database_url: str, damage: str, told: str
) -> None:
    await postgres.execute(damage, database=name_of(database_url))
    with pytest.raises(StartupError, match=f"lacks: {told}"):
        await upgrade(database_url)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DROP INDEX ix_usage_tenant_id_at", "index ix_usage_tenant_id_at: it works, but slowly"),
        ("ALTER TABLE usage ALTER key_id DROP NOT NULL", "NOT NULL on usage.key_id: rows may lack"),
        (
            "ALTER TABLE tenants DROP CONSTRAINT uq_tenants_name",
            "index uq_tenants_name: the same may be written twice",
        ),
    ],
)
async def test_without_what_no_request_needs_it_serves_but_says_so(
    postgres: PostgresServer, database_url: str, damage: str, told: str
) -> None:
    await postgres.execute(damage, database=name_of(database_url))
    repaired = await upgrade(database_url)
    assert repaired.mended == ()
    (lacking,) = repaired.lacking
    assert lacking.startswith(told)
    await assert_it_serves(database_url)


def test_requests_need_the_keys_that_statements_name() -> None:
    sources = Path(verification.__file__).parents[2].rglob("*.py")
    named = {
        columns
        for source in sources
        for columns in re.findall(r"ON CONFLICT \(([^)]+)\)", source.read_text("utf-8"))
    }
    # Statements in Core name theirs when they are compiled.
    written = {**vars(limits), **vars(spend_limits)}.values()
    core = (one.sql for one in written if isinstance(one, CoreStatement))
    named |= {columns for sql in core for columns in re.findall(r"ON CONFLICT \(([^)]+)\)", sql)}
    keys = {
        str(key.name or f"pk_{table.name}"): ", ".join(key.columns.keys())
        for table in metadata.tables.values()
        for key in table.constraints
        if isinstance(key, PrimaryKeyConstraint | UniqueConstraint)
    }
    assert {keys[name] for name in verification.CONFLICTS} == named


# They differ in what of an error is left: psql goes on with the next statement, pg_restore with the
# next entry of the dump.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "restore", "code"),
    [
        ("plain", ["psql", "--quiet", "--no-psqlrc"], 0),
        ("custom", ["pg_restore", "--no-owner", "--dbname"], 1),
    ],
)
async def test_a_dump_that_was_restored_without_roles_is_mended_by_an_upgrade(
    postgres: PostgresServer,
    database_url: str,
    new_server: PostgresServer,
    form: str,
    restore: list[str],
    code: int,
) -> None:
    programs = server_programs() or bundled_programs()
    arguments = ["--no-owner", f"--format={form}", database_url]
    dump, _ = await output_of(programs / "pg_dump", *arguments)
    url = new_server.database_url(await new_server.create())
    program, *options = restore
    _, complaints = await output_of(programs / program, *options, url, given=dump, code=code)
    assert f'role "{RUNS_ROLE}" does not exist'.encode() in complaints
    revisions = await new_server.fetch("SELECT version_num FROM alembic_version", url=url)
    assert [row["version_num"] for row in revisions] == [REVISION]
    assert f"role {APP_ROLE}" in await lacking(url)

    repaired = await upgrade(url)

    assert f"policy runs on responses to {RUNS_ROLE}" in repaired.mended
    assert await lacking(url) == []
    await assert_it_serves(url)


@pytest.mark.slow
async def test_an_owner_who_may_create_no_role_upgrades_once_an_administrator_has(
    new_server: PostgresServer,
) -> None:
    owner = "owner_" + ids.new_uuid().hex
    await new_server.execute(f"CREATE ROLE {owner} LOGIN PASSWORD 'secret'")
    url = new_server.database_url(await new_server.create(owner=owner), user=owner)
    with pytest.raises(StartupError, match=f"no role {APP_ROLE}") as caught:
        await upgrade(url)
    for statement in caught.value.remedy.splitlines()[1:]:
        await new_server.execute(statement)
    await upgrade(url)
    assert await lacking(url) == []
    await assert_it_serves(url)


@pytest.mark.slow
async def test_who_serves_and_owns_nothing_is_told_to_upgrade_as_the_owner(
    new_server: PostgresServer,
) -> None:
    name = await new_server.create()
    await upgrade(new_server.database_url(name))
    serving = "serving_" + ids.new_uuid().hex
    await new_server.execute(f"CREATE ROLE {serving} LOGIN PASSWORD 'secret'")
    await new_server.execute(f"GRANT {APP_ROLE}, {RUNS_ROLE} TO {serving}")
    url = new_server.database_url(name, user=serving)
    with pytest.raises(StartupError, match="lacks: ownership of tenants") as caught:
        await upgrade(url)
    assert "the user who owns the tables" in caught.value.remedy
