"""The writer against PostgreSQL: group commit, lost connections, a takeover, a defect."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest
from typing_extensions import override

from gateway.entries import Entry, Queued, Tokens, unpack
from gateway.errors import ClaimLost, StoreError
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_writer import Channel, LogWriter, WriterBounds
from gateway.store import claims, flushes, responses
from gateway.store.claims import Claim
from gateway.store.events import day_of
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.schema import RUNS_ROLE
from gateway.telemetry.metrics import Metrics
from tests.fakes.stored import CREATED, TERMS, durable_response, let_time_pass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

DAY: Final = day_of(CREATED)
BOUNDS: Final = WriterBounds(
    flush_bytes_max=100_000,
    run_pending_bytes_max=2_000,
    pending_bytes_max=20_000,
    retry_pause_s=0.005,
)
TERMINATE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = '{name}' AND application_name = 'harmony-gateway'"
)


class Office:
    """A writer at work for one tenant."""

    def __init__(self, database: Database, tenant: TenantId, writer: LogWriter) -> None:
        self.database = database
        self.tenant = tenant
        self.writer = writer
        self.lost: list[Claim] = []

    async def open(self, durable: Callable[[int], None] = lambda _: None) -> Channel:
        new = durable_response(owner="here")
        await responses.insert(self.database, self.tenant, new)
        claim = Claim(self.tenant, new.uuid, 1)
        lost = partial(self.lost.append, claim)
        return self.writer.open(claim, DAY, 1, durable=durable, lost=lost)

    async def log(self, channel: Channel) -> list[Entry]:
        uuid = channel.claim.uuid
        rows = await flushes.read(self.database, self.tenant, uuid, DAY, bytes_max=10**9)
        log: list[Entry] = []
        for row in rows:
            # What is settled meanwhile is read twice, and there is never a gap.
            known = len(log) - row.first_entry
            entries = unpack(row.entries)
            assert log[row.first_entry :] == entries[:known] if known else not known
            log += entries[known:]
        return log


@pytest.fixture(params=["any connection", "connections for runs"])
async def journal(
    request: pytest.FixtureRequest, database: Database, database_url: str
) -> AsyncIterator[Database]:
    """What the writer writes over."""
    if request.param == "any connection":
        yield database
        return
    one = Database(
        database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30, for_runs=True
    )
    yield one
    await one.close()


@asynccontextmanager
async def office(
    database: Database, tenant: TenantId, journal: Database, kind: type[Flusher] = Flusher
) -> AsyncIterator[Office]:
    flusher = kind(journal, "here", settle_interval_s=0.02)
    writer = LogWriter(flusher, BOUNDS, metrics=Metrics(), committed=lambda _: None)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        yield Office(database, tenant, writer)
        task.cancel()


class Clumsy(Flusher):
    """Settles nothing, and nobody knows why."""

    @override
    async def settle(self) -> None:
        self._is_sure = False
        raise ValueError("a defect")


def says(count: int) -> list[Entry]:
    return [Tokens((number,)) for number in range(count)]


async def say(channel: Channel, count: int) -> None:
    for entry in says(count):
        channel.append(entry)
        if channel.is_full:
            await channel.room()
        await asyncio.sleep(0)
    await channel.flushed()


@pytest.mark.slow
async def test_logs_of_many_runs_are_complete_and_in_order(
    database: Database, tenant: TenantId, journal: Database
) -> None:
    async with office(database, tenant, journal) as one:
        channels = [await one.open() for _ in range(20)]
        async with asyncio.TaskGroup() as group:
            for channel in channels:
                group.create_task(say(channel, 200))
        for channel in channels:
            assert await one.log(channel) == [Queued(), *says(200)]
        assert one.writer.pending_bytes == 0


@pytest.mark.slow
async def test_connections_that_are_killed_lose_and_repeat_nothing(
    database: Database,
    database_url: str,
    tenant: TenantId,
    postgres: PostgresServer,
    journal: Database,
) -> None:
    name = urlsplit(database_url).path.removeprefix("/")
    moved = asyncio.Event()
    kills = 0

    async def kill() -> None:
        """As soon as something was committed since the last time."""
        nonlocal kills
        while True:
            moved.clear()
            await moved.wait()
            await postgres.execute(TERMINATE.format(name=name))
            kills += 1

    async with office(database, tenant, journal) as one, asyncio.TaskGroup() as group:
        channels = [await one.open(lambda _: moved.set()) for _ in range(4)]
        killing = group.create_task(kill())
        rounds = 0
        while rounds < 10 or kills < 2:
            rounds += 1
            for channel in channels:
                await say(channel, 10)
        killing.cancel()
        await asyncio.wait([killing])
        for channel in channels:
            assert await one.log(channel) == [Queued(), *says(10) * rounds]
        assert not one.lost


async def test_what_is_told_to_be_durable_is_in_the_database(
    database: Database, tenant: TenantId, journal: Database
) -> None:
    told: list[int] = []
    async with office(database, tenant, journal) as one:
        channel = await one.open(told.append)
        for entry in says(3):
            channel.append(entry)
            next_entry = await channel.flushed()
            assert told[-1] == next_entry == len(await one.log(channel))


@pytest.mark.slow
async def test_after_a_takeover_the_old_owner_writes_nothing(
    database: Database, tenant: TenantId, journal: Database
) -> None:
    async with office(database, tenant, journal) as one:
        channel, well = await one.open(), await one.open()
        await say(channel, 2)
        await let_time_pass(database, tenant, seconds=TERMS.lease_s + 1)
        await claims.heartbeat(database, "here", [well.claim], lease_s=TERMS.lease_s)
        (taken,) = await claims.claim(database, "there", TERMS, limit=9, take_over=True)
        assert (taken.claim.uuid, taken.next_entry) == (channel.claim.uuid, 3)
        channel.append(Tokens((9,)))
        with pytest.raises(ClaimLost):
            await channel.flushed()
        await say(well, 2)
        assert one.lost == [channel.claim]
        assert await one.log(channel) == [Queued(), *says(2)]


async def test_a_parcel_that_the_database_takes_for_a_mistake_costs_its_run_only(
    database: Database, tenant: TenantId, journal: Database
) -> None:
    """An entry number beyond the column's type is the nearest thing to a defect of ours."""
    async with office(database, tenant, journal) as one:
        well = await one.open()
        new = durable_response(owner="here")
        await responses.insert(database, tenant, new)
        claim = Claim(tenant, new.uuid, 1)
        broken = one.writer.open(
            claim, DAY, 2**40, durable=lambda _: None, lost=partial(one.lost.append, claim)
        )
        broken.append(Queued())
        await say(well, 2)
        with pytest.raises(ClaimLost):
            await broken.flushed()
        assert one.lost == [claim]
        assert await one.log(well) == [Queued(), *says(2)]


async def test_connections_for_runs_see_no_body(journal: Database) -> None:
    async with journal.runs_transaction(in_bulk=True) as connection:
        await connection.scalar(Statement("SELECT count(next_entry) FROM responses"))
    with pytest.raises(StoreError):
        async with journal.runs_transaction(in_bulk=True) as connection:
            await connection.scalar(Statement("SELECT count(body) FROM responses"))
    async with journal.runs_transaction(in_bulk=True) as connection:
        assert await connection.scalar(Statement("SELECT current_user")) == RUNS_ROLE


async def test_logs_are_written_where_settling_fails_each_time(
    database: Database, tenant: TenantId, journal: Database
) -> None:
    async with office(database, tenant, journal, Clumsy) as one:
        channel = await one.open()
        for count in (1, 2, 3):
            await say(channel, 1)
            assert await channel.flushed() == count + 1
        assert await one.log(channel) == [Queued(), *says(1) * 3]
        assert not one.lost
