"""However parcels are committed, and whatever goes wrong meanwhile, the log is the same."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from gateway.entries import Entry, Finished, Queued, Tokens, pack, unpack
from gateway.eventlog import log_batches
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_writer import LogWriter, WriterBounds
from gateway.store import claims, endings, events, flushes, responses
from gateway.store.claims import Claim
from gateway.store.events import LogBatch, LogRow, day_of
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from tests.fakes.stored import CREATED, durable_response, finished, last_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.endings import FinishedResponse
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId

DAY = day_of(CREATED)
END = Finished("completed", 1_795_000_009)


class Run:
    """What was said under one claim, and how much of that is told to be in the log."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.said: list[Entry] = [Queued()]

    def says(self, count: int) -> LogBatch:
        new = [Tokens((len(self.said) + number,)) for number in range(count)]
        first = len(self.said)
        self.said += new
        return LogBatch(self.claim, DAY, first, count, pack(new))

    def unsays(self, parcel: LogBatch) -> None:
        del self.said[parcel.first_entry :]


class Process:
    """One process that writes."""

    def __init__(self, database: Database, journal: Flusher) -> None:
        self.database = database
        self.journal = journal

    async def begin(self, tenant: TenantId) -> Run:
        new = durable_response(owner="here")
        await responses.insert(self.database, tenant, new)
        return Run(Claim(tenant, new.uuid, 1))

    async def log(self, run: Run) -> list[Entry]:
        claim = run.claim
        rows = await flushes.read(self.database, claim.tenant_id, claim.uuid, DAY, bytes_max=10**6)
        assert [row.first_entry for row in rows[1:]] == [
            row.first_entry + row.count for row in rows[:-1]
        ]
        return [entry for row in rows for entry in unpack(row.entries)]

    async def settled(self, run: Run) -> int:
        """Entries that are where they belong."""
        claim = run.claim
        heads = await claims.heads(self.database, [(claim.tenant_id, claim.uuid)])
        return heads[claim.uuid].next_entry

    async def cancel(self, run: Run) -> int:
        """End it over the head of its owner; how many entries that saw."""
        seen: list[int] = []

        async def end(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse:
            seen.append(stored.next_entry)
            last = last_row(stored.next_entry)
            return replace(finished(stored.uuid), entries=last)

        await endings.conclude(self.database, run.claim.tenant_id, run.claim.uuid, end)
        return seen[0]

    async def flushes(self) -> int:
        async with self.database.runs_transaction() as connection:
            count: int = await connection.scalar(Statement("SELECT count(*) FROM flushes"))
            return count


class Settling(Flusher):
    """Settles whatever it can between two flushes."""

    @override
    async def append(self, parcels: Sequence[LogBatch]) -> frozenset[UUID]:
        await self.settle()
        return await super().append(parcels)


@pytest.fixture
def process(database: Database) -> Process:
    return Process(database, Flusher(database, "here", settle_interval_s=3600))


@pytest.fixture
def settling(database: Database) -> Process:
    return Process(database, Settling(database, "here", settle_interval_s=0))


async def test_the_first_parcel_goes_into_the_log_and_short_ones_into_flushes(
    process: Process, tenant: TenantId, other_tenant: TenantId
) -> None:
    runs = [await process.begin(of) for of in (tenant, tenant, other_tenant)]
    uuids = {run.claim.uuid for run in runs}
    assert await process.journal.append([run.says(1) for run in runs]) == uuids
    assert [await process.settled(run) for run in runs] == [2, 2, 2]
    assert await process.journal.append([run.says(2) for run in runs]) == uuids
    assert await process.journal.append([run.says(1) for run in runs]) == uuids
    assert [await process.settled(run) for run in runs] == [2, 2, 2]
    assert await process.flushes() == 4
    assert [await process.log(run) for run in runs] == [run.said for run in runs]


async def test_a_claim_that_is_younger_than_a_known_fence_is_flushed_at_once(
    process: Process, tenant: TenantId
) -> None:
    journal = process.journal
    assert journal.fence(tenant) is None
    await journal.append([(await process.begin(tenant)).says(1)])
    fence = journal.fence(tenant)
    assert fence is not None
    run = await process.begin(tenant)
    journal.begins(run.claim, DAY, 1, fence)
    assert await journal.append([run.says(2)]) == {run.claim.uuid}
    assert await process.settled(run) == 1
    assert await process.log(run) == run.said
    assert await process.cancel(run) == 3
    assert not await journal.append([run.says(1)])


async def test_a_claim_that_may_be_older_than_the_fence_is_proven_by_its_head(
    process: Process, tenant: TenantId
) -> None:
    journal = process.journal
    first = await process.begin(tenant)
    await journal.append([first.says(1)])
    fence = journal.fence(tenant)
    assert fence is not None
    lost, held = await process.begin(tenant), await process.begin(tenant)
    await process.cancel(lost)
    await journal.append([first.says(1)])
    assert journal.fence(tenant) != fence
    for run in (lost, held):
        journal.begins(run.claim, DAY, 1, fence)
    assert await journal.append([lost.says(1), held.says(1)]) == {held.claim.uuid}
    assert await process.settled(held) == 2


async def test_of_one_that_has_ended_nothing_is_settled_and_nothing_kept(
    process: Process, tenant: TenantId
) -> None:
    journal = process.journal
    run, other = await process.begin(tenant), await process.begin(tenant)
    for _ in range(2):
        await journal.append([run.says(1), other.says(1)])
    row = await journal.complete_row(run.claim, LogRow(3, 1, pack([END])))
    end = replace(finished(run.claim.uuid, epoch=1), entries=row)
    await endings.finish(process.database, tenant, end)
    journal.ended(run.claim)
    assert journal._positions.keys() == {other.claim.uuid}
    assert await process.log(run) == [*run.said, END]


async def test_a_long_parcel_takes_along_what_was_flushed_before(
    process: Process, tenant: TenantId
) -> None:
    run = await process.begin(tenant)
    for count in (1, 2, log_batches.ALONE_BYTES_MIN):
        await process.journal.append([run.says(count)])
    assert await process.settled(run) == len(run.said)
    assert await process.log(run) == run.said


async def test_flushes_are_settled_and_removed_even_of_those_that_say_no_more(
    settling: Process, tenant: TenantId
) -> None:
    busy, silent, over = [await settling.begin(tenant) for _ in range(3)]
    for _ in range(2):
        await settling.journal.append([run.says(1) for run in (busy, silent, over)])
    settling.journal.close(over.claim)
    assert await settling.journal.append([busy.says(1)]) == {busy.claim.uuid}
    for run in (busy, silent, over):
        assert await settling.settled(run) == 3
        assert await settling.log(run) == run.said
    assert await settling.flushes() == 1
    await settling.journal.append([silent.says(1)])
    assert await settling.log(silent) == silent.said


async def test_an_end_has_all_that_was_flushed_before_it(
    process: Process, tenant: TenantId
) -> None:
    run = await process.begin(tenant)
    await process.journal.append([run.says(1)])
    await process.journal.append([run.says(3)])
    row = await process.journal.complete_row(run.claim, LogRow(5, 1, pack([END])))
    assert row == LogRow(2, 4, pack([*run.said[2:], END]))
    process.journal.resume(run.claim)
    await process.journal.append([run.says(1)])
    assert await process.log(run) == run.said


@pytest.mark.slow
async def test_what_is_about_to_end_is_not_moved_under_its_feet(
    settling: Process, tenant: TenantId
) -> None:
    ending, other = await settling.begin(tenant), await settling.begin(tenant)
    for _ in range(2):
        await settling.journal.append([ending.says(1), other.says(1)])
    await settling.journal.complete_row(ending.claim, LogRow(3, 1, pack([END])))
    for _ in range(2):
        await settling.journal.append([other.says(1)])
    assert await settling.settled(ending) == 2
    assert await settling.log(ending) == ending.said
    settling.journal.close(ending.claim)
    await settling.journal.append([other.says(1)])
    assert await settling.settled(ending) == 3


@pytest.mark.slow
async def test_one_that_was_given_up_before_its_end_leaves_nothing_behind(
    settling: Process, tenant: TenantId
) -> None:
    given_up, other = await settling.begin(tenant), await settling.begin(tenant)
    for _ in range(2):
        await settling.journal.append([given_up.says(1), other.says(1)])
    settling.journal.close(given_up.claim)
    await settling.journal.complete_row(given_up.claim, LogRow(3, 1, pack([END])))
    for _ in range(2):
        await settling.journal.append([other.says(1)])
    assert await settling.settled(given_up) == 3
    assert await settling.flushes() == 1


async def test_one_that_is_left_while_its_first_parcel_is_under_way_leaves_nothing_behind(
    settling: Process, tenant: TenantId
) -> None:
    left, other = await settling.begin(tenant), await settling.begin(tenant)

    class Closing(Settling):
        @override
        async def append(self, parcels: Sequence[LogBatch]) -> frozenset[UUID]:
            channels[left].close()
            return await super().append(parcels)

    journal = Closing(settling.database, "here", settle_interval_s=0)
    bounds = WriterBounds(100_000, 2_000, 20_000, retry_pause_s=0.005)
    writer = LogWriter(journal, bounds, metrics=Metrics(), committed=lambda _: None)
    channels = {
        run: writer.open(run.claim, DAY, 1, durable=lambda _: None, lost=lambda: None)
        for run in (left, other)
    }
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(writer.run())
        for channel in channels.values():
            channel.append(Tokens((1,)))
        for _ in range(2):
            await channels[other].flushed()
            channels[other].append(Tokens((2,)))
        await channels[other].flushed()
        writing.cancel()
    assert await settling.settled(left) == 2
    assert journal._positions.keys() == {other.claim.uuid}


async def test_of_tenants_that_are_gone_nothing_is_kept_in_memory(
    settling: Process, tenant: TenantId, other_tenant: TenantId
) -> None:
    gone, other = await settling.begin(other_tenant), await settling.begin(tenant)
    for _ in range(2):
        await settling.journal.append([gone.says(1), other.says(1)])
    settling.journal.close(gone.claim)
    for _ in range(3):
        await settling.journal.append([other.says(1)])
    assert settling.journal._numbers.keys() == {tenant}


async def test_one_that_is_cancelled_costs_the_others_nothing(
    process: Process, tenant: TenantId
) -> None:
    gone, other = await process.begin(tenant), await process.begin(tenant)
    for _ in range(2):
        await process.journal.append([gone.says(1), other.says(1)])
    assert await process.cancel(gone) == 3
    said = await process.log(gone)
    committed = await process.journal.append([gone.says(1), other.says(1)])
    assert committed == {other.claim.uuid}
    assert await process.log(gone) == said
    assert await process.log(other) == other.said
    heads = await process.journal.heads([(tenant, gone.claim.uuid)])
    assert heads[gone.claim.uuid].epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_the_log_is_what_was_told_to_be_committed(
    database: Database, tenant: TenantId, other_tenant: TenantId, seed: int
) -> None:
    """Ends tried and given up, claims lost, flushes settled at any time, answers that were lost."""
    chance = random.Random(seed)
    process = Process(database, Flusher(database, "here", settle_interval_s=0.003))
    runs = [await process.begin(chance.choice([tenant, other_tenant])) for _ in range(6)]
    gone: dict[UUID, list[Entry]] = {}
    for _ in range(60):
        happens = chance.random()
        run = chance.choice(runs)
        if happens < 0.06 and run.claim.uuid not in gone:
            assert await process.cancel(run) == len(run.said)
            gone[run.claim.uuid] = run.said
        elif happens < 0.12 and run.claim.uuid not in gone:
            await process.journal.complete_row(run.claim, LogRow(len(run.said), 1, pack([END])))
            process.journal.resume(run.claim)
        elif happens < 0.18:
            await lose_an_answer(process.journal, run, is_held=run.claim.uuid not in gone)
        else:
            chosen = chance.sample(runs, chance.randint(1, len(runs)))
            parcels = [one.says(chance.choice([1, 1, 1, 2, 200])) for one in chosen]
            committed = await process.journal.append(parcels)
            for one, parcel in zip(chosen, parcels, strict=True):
                if one.claim.uuid not in committed:
                    one.unsays(parcel)
            assert committed == {one.claim.uuid for one in chosen}.difference(gone)
        for one in runs:
            if one.claim.uuid not in gone:
                assert await process.log(one) == one.said


async def lose_an_answer(journal: Flusher, run: Run, *, is_held: bool) -> None:
    """What was sent is in the log, and whoever sent it is told that nobody knows."""
    parcel = run.says(1)
    committed = await journal.append([parcel])
    journal._is_synced = False
    heads = await journal.heads([(run.claim.tenant_id, run.claim.uuid)])
    assert (run.claim.uuid in committed) == is_held
    if is_held:
        assert heads[run.claim.uuid].next_entry == len(run.said)
    else:
        run.unsays(parcel)


async def test_one_that_ends_while_a_lost_answer_is_looked_for_leaves_nothing_behind(
    process: Process, tenant: TenantId
) -> None:
    journal = process.journal
    run, other = await process.begin(tenant), await process.begin(tenant)
    for _ in range(2):
        await journal.append([run.says(1), other.says(1)])
    row = await journal.complete_row(run.claim, LogRow(3, 1, pack([END])))
    end = replace(finished(run.claim.uuid, epoch=1), entries=row)
    await endings.finish(process.database, tenant, end)
    journal._is_synced = False
    looking = asyncio.create_task(journal.heads([(tenant, other.claim.uuid)]))
    await asyncio.sleep(0)
    assert journal._lock.locked()
    journal.ended(run.claim)
    await looking
    assert run.claim.uuid not in journal._positions


async def test_a_flush_refused_by_a_connection_that_broke_is_found_out_about(
    process: Process, tenant: TenantId
) -> None:
    run = await process.begin(tenant)
    await process.journal.append([run.says(1)])
    await process.journal.append([run.says(1)])
    wrong = LogBatch(run.claim, DAY, 3, 2**40, pack([Queued()]))
    with pytest.raises(struct.error):
        await process.journal.append([wrong])
    heads = await process.journal.heads([(tenant, run.claim.uuid)])
    assert heads[run.claim.uuid].next_entry == 3
    rows = await events.read(process.database, tenant, run.claim.uuid, DAY, bytes_max=10**6)
    assert sum(row.count for row in rows) == 3
    await process.journal.append([run.says(1)])
    assert await process.log(run) == run.said
