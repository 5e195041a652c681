from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING
from uuid import UUID

import psutil
import pytest

from gateway import ids
from gateway.errors import StoreConflict, StoreError, StoreUnavailable
from gateway.store.postgres.database import Database, Transaction
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE, REVISION, RUNS_ROLE
from gateway.tenancy import TenantId
from tests.fakes.pooler import pooler
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def single(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection."""
    opened = Database(database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    yield opened
    await opened.close()


@pytest.fixture
async def impatient(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection with short patience."""
    opened = Database(database_url, pool_size_max=1, command_timeout_s=1, connect_timeout_s=1)
    yield opened
    await opened.close()


async def test_a_migrated_database_is_current(database: Database) -> None:
    await database.ping()
    assert await database.revision() == REVISION


async def test_an_empty_database_is_not_current(empty_database_url: str) -> None:
    empty = Database(
        empty_database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30
    )
    assert await empty.revision() is None
    await empty.close()


@pytest.mark.parametrize("size", [0, 50])
async def test_statements_are_prepared_with_and_without_a_cache(
    database_url: str, size: int
) -> None:
    opened = Database(
        database_url,
        pool_size_max=1,
        command_timeout_s=30,
        connect_timeout_s=30,
        statement_cache_size=size,
    )
    tenant = TenantId(ids.new_uuid())
    for _ in range(2):
        async with opened.transaction(tenant) as connection:
            left = await connection.scalar(Statement("SELECT count(*) FROM pg_prepared_statements"))
            assert bool(left) == bool(size)
    await opened.close()


async def test_behind_a_pooler_no_statement_stays_prepared_and_one_connection_is_opened_again(
    database_url: str,
) -> None:
    prepared = Statement("SELECT count(*) FROM pg_prepared_statements WHERE :yes")
    async with pooler(database_url) as between:
        opened = Database(
            between.url, pool_size_max=2, command_timeout_s=30, connect_timeout_s=30, for_runs=True
        )
        async with opened.runs_transaction() as one, opened.runs_transaction() as other:
            for connection in (one, other, one):
                assert await connection.scalar(prepared, {"yes": True}) == 0
        assert await standing(opened.runs_transaction(in_bulk=True)) == (
            [RUNS_ROLE, "", "off", "force_generic_plan", "off"],
            False,
        )
        await opened.close()
        assert between.accepted == 3


@pytest.mark.parametrize("durable", [True, False])
async def test_a_transaction_of_the_runs_has_its_own_role_no_tenant_and_a_time_limit(
    postgres: PostgresServer, database_url: str, impatient: Database, durable: bool
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    state = Statement(
        "SELECT current_user, current_setting('app.tenant_id'),"
        " current_setting('statement_timeout'), current_setting('synchronous_commit')"
    )
    async with impatient.transaction(TenantId(ids.new_uuid())):
        pass
    async with impatient.runs_transaction(durable=durable) as connection:
        found = (await connection.execute(state)).one()
    assert tuple(found) == (RUNS_ROLE, "", "1s", "on" if durable else "off")


async def test_an_exhausted_pool_is_unavailable_not_endless(impatient: Database) -> None:
    async with impatient.owner_transaction():
        with pytest.raises(StoreUnavailable):
            await impatient.ping()
    await impatient.ping()


@pytest.mark.slow
async def test_a_slow_statement_is_ended_here_and_on_the_server(
    impatient: Database, database: Database
) -> None:
    with pytest.raises(StoreUnavailable):
        async with impatient.owner_transaction() as connection:
            await connection.execute(Statement("SELECT pg_sleep(60), 'slow'"))
    await impatient.ping()
    async with database.owner_transaction() as connection:
        running = await connection.scalar(
            Statement(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE state = 'active' AND query LIKE '%''slow''%' AND pid <> pg_backend_pid()"
            )
        )
    assert running == 0


async def test_connections_that_the_server_closed_are_replaced(
    database: Database, impatient: Database
) -> None:
    await impatient.ping()
    async with database.owner_transaction() as connection:
        await connection.execute(
            Statement(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    await impatient.ping()


async def test_connections_that_were_opened_to_a_standby_are_replaced(
    database: Database, database_url: str
) -> None:
    change = (
        "DO $$ BEGIN EXECUTE format("
        "'ALTER DATABASE %I {} default_transaction_read_only{}', current_database()); END $$"
    )
    async with database.owner_transaction() as connection:
        await connection.script(change.format("SET", " = on"))
    failed_over = Database(database_url, pool_size_max=2, command_timeout_s=30)
    async with failed_over.owner_transaction(), failed_over.owner_transaction():
        """Both lead to a server that is read-only, and stay."""
    async with database.owner_transaction() as connection:
        await connection.script(change.format("RESET", ""))
    with pytest.raises(StoreUnavailable, match="25006"):
        await failed_over.try_write()
    async with failed_over.owner_transaction():
        await failed_over.try_write()
    await failed_over.close()


async def test_a_connection_that_was_used_for_one_statement_is_replaced_once_lost(
    database_url: str,
) -> None:
    journal = Database(
        database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30, for_runs=True
    )
    async with journal.runs_transaction(in_bulk=True) as connection:
        pid = await connection.scalar(Statement("SELECT pg_backend_pid()"))
    # While nothing else runs here, so that nobody hears of it before the next statement is sent.
    server = psutil.Process(pid)
    server.terminate()
    server.wait(timeout=30)
    async with journal.runs_transaction() as connection:
        assert await connection.scalar(Statement("SELECT pg_backend_pid()")) != pid
    await journal.close()


async def test_a_connection_lost_inside_a_transaction_is_unavailable(database: Database) -> None:
    with pytest.raises(StoreUnavailable):
        async with database.owner_transaction() as connection:
            await connection.execute(Statement("SELECT pg_terminate_backend(pg_backend_pid())"))
    await database.ping()


async def backend_pid(opened: Database) -> int:
    """Ask again while the server takes longer than the database waits for it."""
    while True:
        try:
            async with opened.owner_transaction() as connection:
                pid = await connection.scalar(Statement("SELECT pg_backend_pid()"))
        except StoreUnavailable:
            continue
        assert isinstance(pid, int)
        return pid


@pytest.mark.slow
async def test_a_frozen_server_is_unavailable_and_returns() -> None:
    with reachable_folder() as folder, embedded(folder / "data") as server:
        opened = Database(server.url, pool_size_max=2, command_timeout_s=0.3, connect_timeout_s=0.3)
        backend = await backend_pid(opened)
        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                await opened.ping()
        finally:
            os.kill(backend, signal.SIGCONT)
        await backend_pid(opened)
        await opened.close()


@pytest.mark.slow
async def test_a_stopped_server_is_unavailable_and_returns() -> None:
    with reachable_folder() as folder:
        server = embedded(folder / "data")
        server.start()
        opened = Database(server.url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
        await opened.ping()
        server.stop()
        with pytest.raises(StoreUnavailable):
            await opened.ping()
        await opened.close()


async def test_a_refused_connection_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        opened = Database(
            f"postgresql://nobody@127.0.0.1:{port}/x",
            pool_size_max=1,
            command_timeout_s=5,
            connect_timeout_s=5,
        )
        with pytest.raises(StoreUnavailable):
            await opened.ping()
        await opened.close()


async def test_a_wrong_password_is_unavailable(postgres: PostgresServer) -> None:
    opened = Database(
        postgres.database_url("postgres", user="harmony"),
        pool_size_max=1,
        command_timeout_s=5,
        connect_timeout_s=5,
    )
    with pytest.raises(StoreUnavailable, match="28P01"):
        await opened.ping()
    await opened.close()


async def test_a_mistake_of_ours_is_neither_unavailable_nor_a_conflict(database: Database) -> None:
    with pytest.raises(StoreError, match="42601") as caught:
        async with database.owner_transaction() as connection:
            await connection.execute(Statement("SELEC 'a secret'"))
    assert type(caught.value) is StoreError
    assert "secret" not in str(caught.value)


async def test_an_abandoned_statement_does_not_poison_its_connection(
    database_url: str, database: Database
) -> None:
    alone = Database(database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    started = asyncio.Event()

    async def wait_for_ever() -> None:
        async with alone.owner_transaction() as connection:
            started.set()
            await connection.execute(Statement("SELECT pg_sleep(60)"))

    async with asyncio.TaskGroup() as group:
        abandoned = group.create_task(wait_for_ever())
        await started.wait()
        abandoned.cancel()
    await alone.ping()
    await alone.close()


STANDING = Statement("""
SELECT current_user, current_setting('app.tenant_id'), current_setting('enable_nestloop'),
       current_setting('plan_cache_mode'), current_setting('jit')
""")
BEGAN_AT = Statement("SELECT now()")


async def standing(transaction: Transaction) -> tuple[list[str], bool]:
    """As whom, for whom and how statements are executed, and whether each is committed alone."""
    async with transaction as connection:
        found = (await connection.execute(STANDING)).one()
        first = await connection.scalar(BEGAN_AT)
        return list(found), await connection.scalar(BEGAN_AT) != first


def for_one(tenant: TenantId) -> list[str]:
    return [APP_ROLE, str(tenant), "off", "force_generic_plan", "off"]


async def test_a_statement_for_one_tenant_goes_alone_once_its_connection_is_known_to_be_there(
    single: Database,
) -> None:
    one, other = TenantId(ids.new_uuid()), TenantId(ids.new_uuid())
    assert await standing(single.bulk_transaction(one)) == (for_one(one), False)
    for tenant in (one, one, other, one):
        assert await standing(single.bulk_transaction(tenant)) == (for_one(tenant), True)
    assert await standing(single.bulk_transaction(one, is_only=False)) == (for_one(one), False)


async def test_what_begins_on_a_connection_that_stands_for_a_tenant_is_as_if_it_did_not(
    single: Database,
) -> None:
    transactions = [
        lambda: single.transaction(TenantId(UUID(int=1))),
        single.runs_transaction,
        single.owner_transaction,
    ]
    async with single.owner_transaction():
        pass
    fresh = []
    for begin in transactions:
        async with single.transaction(TenantId(UUID(int=2))):
            pass
        fresh.append(await standing(begin()))
    for begin, expected in zip(transactions, fresh, strict=True):
        bulk = await standing(single.bulk_transaction(TenantId(UUID(int=2))))
        assert bulk == (for_one(TenantId(UUID(int=2))), True)
        assert await standing(begin()) == expected


async def test_a_statement_that_goes_alone_and_fails_leaves_a_connection_that_can_be_used(
    single: Database, tenant: TenantId
) -> None:
    for _ in range(2):
        with pytest.raises(StoreError):
            async with single.bulk_transaction(tenant) as connection:
                await connection.execute(Statement("SELECT 1 / 0"))
    assert await standing(single.bulk_transaction(tenant)) == (for_one(tenant), True)


async def test_failures_are_reported_and_conflicts_are_not(database_url: str) -> None:
    failures: list[str] = []
    database = Database(
        database_url, pool_size_max=1, command_timeout_s=30, on_failure=failures.append
    )

    async def add(setting: str) -> None:
        async with database.owner_transaction() as connection:
            await connection.script(f"SET TRANSACTION {setting}")
            await connection.execute(
                Statement(
                    "INSERT INTO tenants (id, name, created_at)"
                    " VALUES (gen_random_uuid(), 'acme', now())"
                )
            )

    try:
        await add("READ WRITE")
        with pytest.raises(StoreConflict):
            await add("READ WRITE")
        assert failures == []
        with pytest.raises(StoreUnavailable):
            await add("READ ONLY")
        assert failures == ["StoreUnavailable"]
    finally:
        await database.close()
