"""A database that answers can still be one that nothing can be served from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway import ids
from gateway.errors import StoreUnavailable
from gateway.services.health import MENDING_INTERVAL_S, SCHEMA_INTERVAL_S, DatabaseCheck
from gateway.store.migration.migrate import upgrade
from gateway.store.postgres.database import Database
from gateway.store.schema import RUNS_ROLE
from tests.conftest import opened
from tests.fakes.stored import store_turn

if TYPE_CHECKING:
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

FULL = "the database cannot write: its disk is full (53100)"
NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE disk_full USING MESSAGE = 'could not extend file'; END $$
"""
# What a full disk refuses is played by triggers: the errors are the server's own.
NO_ROOM_FOR_RESPONSES = (
    "CREATE TRIGGER full_disk BEFORE INSERT ON responses EXECUTE FUNCTION no_room()"
)
NO_ROOM_AT_ALL = """
CREATE FUNCTION no_room_at_all() RETURNS event_trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE disk_full USING MESSAGE = 'could not extend file'; END $$
"""
NO_NEW_TABLE = (
    "CREATE EVENT TRIGGER full_disk ON ddl_command_start WHEN TAG IN ('CREATE TABLE AS')"
    " EXECUTE FUNCTION no_room_at_all()"
)


class Watch:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


WAIT_S = 60.0


@pytest.fixture
def storage(database: Database, watch: Watch) -> DatabaseCheck:
    return DatabaseCheck(database, clock=watch)


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def test_a_database_with_all_it_needs_gives_no_reason(storage: DatabaseCheck) -> None:
    assert await storage.reasons() == []


@pytest.mark.slow
async def test_what_roles_may_no_more_is_a_reason_until_an_upgrade_has_mended_it(
    storage: DatabaseCheck, watch: Watch, database_url: str
) -> None:
    assert await storage.reasons() == []
    await execute(database_url, f"DROP OWNED BY {RUNS_ROLE}")
    watch.seconds += SCHEMA_INTERVAL_S
    (reason,) = await storage.reasons()
    assert "db upgrade" in reason
    assert f"policy runs on responses to {RUNS_ROLE}; " in reason
    await upgrade(database_url)
    watch.seconds += MENDING_INTERVAL_S
    assert await storage.reasons() == []


@pytest.mark.slow
async def test_a_table_that_somebody_alters_is_none(
    storage: DatabaseCheck, watch: Watch, database_url: str
) -> None:
    connection = await asyncpg.connect(database_url)
    async with asyncio.timeout(WAIT_S), connection.transaction():
        await connection.execute("LOCK TABLE traces IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            assert await storage.reasons() == []
            watch.seconds += MENDING_INTERVAL_S
        await connection.execute("ALTER TABLE traces DROP CONSTRAINT pk_traces")
    await connection.close()
    (reason,) = await storage.reasons()
    assert "index pk_traces" in reason


@pytest.mark.parametrize(
    "damage",
    [
        "DROP INDEX ix_usage_tenant_id_at",
        "ALTER TABLE usage ALTER key_id DROP NOT NULL",
        "ALTER TABLE usage DROP CONSTRAINT pk_usage",
        "ALTER TABLE usage NO FORCE ROW LEVEL SECURITY",
        "GRANT EXECUTE ON FUNCTION find_caller(bytea) TO PUBLIC",
    ],
)
async def test_what_no_request_needs_is_none(
    storage: DatabaseCheck, database_url: str, damage: str
) -> None:
    await execute(database_url, damage)
    assert await storage.reasons() == []


async def test_a_full_disk_is_a_reason_from_the_write_that_failed_to_the_one_that_works(
    storage: DatabaseCheck, watch: Watch, database: Database, database_url: str, tenant: TenantId
) -> None:
    await execute(database_url, NO_ROOM, NO_ROOM_FOR_RESPONSES, NO_ROOM_AT_ALL)
    assert await storage.reasons() == []
    await execute(database_url, NO_NEW_TABLE)
    with pytest.raises(StoreUnavailable, match="could not extend file"):
        await store_turn(database, tenant, "1")
    for _ in range(3):
        assert await storage.reasons() == [FULL]
        watch.seconds += MENDING_INTERVAL_S
    await execute(
        database_url, "DROP EVENT TRIGGER full_disk", "DROP TRIGGER full_disk ON responses"
    )
    assert await storage.reasons() == []
    await store_turn(database, tenant, "1")


async def test_a_process_that_starts_with_a_full_disk_finds_out_before_a_request_does(
    storage: DatabaseCheck, database_url: str
) -> None:
    await execute(database_url, NO_ROOM_AT_ALL, NO_NEW_TABLE)
    assert await storage.reasons() == [FULL]


async def test_what_the_other_pools_of_a_process_found_out_counts(
    database: Database, database_url: str, watch: Watch, tenant: TenantId
) -> None:
    async with opened(database_url) as journal:
        storage = DatabaseCheck(database, journal, clock=watch)
        assert await storage.reasons() == []
        await execute(database_url, NO_ROOM, NO_ROOM_FOR_RESPONSES)
        with pytest.raises(StoreUnavailable):
            await store_turn(journal, tenant, "1")
        assert await storage.reasons() == [FULL]
        watch.seconds += MENDING_INTERVAL_S
        assert await storage.reasons() == []


@pytest.mark.slow
async def test_an_owner_who_may_make_no_temporary_table_is_believed(
    postgres: PostgresServer,
) -> None:
    owner = "owner_" + ids.new_uuid().hex
    await postgres.execute(f"CREATE ROLE {owner} LOGIN SUPERUSER PASSWORD 'secret'")
    name = await postgres.create(owner=owner)
    url = postgres.database_url(name, user=owner)
    await upgrade(url)
    await postgres.execute(f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC, {owner}")
    await postgres.execute(f"ALTER ROLE {owner} NOSUPERUSER")
    async with opened(url) as database:
        database.write_fault = "a write failed before"
        reasons = await DatabaseCheck(database).reasons()
    assert not [reason for reason in reasons if "write" in reason]
    await postgres.drop(name)
    await postgres.execute(f"DROP ROLE {owner}")


async def test_a_standby_cannot_write(database_url: str) -> None:
    async with opened(f"{database_url}&default_transaction_read_only=on") as database:
        reasons = await DatabaseCheck(database).reasons()
    assert reasons == ["the database cannot write: it is read-only, as a standby is (25006)"]


async def test_a_server_that_is_away_does_not_answer() -> None:
    url = "postgresql://u:canary@127.0.0.1:9/d"
    database = Database(url, pool_size_max=1, command_timeout_s=9, connect_timeout_s=9)
    assert await DatabaseCheck(database).reasons() == ["the database does not answer"]
    await database.close()
