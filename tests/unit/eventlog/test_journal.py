"""Both forms of a journal: what is shown when, and what an end that fails leaves behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.entries import Alive, Entry, Finished, Mark, Queued, unpack
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.eventlog.fold_slices import EntryBuffer
from gateway.eventlog.journal import DurableJournal, Journal, MemoryJournal
from gateway.eventlog.live_log import LiveLog
from tests.fakes.following import following
from tests.fakes.log_rows import BOUNDS, Desk, writing
from tests.fakes.toy_logs import new_fold

if TYPE_CHECKING:
    from gateway.store.events import LogRow

END = Finished("completed", 1_795_000_009)


class Commit:
    """Keeps the entries that were not written yet, if there is a log; fails as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.committed: list[tuple[int, list[Entry]] | None] = []

    async def __call__(self, finished: Finished, fold: object, rest: LogRow | None = None) -> None:
        if self.failures:
            raise self.failures.pop(0)
        known = None if rest is None else (rest.first_entry, unpack(rest.entries))
        self.committed.append(known)


async def types(journal: Journal) -> list[str]:
    return [event.type async for batch in following(journal.live.stream) for event in batch]


def durable(desk: Desk) -> DurableJournal:
    fold = new_fold()
    fold.apply(Queued())
    live = LiveLog.restored(new_fold, EntryBuffer([Queued()]), fold=fold, reader_events_max=100)
    return DurableJournal(live, desk.open(durable=live.show))


async def test_memory_is_shown_at_once_and_its_end_after_the_commit() -> None:
    live, commit = LiveLog(new_fold, reader_events_max=100), Commit()
    journal = MemoryJournal(live)
    journal.append(Alive())
    assert not live.is_holding
    assert not journal.is_full
    await journal.room()
    await journal.committed()
    await journal.finish(END, commit)
    assert commit.committed == [None]
    assert (await types(journal))[-1] == "response.completed"


async def test_what_nobody_keeps_ends_without_a_commit() -> None:
    journal = MemoryJournal(LiveLog(new_fold, reader_events_max=100))
    await journal.finish(END, None)
    assert journal.live.closed.is_set()


@pytest.mark.requirement("resume.log-first")
async def test_durable_entries_are_shown_when_they_are_committed() -> None:
    async with writing() as desk:
        journal = durable(desk)
        journal.append(Alive())
        held = [journal.live.is_holding]
        await journal.committed()
        assert [*held, journal.live.is_holding] == [True, False]
        await journal.room()
        assert not journal.is_full


@pytest.mark.requirement("resume.log-first")
async def test_a_durable_end_takes_with_it_what_is_not_under_way_yet() -> None:
    async with writing() as desk:
        commit = Commit()
        journal = durable(desk)
        journal.append(Alive())
        await journal.finish(END, commit)
        assert commit.committed == [(1, [Alive()])]
        assert not desk.rows.batches
        assert not journal.channel.is_open
        assert (await types(journal))[-1] == "response.completed"


async def test_a_durable_end_waits_for_what_is_under_way() -> None:
    async with writing() as desk, asyncio.TaskGroup() as group:
        commit = Commit()
        journal = durable(desk)
        desk.rows.gate.clear()
        journal.append(Alive())
        await desk.rows.reached.wait()
        journal.append(Alive())
        end = group.create_task(journal.finish(END, commit))
        await asyncio.sleep(0)
        assert not commit.committed
        desk.rows.gate.set()
        await end
        assert commit.committed == [(2, [Alive()])]
        assert desk.rows.batches == [1]


async def test_a_long_commit_is_marked_in_front_of_the_next_entry() -> None:
    async with writing(bounds=replace(BOUNDS, long_commit_s=0.0)) as desk:
        journal = durable(desk)
        for _ in range(2):
            journal.append(Alive())
            await journal.committed()
        # The mark of the second has no commit of its own.
        first, mark, second = desk.rows.log(journal.channel.claim)
        assert (first, second) == (Alive(), Alive())
        assert isinstance(mark, Mark)
        assert mark.step == "commit"
        assert int(mark.place) >= 0
        assert journal.live.fold.timeline.moments[-1][0] == "commit"


