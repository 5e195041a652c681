"""Flushes are part of logs: for readers, takers, enders and erasers; and the fence holds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from gateway.entries import Queued, Tokens, pack, unpack
from gateway.ids import new_uuid
from gateway.store import claims, endings, events, flushes, remote_logs, responses
from gateway.store.claims import Claim, LogHead
from gateway.store.events import LogBatch, LogRow, day_of
from gateway.store.postgres.statements import Statement
from gateway.store.remote_logs import UNKNOWN, LogChanges, LogQuery
from gateway.tenancy import TenantId
from tests.fakes.loop_rounds import counted_rounds
from tests.fakes.stored import CREATED, TERMS, durable_response, finished, last_row, let_time_pass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from gateway.entries import Entry
    from gateway.store.endings import FinishedResponse
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse

DAY = day_of(CREATED)
SAID = [Tokens((number,)) for number in range(1, 10)]


class Owner:
    """A process that writes for one tenant, flush by flush."""

    def __init__(self, database: Database, tenant: TenantId, name: str = "here") -> None:
        self.database = database
        self.tenant = tenant
        self.name = name
        self.fence = 0

    async def begin(self) -> UUID:
        new = durable_response(owner=self.name)
        await responses.insert(self.database, self.tenant, new)
        fences = await flushes.fences(self.database, self.name, [self.tenant])
        self.fence = fences[self.tenant]
        return new.uuid

    async def flush(self, *said: tuple[UUID, int, int], epoch: int = 1) -> int | None:
        """Entries of responses: from this number, before that one."""
        batches = [
            LogBatch(Claim(self.tenant, uuid, epoch), DAY, start, stop - start, packed(start, stop))
            for uuid, start, stop in said
        ]
        async with self.database.runs_transaction() as connection:
            return await flushes.add(connection, self.name, self.fence, batches)

    async def log(self, uuid: UUID) -> list[Entry]:
        rows = await flushes.read(self.database, self.tenant, uuid, DAY, bytes_max=10**6)
        return [entry for row in rows for entry in unpack(row.entries)]

    async def flushed(self) -> bytes:
        """All that flushes hold."""
        async with self.database.runs_transaction() as connection:
            rows = await connection.execute(Statement("SELECT members, entries FROM flushes"))
            return b"".join([row.members + row.entries for row in rows])


def packed(start: int, stop: int) -> bytes:
    return pack(SAID[start - 1 : stop - 1])


@pytest.fixture
def owner(database: Database, tenant: TenantId) -> Owner:
    return Owner(database, tenant)


async def test_flushes_are_read_after_what_is_in_the_log(owner: Owner) -> None:
    one, other = await owner.begin(), await owner.begin()
    assert await owner.flush((one, 1, 3), (other, 1, 2))
    assert await owner.flush((one, 3, 4))
    assert await owner.log(one) == [Queued(), *SAID[:3]]
    assert await owner.log(other) == [Queued(), *SAID[:1]]


async def test_what_was_settled_by_its_owner_is_read_once(owner: Owner) -> None:
    one = await owner.begin()
    await owner.flush((one, 1, 3))
    batch = LogBatch(Claim(owner.tenant, one, 1), DAY, 1, 3, packed(1, 4))
    assert await events.append(owner.database, [batch]) == {one}
    await owner.flush((one, 4, 5))
    assert await owner.log(one) == [Queued(), *SAID[:4]]


@pytest.mark.slow
async def test_whoever_takes_a_response_over_has_all_and_its_owner_adds_nothing(
    owner: Owner,
) -> None:
    one, other = await owner.begin(), await owner.begin()
    await owner.flush((one, 1, 3), (other, 1, 2))
    await owner.flush((one, 3, 5))
    await let_time_pass(owner.database, owner.tenant, seconds=TERMS.lease_s + 1)
    kept = Claim(owner.tenant, other, 1)
    await claims.heartbeat(owner.database, "here", [kept], lease_s=TERMS.lease_s)
    (run,) = await claims.claim(owner.database, "there", TERMS, limit=9, take_over=True)
    assert (run.claim.uuid, run.next_entry) == (one, 5)
    rows = await events.read(owner.database, owner.tenant, one, DAY, bytes_max=10**6)
    assert rows == [LogRow(0, 5, pack([Queued(), *SAID[:4]]))]
    assert await owner.flush((one, 5, 6)) is None
    assert await owner.flush((other, 2, 3)) is None
    assert await owner.log(one) == [Queued(), *SAID[:4]]
    assert await owner.log(other) == [Queued(), *SAID[:1]]


async def test_a_log_goes_on_before_a_flush_that_a_failover_lost(owner: Owner) -> None:
    one, other = await owner.begin(), await owner.begin()
    await owner.flush((one, 1, 3))
    lost = await owner.flush((one, 3, 4))
    await owner.flush((one, 4, 6), (other, 1, 2))
    async with owner.database.runs_transaction() as connection:
        await connection.execute(
            Statement("DELETE FROM flushes WHERE number = :number"), {"number": lost}
        )
    assert await owner.log(one) == [Queued(), *SAID[:2]]
    await claims.release(owner.database, [Claim(owner.tenant, uuid, 1) for uuid in (one, other)])
    runs = await claims.claim(owner.database, "there", TERMS, limit=9, take_over=True)
    assert {run.claim.uuid: run.next_entry for run in runs} == {one: 3, other: 2}
    assert await owner.log(one) == [Queued(), *SAID[:2]]
    assert await owner.log(other) == [Queued(), *SAID[:1]]


@pytest.mark.slow
async def test_a_takeover_waits_for_a_flush_that_is_under_way_and_sees_it(owner: Owner) -> None:
    one = await owner.begin()
    await let_time_pass(owner.database, owner.tenant, seconds=TERMS.lease_s + 1)
    batch = LogBatch(Claim(owner.tenant, one, 1), DAY, 1, 2, packed(1, 3))
    async with asyncio.TaskGroup() as group, owner.database.runs_transaction() as connection:
        await flushes.add(connection, owner.name, owner.fence, [batch])
        taking = group.create_task(
            claims.claim(owner.database, "there", TERMS, limit=9, take_over=True)
        )
        await until_somebody_waits(owner.database)
    (run,) = taking.result()
    assert run.next_entry == 3


async def test_a_flush_waits_for_a_takeover_that_is_under_way_and_is_refused(owner: Owner) -> None:
    one = await owner.begin()
    async with asyncio.TaskGroup() as group, owner.database.transaction(owner.tenant) as connection:
        await flushes.settle_one(connection, owner.tenant, one)
        flushing = group.create_task(owner.flush((one, 1, 2)))
        await until_somebody_waits(owner.database)
    assert flushing.result() is None


async def until_somebody_waits(database: Database) -> None:
    waiting = Statement("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while True:
        async with database.owner_transaction() as connection:
            if await connection.scalar(waiting):
                return


async def test_an_end_by_another_gets_what_was_flushed(owner: Owner) -> None:
    one = await owner.begin()
    await owner.flush((one, 1, 3))

    async def end(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse:
        assert stored.next_entry == 3
        assert [entry for row in log for entry in unpack(row.entries)] == [Queued(), *SAID[:2]]
        return replace(finished(one), entries=last_row(3))

    ended = await endings.conclude(owner.database, owner.tenant, one, end)
    assert ended is not None
    assert ended.is_terminal
    assert await owner.flush((one, 3, 4)) is None


async def test_one_that_is_not_ended_after_all_goes_on_as_if_nobody_had_looked(
    owner: Owner,
) -> None:
    one = await owner.begin()
    await owner.flush((one, 1, 3))

    async def spare(stored: StoredResponse, log: list[LogRow]) -> None:
        assert stored.next_entry == 3

    spared = await endings.conclude(owner.database, owner.tenant, one, spare)
    assert spared is not None
    assert spared.status == "in_progress"
    heads = await claims.heads(owner.database, [(owner.tenant, one)])
    assert heads[one].next_entry == 1
    assert await owner.flush((one, 3, 4))
    assert await owner.log(one) == [Queued(), *SAID[:3]]


async def test_what_is_released_is_all_in_its_log(owner: Owner) -> None:
    one = await owner.begin()
    await owner.flush((one, 1, 4))
    await claims.release(owner.database, [Claim(owner.tenant, one, 1)])
    rows = await events.read(owner.database, owner.tenant, one, DAY, bytes_max=10**6)
    assert rows == [LogRow(0, 4, pack([Queued(), *SAID[:3]]))]
    (run,) = await claims.claim(owner.database, "there", TERMS, limit=9, take_over=False)
    assert run.next_entry == 4


async def test_nothing_is_left_of_a_deleted_response(owner: Owner) -> None:
    one, other = await owner.begin(), await owner.begin()
    await owner.flush((one, 1, 3), (other, 1, 2))
    await owner.flush((other, 2, 3), (one, 3, 4))
    assert await responses.delete(owner.database, owner.tenant, one)
    flushed = await owner.flushed()
    assert one.bytes not in flushed
    assert packed(3, 4)[1:] not in flushed
    assert await owner.log(other) == [Queued(), *SAID[:2]]
    assert await owner.flush((one, 4, 5)) is None


async def test_flushes_of_another_tenant_are_not_touched(
    owner: Owner, other_tenant: TenantId
) -> None:
    foreign = Owner(owner.database, other_tenant)
    one, theirs = await owner.begin(), await foreign.begin()
    await owner.flush((one, 1, 2))
    await foreign.flush((theirs, 1, 3))
    await responses.delete(owner.database, owner.tenant, one)
    assert await foreign.flush((theirs, 3, 4))
    assert await foreign.log(theirs) == [Queued(), *SAID[:3]]


async def test_adopting_settles_all_but_what_is_about_to_end(owner: Owner) -> None:
    one, ending = await owner.begin(), await owner.begin()
    await owner.flush((one, 1, 3), (ending, 1, 2))
    before = owner.fence
    fences = await flushes.adopt(owner.database, "here", [owner.tenant], but=[ending])
    assert fences[owner.tenant] > before
    heads = await claims.heads(owner.database, [(owner.tenant, one), (owner.tenant, ending)])
    assert (heads[one].next_entry, heads[ending].next_entry) == (3, 1)
    assert await owner.log(ending) == [Queued(), *SAID[:1]]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, flushes.SOUGHT_MAX + 3])
async def test_however_many_are_settled_each_gets_what_is_its_own(
    owner: Owner, number: int
) -> None:
    uuids = [await owner.begin() for _ in range(number)]
    for start in (1, 3):
        said = [(uuid, start, start + 2) for uuid in uuids]
        await owner.flush(*said)
    taken_away = uuids.pop()
    await flushes.adopt(owner.database, "here", [owner.tenant], but=[taken_away])
    asked = [(owner.tenant, uuid) for uuid in (*uuids, taken_away)]
    heads = await claims.heads(owner.database, asked)
    assert [heads[uuid].next_entry for _, uuid in asked] == [*[5] * len(uuids), 1]
    for uuid in uuids:
        rows = await events.read(owner.database, owner.tenant, uuid, DAY, bytes_max=10**6)
        assert rows == [LogRow(0, 5, pack([Queued(), *SAID[:4]]))]


async def test_flushes_go_when_they_are_not_needed_or_their_owner_left(owner: Owner) -> None:
    one = await owner.begin()
    numbers = [await owner.flush((one, number, number + 1)) for number in range(1, 5)]
    assert numbers[2] is not None
    await flushes.prune(owner.database, "here", {owner.tenant: numbers[2]})
    assert (await owner.flushed()).count(one.bytes) == 2
    assert await flushes.remove_left(owner.database, silent_s=-1) == 0
    assert await responses.delete(owner.database, owner.tenant, one)
    assert await flushes.remove_left(owner.database, silent_s=3600) == 0
    assert await flushes.remove_left(owner.database, silent_s=-1) == 2
    assert await owner.flush((one, 5, 6)) is None
    fence, _ = owner.fence, await owner.begin()
    assert owner.fence > fence


@pytest.mark.slow
async def test_pruning_waits_for_nobody_who_erases(owner: Owner) -> None:
    one = await owner.begin()
    for start in (1, 2):
        await owner.flush((one, start, start + 1))
    everything = {owner.tenant: 2**62}
    async with owner.database.transaction(owner.tenant) as connection:
        await flushes.erase(connection, owner.tenant, one)
        await flushes.prune(owner.database, "here", everything)
    assert await owner.flushed()
    await flushes.prune(owner.database, "here", everything)
    assert await owner.flushed() == b""


class Unsearched(bytes):
    """Members that are looked at one after the other."""

    @override
    def find(self, *_: object) -> int:
        raise AssertionError("they were searched for one of many")


def test_the_time_to_settle_does_not_grow_with_the_square_of_the_responses() -> None:
    claims_of_all = [Claim(TenantId(new_uuid()), new_uuid(), 1) for _ in range(99)]
    batches = [LogBatch(claim, DAY, 1, 2, packed(1, 3)) for claim in claims_of_all]
    members = Unsearched(flushes.members_of(batches))
    entries = b"".join([batch.entries for batch in batches])
    asked = {claim.uuid.bytes for claim in claims_of_all[1:]}
    found = list(flushes.parts_of(asked, members, entries))
    assert {(uuid, epoch) for uuid, epoch, _ in found} == {(uuid, 1) for uuid in asked}
    assert {part for _, _, part in found} == {LogRow(1, 2, packed(1, 3))}


async def test_the_event_loop_has_its_turn_while_many_are_settled() -> None:
    tenant, count = TenantId(new_uuid()), 3 * flushes.READ_AT_ONCE
    claims_of_all = [Claim(tenant, new_uuid(), 1) for _ in range(count)]
    batches = [LogBatch(claim, DAY, 1, 2, packed(1, 3)) for claim in claims_of_all]
    members = flushes.members_of(batches)
    entries = b"".join([batch.entries for batch in batches])
    left = [
        flushes.LockedResponse(tenant, claim.uuid, "lost", 1, 1, DAY) for claim in claims_of_all
    ]
    async with counted_rounds() as rounds:
        pieces = await flushes._pieces(left, [(tenant, "lost", members, entries)])
    assert pieces == [(one, LogRow(1, 2, packed(1, 3))) for one in left]
    assert rounds.count >= count // flushes.READ_AT_ONCE


class Watcher:
    """A process that follows responses, of which it knows nothing at first."""

    def __init__(self, owner: Owner, *uuids: UUID) -> None:
        self.seen: remote_logs.Seen = {}
        self._owner = owner
        self.asked = {
            uuid: LogQuery(owner.tenant, uuid, uuid.bytes, DAY, UNKNOWN, None) for uuid in uuids
        }

    async def poll(self, *, is_due: bool = False) -> LogChanges:
        """Look at all of them, and keep in mind what was found."""
        wanted = {one.key for one in self.asked.values()}
        asked = [replace(one, is_due=is_due) for one in self.asked.values()]
        found = await remote_logs.poll(self._owner.database, asked, self.seen, wanted)
        for uuid, one in self.asked.items():
            entries = 0 if one.entries == UNKNOWN else one.entries
            head = found.heads.get(uuid)
            ends = [row.first_entry + row.count for key, _, row in found.parts if key == one.key]
            entries = max(entries, head.next_entry if head else 0, *ends, 0)
            owner = found.owners.get(uuid, one.owner)
            self.asked[uuid] = replace(one, entries=entries, owner=owner)
        return found


async def test_a_look_brings_heads_and_what_is_new(owner: Owner) -> None:
    one = await owner.begin()
    watcher = Watcher(owner, one)
    await owner.flush((one, 1, 2))
    first = await watcher.poll()
    assert first.heads == {one: LogHead(1, 1, "in_progress")}
    assert first.owners == {one: owner.name}
    assert first.parts == [(one.bytes, 1, LogRow(1, 1, packed(1, 2)))]
    assert (await watcher.poll()).parts == []
    await owner.flush((one, 2, 4))
    again = await watcher.poll()
    assert again.parts == [(one.bytes, 1, LogRow(2, 2, packed(2, 4)))]
    assert not again.heads
    assert (await watcher.poll(is_due=True)).heads == {one: LogHead(1, 1, "in_progress")}


@pytest.mark.slow
async def test_a_look_brings_what_is_in_its_place_of_logs_that_were_in_no_flush(
    owner: Owner,
) -> None:
    """Beside others that were, and only what comes after that which is known."""
    one, two = await owner.begin(), await owner.begin()
    watcher = Watcher(owner, one, two)
    await owner.flush((one, 1, 3), (two, 1, 2))
    await watcher.poll()
    settled = LogBatch(Claim(owner.tenant, one, 1), DAY, 1, 4, packed(1, 5))
    assert await events.append(owner.database, [settled])
    await owner.flush((two, 2, 3))
    found = await watcher.poll()
    assert found.heads == {one: LogHead(1, 5, "in_progress")}
    assert found.parts == [
        (two.bytes, 1, LogRow(2, 1, packed(2, 3))),
        (one.bytes, 1, LogRow(1, 4, packed(1, 5))),
    ]
    assert (await watcher.poll()).parts == []


async def test_a_look_brings_the_end_and_leaves_long_rows_and_many_to_others(owner: Owner) -> None:
    one = await owner.begin()
    watcher = Watcher(owner, one)
    await watcher.poll()
    claim = Claim(owner.tenant, one, 1)
    long = pack([Tokens(tuple(range(remote_logs.ROW_BYTES_MAX)))])
    assert await events.append(owner.database, [LogBatch(claim, DAY, 1, 1, long)])
    assert (await watcher.poll()).parts == []
    for entry in range(2, 2 + remote_logs.ROWS_MAX):
        row = LogBatch(claim, DAY, entry, 1, packed(entry, entry + 1))
        assert await events.append(owner.database, [row])
    last = LogRow(2 + remote_logs.ROWS_MAX, 1, b".")
    await endings.finish(
        owner.database, owner.tenant, replace(finished(one, epoch=1), entries=last)
    )
    found = await watcher.poll()
    head = found.heads[one]
    assert head is not None
    assert head.status == "completed"
    assert found.owners == {one: None}
    assert [row.first_entry for _, _, row in found.parts] == [2, 3, 4, 5]


@pytest.mark.slow
async def test_the_event_loop_has_its_turn_while_a_look_finds_much(owner: Owner) -> None:
    one = await owner.begin()
    others = [(new_uuid(), 1, 2) for _ in range(flushes.READ_AT_ONCE)]
    for start in (1, 2, 3):
        await owner.flush((one, start, start + 1), *others)
    turns_at = list[int]()

    class Wanted(set[bytes]):
        """Knows how often the loop came round before each flush was looked through."""

        @override
        def __iter__(self) -> Iterator[bytes]:
            turns_at.append(rounds.count)
            return super().__iter__()

    asked = [LogQuery(owner.tenant, one, one.bytes, DAY, UNKNOWN, None)]
    async with counted_rounds() as rounds:
        found = await remote_logs.poll(owner.database, asked, {}, Wanted([one.bytes]))
    assert [part.first_entry for _, _, part in found.parts] == [1, 2, 3]
    first, second, third = turns_at
    assert first < second < third


async def test_of_a_response_that_is_not_there_a_look_finds_nothing(owner: Owner) -> None:
    unknown = new_uuid()
    assert (await Watcher(owner, unknown).poll()).heads == {unknown: None}
    assert not (await Watcher(owner).poll()).heads
