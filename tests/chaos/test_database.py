"""The database of the fleet dies and freezes like a real one, and keeps what it acknowledged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from tests.chaos.database import ChaosPostgres
from tests.fakes.postgres import reachable_folder
from tests.fakes.processes import reserved_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BRIEFLY_S: Final = 0.2
STEP_S: Final = 0.02
GONE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""A lost connection, however asyncpg comes to know of it (as in `store.postgres.driver`)."""


@pytest.fixture(scope="module")
def database() -> Iterator[ChaosPostgres]:
    with reachable_folder() as folder, reserved_port() as port:
        database = ChaosPostgres(folder / "postgres", port)
        database.start()
        yield database
        database.stop()


@pytest.mark.slow
async def test_what_was_committed_is_there_after_a_kill(database: ChaosPostgres) -> None:
    connection = await asyncpg.connect(database.url)
    await connection.execute("CREATE TABLE seen AS SELECT 1 AS n")
    await asyncio.to_thread(database.kill)
    with pytest.raises(GONE):
        await connection.fetch("SELECT n FROM seen")
    await asyncio.to_thread(database.start)
    again = await asyncpg.connect(database.url)
    assert await again.fetchval("SELECT n FROM seen") == 1
    await again.close()


async def test_a_frozen_one_answers_nothing_and_then_goes_on(database: ChaosPostgres) -> None:
    connection = await asyncpg.connect(database.url)
    await asyncio.to_thread(database.freeze)
    answer = asyncio.ensure_future(connection.fetchval("SELECT 1"))
    done, _ = await asyncio.wait([answer], timeout=BRIEFLY_S)
    assert not done
    await asyncio.to_thread(database.thaw)
    assert await answer == 1
    await connection.close()


async def test_the_death_of_one_connection_throws_out_all(database: ChaosPostgres) -> None:
    connections = [await asyncpg.connect(database.url) for _ in range(2)]
    await database.kill_one_connection()
    for connection in connections:
        with pytest.raises(GONE):
            await connection.execute("SELECT pg_sleep(60)")
    again = await _reconnected(database)
    assert await again.fetchval("SELECT 1") == 1
    await again.close()


async def _reconnected(database: ChaosPostgres) -> Any:
    """As soon as it lets anybody in again."""
    while True:
        try:
            return await asyncpg.connect(database.url)
        except GONE:
            await asyncio.sleep(STEP_S)
