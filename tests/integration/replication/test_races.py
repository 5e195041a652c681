"""Moments at which two of the things that happen to a response happen at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.engine import outcome
from gateway.engine.row_mapping import datetime_of
from gateway.engine.runner import Run
from gateway.entries import Queued, Tokens, pack, unpack
from gateway.errors import ClaimLost
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_writer import LogWriter, WriterBounds
from gateway.replication import takeover_scheduler
from gateway.store import claims, events, responses
from gateway.store.claims import Claim
from gateway.store.events import LogRow, day_of
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from gateway.wiring.process import Process
from tests.conftest import opened
from tests.fakes.following import collected
from tests.fakes.gateway import gateway_settings
from tests.fakes.logs import captured_logs
from tests.fakes.replica import (
    LEASE_S,
    Speaker,
    background,
    foreground,
    load,
    new_fold_for,
    replica,
)
from tests.fakes.stored import CREATED, TERMS, durable_response, let_time_pass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.engine.run_spec import RunSpec
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId
    from tests.fakes.replica import Replica

ANSWER = "<|channel|>final<|message|>Hello there, friend<|return|>"
LOCK_LOGS = "LOCK TABLE events IN ACCESS EXCLUSIVE MODE"
BEGINNING = "<|channel|>final<|message|>Hello"


def in_memory(one: Replica, spec: RunSpec) -> LiveLog:
    """Generate a foreground response, which the run itself records."""
    live = LiveLog(new_fold_for(spec.head), reader_events_max=100)
    run = Run(spec, MemoryJournal(live), one.engine)
    one.supervisor.start(run)
    return live


@asynccontextmanager
async def locked(database_url: str, statement: str) -> AsyncIterator[Connection]:
    """While entered, somebody else holds the lock that `statement` takes."""
    async with opened(database_url) as other, other.owner_transaction() as connection:
        await connection.execute(Statement(statement))
        yield connection


@pytest.mark.slow
async def test_a_run_that_lost_its_claim_is_not_told_of_the_commits_of_the_next_one(
    database: Database, tenant: TenantId
) -> None:
    """Both are in one process: it was held up for a lease, then claimed the response again."""
    new = durable_response(owner="here")
    await responses.insert(database, tenant, new)
    flusher = Flusher(database, "here")
    writer = LogWriter(
        flusher,
        WriterBounds(100_000, 2_000, 20_000, retry_pause_s=0.005),
        metrics=Metrics(),
        committed=lambda _: None,
    )
    day, told, lost = day_of(CREATED), list[int](), list[bool]()
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(writer.run())
        before = writer.open(
            Claim(tenant, new.uuid, 1), day, 1, durable=told.append, lost=lambda: lost.append(True)
        )
        before.append(Tokens((1,)))
        await before.flushed()
        await let_time_pass(database, tenant, seconds=TERMS.lease_s + 1)
        (taken,) = await claims.claim(database, "here", TERMS, limit=1, take_over=True)
        now = writer.open(
            taken.claim, day, taken.next_entry, durable=lambda _: None, lost=lambda: None
        )
        before.append(Tokens((2,)))
        now.append(Tokens((3,)))
        assert await now.flushed() == 3
        writing.cancel()
    assert told == [2]
    assert lost == [True]
    assert writer.pending_bytes == 0
    rows = await events.read(database, tenant, new.uuid, day, bytes_max=10**6)
    log = [entry for row in rows for entry in unpack(row.entries)]
    assert log == [Queued(), Tokens((1,)), Tokens((3,))]


async def test_a_foreground_response_that_was_given_up_elsewhere_ends_for_its_client(
    database: Database, tenant: TenantId
) -> None:
    """Its owner was cut off for longer than a lease; nobody else goes on with it."""
    spec = foreground(tenant)
    speaker = Speaker(BEGINNING, silent=True)
    async with replica(database, speaker) as owner, replica(database, Speaker(ANSWER)) as other:
        live = in_memory(owner, spec)
        await speaker.fell_silent()
        await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        while not await other.reaper.round():  # its owner renewed the lease in between
            await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        await owner.keeper.heartbeat()
        seen = await collected(live.stream)
        await owner.idle()
    assert seen[-1].type == "response.failed"
    stored = await load(database, spec)
    shown = orjson.loads(seen[-1].data)["response"]
    assert shown["error"] == orjson.loads(stored.body or b"")["error"]
    assert isinstance(live.failure, ClaimLost)


@pytest.mark.slow
async def test_what_waits_to_be_taken_up_is_renewed_like_what_runs(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    """Many long logs are read one after the other, which may take longer than a lease."""
    specs = [background(tenant) for _ in range(2)]
    async with replica(database, Speaker(ANSWER)) as one:
        for spec in specs:
            await one.archive.accept(spec, None, owned=False)
        async with asyncio.TaskGroup() as group, locked(database_url, LOCK_LOGS):
            group.create_task(one.scheduler.claim_available())
            while not (await load(database, specs[1])).is_held:
                pass
            await let_time_pass(database, tenant, seconds=LEASE_S + 1)
            await one.keeper.heartbeat()
            for spec in specs:
                assert (await load(database, spec)).is_held
        await one.idle()
    for spec in specs:
        assert (await load(database, spec)).status == "completed"


async def cancel(connection: Connection, spec: RunSpec) -> None:
    tenant_id, end = spec.principal.tenant_id, pack([outcome.cancelled(spec.head.created_at)])
    await turn_to(connection, tenant_id)
    row = LogRow(1, 1, end)
    created_at = datetime_of(spec.head.created_at)
    await events.add(connection, Claim(tenant_id, spec.head.uuid, 2), created_at, row)
    await change(connection, spec, "UPDATE responses SET epoch = 2, status = 'cancelled'")


async def delete(connection: Connection, spec: RunSpec) -> None:
    await change(connection, spec, "DELETE FROM responses")
    await connection.execute(Statement("DELETE FROM events"), {})


async def change(connection: Connection, spec: RunSpec, statement: str) -> None:
    await connection.execute(Statement(f"{statement} WHERE id = :id"), {"id": spec.head.uuid})


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", [cancel, delete])
async def test_what_is_cancelled_or_deleted_before_it_is_taken_up_is_no_defect(
    database: Database,
    database_url: str,
    tenant: TenantId,
    meanwhile: Callable[[Connection, RunSpec], Awaitable[None]],
) -> None:
    spec = background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await one.archive.accept(spec, None, owned=False)
        with captured_logs(of=takeover_scheduler.__name__) as logs:
            async with asyncio.TaskGroup() as group, locked(database_url, LOCK_LOGS) as other:
                group.create_task(one.scheduler.claim_available())
                while not (await load(database, spec)).is_held:
                    pass
                await meanwhile(other, spec)
        assert one.supervisor.claimed == 0
    assert not logs


@pytest.mark.slow
async def test_nothing_that_was_claimed_while_a_process_began_to_drain_stays_with_it(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    specs = [background(tenant) for _ in range(2)]
    process = Process.of(gateway_settings(database_url, []))
    for spec in specs:
        await process.replica.dependencies.archive.accept(spec, None, owned=False)
    async with AsyncExitStack() as meanwhile:
        await meanwhile.enter_async_context(locked(database_url, LOCK_LOGS))
        async with process.running(), asyncio.TaskGroup() as group:
            while not (await load(database, specs[1])).is_held:
                pass
            draining = group.create_task(process.begin_drain())
            await meanwhile.aclose()
            await draining
            for spec in specs:
                stored = await load(database, spec)
                assert (stored.status, stored.is_held) == ("in_progress", False)
