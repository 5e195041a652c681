from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway import ids
from gateway.cli.provision import require_schema
from gateway.errors import StartupError, StoreUnavailable
from gateway.store import callers, claims, responses, schema, tenants
from gateway.store.migration.migrate import run_locked, upgrade
from gateway.store.migration.verification import make_roles
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE, REVISION, RUNS_ROLE, migrations_folder
from gateway.tenancy import TenantId
from tests.conftest import new_tenant
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder
from tests.fakes.stored import TERMS, durable_response, store_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sqlalchemy import Connection

UPGRADE = """
import asyncio, sys
from gateway.store.migration.migrate import upgrade
asyncio.run(upgrade(sys.argv[1]))
"""


@pytest.mark.slow
async def test_four_processes_may_upgrade_at_once(
    pytestconfig: pytest.Config, empty_database_url: str, postgres: PostgresServer
) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            UPGRADE,
            empty_database_url,
            cwd=pytestconfig.rootpath,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for process in processes:
        _, complaint = await process.communicate()
        assert (process.returncode, complaint) == (0, b"")
    rows = await postgres.fetch("SELECT version_num FROM alembic_version", url=empty_database_url)
    assert [row["version_num"] for row in rows] == [REVISION]


@pytest.mark.slow
async def test_each_migration_is_counted(empty_database_url: str) -> None:
    steps: list[int] = []
    await upgrade(empty_database_url, on_step=steps.append)
    versions = (migrations_folder() / "versions").glob("*.py")
    assert steps == [1 for _ in versions]
    await upgrade(empty_database_url, on_step=steps.append)
    assert steps == [1 for _ in (migrations_folder() / "versions").glob("*.py")]


