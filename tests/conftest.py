"""Databases for tests: one server per test process, one fresh database per test.

The template is built by the migrations, so every run tests them. Databases are cloned from it
(0.05 s), because transactions, commits and second connections are what the store is about.
Set TEST_POSTGRES_BIN to test against another version of PostgreSQL.
"""

from __future__ import annotations

import gc
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from gateway.encryption.keyring import Keyring
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

OF_PROCESSES: Final = ("tests/chaos/", "tests/e2e/")
"""Folders whose tests start whole gateways, backends and databases."""

# What checks for several tests says what it found, as a test does.
pytest.register_assert_rewrite("tests.fakes", "tests.integration", "tests.conformance")

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", settings(), deadline=None, max_examples=50)
settings.register_profile("short", settings(), deadline=None, max_examples=10)
settings.register_profile("long", settings(), deadline=None, max_examples=200)
settings.load_profile("untimed")


JANITOR: Final = pytest.StashKey[subprocess.Popen[bytes] | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Have all that this run starts ended with it, however it ends. Workers share the janitor."""
    from tests.fakes import janitor

    config.stash[JANITOR] = janitor.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if janitor := config.stash.get(JANITOR, None):
        janitor.communicate()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what is collected: a million objects, kept to the end.

    Each of its looks through all of them takes 0.3 s, and there are many in ten thousand tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of whole processes come first, in the random order that they have by now.

    They wait more than they work. At the front they are one worker's, so that the processes that
    they share are started once, and none of them is left to the end, when the others are idle.
    So do those that may take long, as their own timeout says.
    """
    items.sort(key=lambda item: not (_is_of_processes(item) or item.get_closest_marker("timeout")))


def _is_of_processes(item: pytest.Item) -> bool:
    return item.nodeid.startswith(OF_PROCESSES)


# Imported where used: most tests need no database, and should not wait for its libraries.


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    from tests.fakes.postgres import PostgresServer, embedded, reachable_folder

    with reachable_folder() as folder, embedded(folder / "data") as server:
        yield PostgresServer(server.url)


@pytest.fixture(scope="session")
async def template(postgres: PostgresServer) -> str:
    """The name of a migrated database that nobody is connected to."""
    from gateway.store.migration.migrate import upgrade

    name = await postgres.create()
    await upgrade(postgres.database_url(name))
    return name


@pytest.fixture
async def empty_database_url(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database without tables."""
    name = await postgres.create()
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture
async def database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """A migrated database of the test's own."""
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The same, opened."""
    async with opened(database_url) as one:
        yield one


@pytest.fixture(scope="session")
async def shared_database(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    """One for all tests that only write, read and count rows of tenants of their own."""
    name = await postgres.create(template)
    async with opened(postgres.database_url(name)) as one:
        yield one
    await postgres.drop(name)


@pytest.fixture
async def tenant(database: Database) -> TenantId:
    """A tenant in `database`, whichever that is in this module."""
    return await new_tenant(database)


@pytest.fixture
async def other_tenant(database: Database) -> TenantId:
    """Another one, which must never see anything of the first."""
    return await new_tenant(database)


def keyring_for_tests() -> Keyring:
    """Of a database for tests: nothing is sealed, unless TEST_SEALED is set. Then all is."""
    import os

    from gateway.encryption.keyring import OFF
    from tests.fakes.keys import sealing_keyring

    return sealing_keyring() if os.environ.get("TEST_SEALED") else OFF


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    from gateway.store.postgres.database import Database

    keyring = keyring_for_tests()
    one = Database(
        url, pool_size_max=5, command_timeout_s=30, connect_timeout_s=30, keyring=keyring
    )
    try:
        yield one
    finally:
        await one.close()


async def new_tenant(database: Database) -> TenantId:
    """Its row alone: no entry of it is in the audit log."""
    from gateway import ids
    from gateway.store.postgres.statements import Statement
    from gateway.tenancy import TenantId

    insert = Statement("INSERT INTO tenants (id, name, created_at) VALUES (:id, :name, now())")
    tenant_id = TenantId(ids.new_uuid())
    async with database.owner_transaction() as connection:
        await connection.execute(insert, {"id": tenant_id, "name": f"tenant-{tenant_id}"})
    return tenant_id