async def test_each_long_commit_is_marked_though_two_end_between_two_entries() -> None:
    async with writing(bounds=replace(BOUNDS, long_commit_s=0.0)) as desk:
        journal = durable(desk)
        desk.rows.gate.clear()
        journal.append(Alive())
        await desk.rows.reached.wait()
        journal.append(Alive())
        desk.rows.gate.set()
        await journal.committed()
        journal.append(Alive())
        await journal.committed()
        entries = desk.rows.log(journal.channel.claim)
        assert [type(entry) for entry in entries] == [Alive, Alive, Mark, Mark, Alive]


async def test_a_long_commit_that_the_end_waits_for_is_marked_in_front_of_it() -> None:
    async with (
        writing(bounds=replace(BOUNDS, long_commit_s=0.0)) as desk,
        asyncio.TaskGroup() as group,
    ):
        commit = Commit()
        journal = durable(desk)
        desk.rows.gate.clear()
        journal.append(Alive())
        await desk.rows.reached.wait()
        end = group.create_task(journal.finish(END, commit))
        await asyncio.sleep(0)
        desk.rows.gate.set()
        await end
        ((first, rest),) = filter(None, commit.committed)
        assert (first, [type(entry) for entry in rest]) == (2, [Mark])
        kinds = [moment.kind for moment in journal.live.fold.timeline.moments]
        assert kinds[-2:] == ["commit", "finished"]


async def test_nothing_is_marked_behind_the_end_of_a_journal() -> None:
    async with writing(bounds=replace(BOUNDS, long_commit_s=0.0)) as desk:
        journal = durable(desk)
        journal.append(Alive())
        await journal.committed()
        journal.abandon()
        with pytest.raises(ClaimLost):
            journal.append(Alive())
        assert desk.rows.log(journal.channel.claim) == [Alive()]


async def test_what_was_said_is_in_the_log_although_its_end_is_not() -> None:
    async with writing() as desk:
        journal = durable(desk)
        journal.append(Alive())
        with pytest.raises(StoreUnavailable):
            await journal.finish(END, Commit(StoreUnavailable("away")))
        assert desk.rows.log(journal.channel.claim) == [Alive()]
        assert not journal.live.is_holding


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), ClaimLost()])
async def test_an_end_that_was_not_committed_was_never_there(failure: Exception) -> None:
    async with writing() as desk:
        journals: list[Journal] = [
            durable(desk),
            MemoryJournal(LiveLog(new_fold, reader_events_max=100)),
        ]
        for journal in journals:
            journal.append(Alive())
            with pytest.raises(type(failure)):
                await journal.finish(END, Commit(failure))
            assert not journal.live.fold.shown.is_finished
            assert not journal.live.closed.is_set()
            await journal.finish(END, Commit())
            assert (await types(journal))[-1] == "response.completed"


async def test_without_its_claim_a_durable_journal_commits_no_end() -> None:
    async with writing() as desk:
        commit = Commit()
        journal = durable(desk)
        desk.rows.table.rows[journal.channel.claim.uuid].epoch += 1
        journal.append(Alive())
        await journal.channel.moved.wait()
        with pytest.raises(ClaimLost):
            await journal.finish(END, commit)
        assert not commit.committed
        assert journal.live.is_holding


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_journal_that_was_released_is_freed_without_a_collection(is_durable: bool) -> None:
    """Its run refers to it, and what it calls back refers to its run."""

    class Owner:
        journal: Journal

        def lose(self) -> None: ...

    owner = Owner()
    async with writing() as desk:
        if is_durable:
            journal = durable(desk)
            journal.channel.lost = owner.lose
            owner.journal = journal
        else:
            live = LiveLog(new_fold, reader_events_max=100)
            owner.journal = MemoryJournal(live)
        owner.journal.append(Alive())
        owner.journal.release()
        with pytest.raises(ClaimLost):
            owner.journal.append(Alive())
        journal = live = None  # type: ignore[assignment]
        gone = weakref.ref(owner)
        gc.disable()
        try:
            del owner
            assert gone() is None
        finally:
            gc.enable()