@pytest.fixture
async def owner(postgres: PostgresServer) -> AsyncIterator[str]:
    """A user who owns databases and may create roles, but is no superuser."""
    name = "owner_" + ids.new_uuid().hex
    await postgres.execute(f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'secret'")
    yield name
    await postgres.execute(f"DROP ROLE {name}")


async def forget_role(postgres: PostgresServer, role: str) -> bool:
    """False when other databases of this server still use it."""
    try:
        await postgres.execute(f"DROP ROLE IF EXISTS {role}")
    except asyncpg.DependentObjectsStillExistError:
        return False
    return True


@pytest.mark.slow
async def test_an_owner_without_superpowers_can_migrate_and_serve(
    postgres: PostgresServer, owner: str
) -> None:
    name = await postgres.create(owner=owner)
    for role in (APP_ROLE, RUNS_ROLE):
        if not await forget_role(postgres, role):
            # Another database's migration made the role: its administrator has to share it.
            await postgres.execute(f"GRANT {role} TO {owner}")
    url = postgres.database_url(name, user=owner)
    await upgrade(url)
    database = Database(url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    tenant = TenantId(ids.new_uuid())
    await tenants.insert_tenant(database, tenant, "acme")
    await tenants.insert_key(
        database, tenants.NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"hash")
    )
    found = await callers.find_principal(database, b"hash")
    assert found is not None
    assert found.tenant_id == tenant
    uuid = await store_turn(database, tenant, "1")
    assert await responses.delete(database, tenant, uuid)
    await store_turn(database, tenant, "2")
    await responses.insert(database, tenant, durable_response())
    assert len(await claims.claim(database, "me", TERMS, limit=9, take_over=True)) == 1
    async with database.owner_transaction() as connection:
        for content in ("responses", "messages", "usage"):
            assert await connection.scalar(Statement(f"SELECT count(*) FROM {content}")) == 0
    await database.close()
    await postgres.drop(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("granted", "asked_for"),
    [((), (APP_ROLE, RUNS_ROLE)), ((APP_ROLE,), (RUNS_ROLE,))],
    ids=["none", "one"],
)
async def test_an_owner_who_may_not_take_a_role_is_told_what_an_administrator_has_to_run(
    postgres: PostgresServer, granted: tuple[str, ...], asked_for: tuple[str, ...]
) -> None:
    name, owner = await postgres.create(), "owner_" + ids.new_uuid().hex
    await upgrade(postgres.database_url(await postgres.create()))
    await postgres.execute(f"CREATE ROLE {owner} LOGIN PASSWORD 'secret'")
    await postgres.execute(f"ALTER DATABASE {name} OWNER TO {owner}")
    for role in granted:
        await postgres.execute(f"GRANT {role} TO {owner}")
    url = postgres.database_url(name, user=owner)
    with pytest.raises(StartupError, match=owner) as caught:
        await upgrade(url)
    _, *statements = caught.value.remedy.splitlines()
    assert [line.strip() for line in statements] == [
        f"GRANT {role} TO {owner};" for role in asked_for
    ]
    for statement in statements:
        await postgres.execute(statement)
    await upgrade(url)
    await postgres.drop(name)
    await postgres.execute(f"DROP ROLE {owner}")


@pytest.mark.slow
async def test_roles_may_be_made_from_many_databases_at_once() -> None:
    """On a cluster that has never seen this gateway: roles belong to the cluster."""
    with reachable_folder() as folder, embedded(folder / "data") as started:
        server = PostgresServer(started.url)
        urls = [server.database_url(await server.create()) for _ in range(4)]
        made = [run_locked(url, make_roles, wait_s=30, connect_timeout_s=30) for url in urls]
        await asyncio.gather(*made)
        roles = await server.fetch("SELECT rolname FROM pg_roles WHERE NOT rolcanlogin")
    assert {APP_ROLE, RUNS_ROLE} <= {row["rolname"] for row in roles}


async def test_a_revision_that_adds_to_a_policy_breaks_no_connection_that_asked_for_one(
    database_url: str, postgres: PostgresServer
) -> None:
    database = Database(database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    tenant = await new_tenant(database)
    key = tenants.NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"hash")
    await tenants.insert_key(database, key)
    before = await callers.find_principal(database, b"hash")
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("ALTER TABLE tenants ADD COLUMN later text", database=name)
    assert await callers.find_principal(database, b"hash") == before is not None
    await database.close()


async def test_upgrading_twice_changes_nothing(database_url: str, database: Database) -> None:
    await upgrade(database_url)
    assert await database.revision() == REVISION


@pytest.mark.slow
async def test_waiting_for_another_migration_ends(database_url: str) -> None:
    holding, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(_: Connection) -> None:
        loop.call_soon_threadsafe(holding.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    def first() -> None:
        asyncio.run(run_locked(database_url, hold, wait_s=30, connect_timeout_s=30))

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(first))
        await holding.wait()
        with pytest.raises(StoreUnavailable, match="another process migrates"):
            await upgrade(database_url, wait_s=0.05)
        release.set()
    await upgrade(database_url)


@pytest.mark.slow
async def test_a_database_of_a_newer_release_is_left_alone(
    postgres: PostgresServer, database_url: str, database: Database
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("UPDATE alembic_version SET version_num = 'f00'", database=name)
    with pytest.raises(StartupError, match="f00") as caught:
        await upgrade(database_url)
    assert "newer release" in caught.value.remedy
    assert await database.revision() != REVISION


async def test_a_replica_starts_on_a_newer_schema_that_has_all_it_needs(
    postgres: PostgresServer, database_url: str, database: Database
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("UPDATE alembic_version SET version_num = 'f00'", database=name)
    await postgres.execute("ALTER TABLE responses ADD COLUMN later text", database=name)
    await require_schema(database)
    await postgres.execute("ALTER TABLE responses DROP COLUMN recoveries", database=name)
    with pytest.raises(StartupError, match=r"newer release, and lacks: column responses\.recov"):
        await require_schema(database)


async def test_a_replica_does_not_start_on_an_older_schema(
    postgres: PostgresServer,
    database_url: str,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(migrations_folder(), tmp_path / "_migrations")
    (folder / "versions" / "20250101_0123456789ab_expand_before.py").touch()
    monkeypatch.setattr(schema, "_PACKAGE", tmp_path)
    name = database_url.partition("?")[0].rpartition("/")[2]
    older = "UPDATE alembic_version SET version_num = '0123456789ab'"
    await postgres.execute(older, database=name)
    with pytest.raises(StartupError, match="not the one of this release") as caught:
        await require_schema(database)
    assert "db upgrade" in caught.value.remedy


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await upgrade(f"postgresql://u@/d?host={tmp_path}")
