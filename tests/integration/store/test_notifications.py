"""Notices: heard by every listener, however many at once, and again after the connection broke."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import StoreError
from gateway.store.notices import CHANNEL, Listener, Notice, notify
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.fakes.postgres import PostgresServer

ONE, TWO = ids.new_uuid(), ids.new_uuid()


@dataclass
class Ear:
    """What a listener heard, and how often it may have missed something."""

    notices: list[Notice] = field(default_factory=list)
    losses: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._news.set()

    def lose(self) -> None:
        self.losses += 1
        self._news.set()

    def has(self, count: int) -> bool:
        return len(self.notices) == count

    async def until(self, satisfied: Callable[[], bool]) -> None:
        while not satisfied():
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def listening(url: str, *, probe_interval_s: float = 60) -> AsyncIterator[Ear]:
    """A listener that listens already."""
    ear = Ear()
    listener = Listener(
        url, connect_timeout_s=1, retry_pause_s=0.01, probe_interval_s=probe_interval_s
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(listener.run(ear.hear, ear.lose))
        await ear.until(lambda: ear.losses == 1)
        yield ear
        task.cancel()


async def listener_pid(database: Database) -> int:
    statement = Statement(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'harmony-gateway listener'"
    )
    async with database.owner_transaction() as connection:
        pid: int = await connection.scalar(statement)
        return pid


async def test_every_listener_hears_every_kind(database: Database, database_url: str) -> None:
    sent = [Notice("log", (ONE, TWO)), Notice("work"), Notice("ended", (TWO,))]
    async with listening(database_url) as first, listening(database_url) as second:
        await notify(database, sent)
        for ear in (first, second):
            await ear.until(partial(ear.has, 3))
            assert ear.notices == sent


async def test_any_number_of_responses_fits(database: Database, database_url: str) -> None:
    many = tuple(ids.new_uuid() for _ in range(1_001))
    async with listening(database_url) as ear:
        await notify(database, [Notice("log", many)])
        await ear.until(lambda: len(ear.notices) == 6)
    assert [uuid for notice in ear.notices for uuid in notice.responses] == list(many)


async def test_no_notice_is_no_transaction(database_url: str) -> None:
    nowhere = Database(
        "postgresql://nobody@127.0.0.1:1/none",
        pool_size_max=1,
        command_timeout_s=1,
        connect_timeout_s=1,
    )
    await notify(nowhere, [])
    with pytest.raises(StoreError):
        await notify(nowhere, [Notice("work")])
    await nowhere.close()


async def test_what_others_say_on_the_channel_is_ignored(
    database: Database, database_url: str
) -> None:
    async with listening(database_url) as ear:
        async with database.owner_transaction() as connection:
            for payload in ("", "of a later release", "log not-an-id", "log "):
                await connection.execute(
                    Statement("SELECT pg_notify(:channel, :payload)"),
                    {"channel": CHANNEL, "payload": payload},
                )
        await notify(database, [Notice("work")])
        await ear.until(lambda: bool(ear.notices))
    assert ear.notices == [Notice("work")]


async def test_a_broken_connection_is_replaced_and_told_of(
    database: Database, database_url: str
) -> None:
    async with listening(database_url) as ear:
        async with database.owner_transaction() as connection:
            pid = await listener_pid(database)
            await connection.execute(Statement("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        await ear.until(lambda: ear.losses == 2)
        await notify(database, [Notice("work")])
        await ear.until(lambda: bool(ear.notices))


@pytest.mark.slow
async def test_a_silent_connection_is_probed(database: Database, database_url: str) -> None:
    async with listening(database_url, probe_interval_s=0.01) as ear:
        pid = await listener_pid(database)
        os.kill(pid, signal.SIGSTOP)
        try:
            await ear.until(lambda: ear.losses == 2)
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_database_that_is_not_there_yet_is_waited_for(postgres: PostgresServer) -> None:
    ear = Ear()
    name = "listened_to"
    listener = Listener(postgres.database_url(name), connect_timeout_s=1, retry_pause_s=0.01)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(listener.run(ear.hear, ear.lose))
        await asyncio.sleep(0)
        assert ear.losses == 0
        await postgres.execute(f"CREATE DATABASE {name}")
        await ear.until(lambda: ear.losses == 1)
        task.cancel()
    await postgres.drop(name)
