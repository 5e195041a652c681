from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StoreUnavailable
from gateway.group_commit import Batcher, GroupCommit, commit_but_defects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Database:
    """Commits rows when it is told to. `outcomes` are those of its commits, in order."""

    def __init__(self, *, rows_max: int = 100, interval_s: float = 0.0) -> None:
        self.batcher: Batcher[int, str] = Batcher(
            self._commit_all, rows_max=rows_max, interval_s=interval_s
        )
        self.batches: list[list[int]] = []
        self.committed: list[int] = []
        self.left_out: set[int] = set()
        self.failures: list[Exception | None] = []
        self.may_go_on = asyncio.Semaphore(0)
        self.begun = asyncio.Semaphore(0)

    async def _commit_all(self, rows: Sequence[int]) -> dict[int, str]:
        self.batches.append(list(rows))
        self.begun.release()
        await self.may_go_on.acquire()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        became = {at: f"row {row}" for at, row in enumerate(rows) if row not in self.left_out}
        self.committed += [rows[at] for at in became]
        return became


@asynccontextmanager
async def running(database: Database) -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(database.batcher.run())
        await asyncio.sleep(0)
        yield group
        task.cancel()


async def test_without_anybody_who_commits_each_goes_alone() -> None:
    assert await Database().batcher.commit(1) is None


async def test_what_comes_soon_after_a_commit_waits_for_company() -> None:
    database = Database(interval_s=3600.0)
    database.may_go_on.release()
    async with running(database) as group:
        assert await database.batcher.commit(1) == "row 1"
        others = [group.create_task(database.batcher.commit(row)) for row in (2, 3)]
        for _ in range(5):
            await asyncio.sleep(0)
    assert [other.result() for other in others] == [None, None]
    assert database.batches == [[1]]


async def test_what_comes_while_one_is_under_way_goes_together() -> None:
    database = Database()
    async with running(database) as group:
        first = group.create_task(database.batcher.commit(1))
        await database.begun.acquire()
        others = [group.create_task(database.batcher.commit(row)) for row in (2, 3)]
        await asyncio.sleep(0)
        database.may_go_on.release()
        assert await first == "row 1"
        await database.begun.acquire()
        database.may_go_on.release()
        assert [await other for other in others] == ["row 2", "row 3"]
    assert database.batches == [[1], [2, 3]]


async def test_one_who_leaves_while_waiting_is_not_committed() -> None:
    database = Database()
    async with running(database) as group:
        first = group.create_task(database.batcher.commit(1))
        await database.begun.acquire()
        gone = group.create_task(database.batcher.commit(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        database.may_go_on.release()
        await first
    assert database.batches == [[1]]


async def test_one_who_leaves_while_committed_leaves_the_others_theirs() -> None:
    database = Database()
    async with running(database) as group:
        both = [group.create_task(database.batcher.commit(row)) for row in (1, 2)]
        await database.begun.acquire()
        both[0].cancel()
        await asyncio.sleep(0)
        database.may_go_on.release()
        assert await both[1] == "row 2"
    assert database.committed == [1, 2]


async def test_when_the_lane_ends_what_waits_goes_alone_and_what_is_under_way_is_unknown() -> None:
    database = Database(rows_max=1)
    batcher = asyncio.ensure_future(database.batcher.run())
    await asyncio.sleep(0)
    both = [asyncio.ensure_future(database.batcher.commit(row)) for row in (1, 2)]
    await database.begun.acquire()
    batcher.cancel()
    with pytest.raises(StoreUnavailable):
        await both[0]
    assert await both[1] is None
    assert await database.batcher.commit(3) is None


ROWS = st.lists(
    st.tuples(st.sampled_from(["come", "leave", "commit"]), st.booleans(), st.integers(0, 5)),
    max_size=40,
)
FAILURES = st.lists(
    st.sampled_from([None, None, StoreUnavailable("away"), ValueError("a defect")]), max_size=20
)


@pytest.mark.slow
@given(deeds=ROWS, failures=FAILURES, rows_max=st.integers(1, 5))
async def test_each_gets_its_own_outcome_and_nothing_is_committed_twice(
    deeds: list[tuple[str, bool, int]], failures: list[Exception | None], rows_max: int
) -> None:
    """In any order of arrivals, departures, commits and failures."""
    database = Database(rows_max=rows_max)
    database.failures = list(failures)
    callers: list[asyncio.Task[str | None]] = []
    async with running(database):
        for deed, is_left_out, at in deeds:
            if deed == "come":
                row = len(callers)
                if is_left_out:
                    database.left_out.add(row)
                callers.append(asyncio.ensure_future(database.batcher.commit(row)))
            elif deed == "leave" and callers:
                callers[at % len(callers)].cancel()
            else:
                database.may_go_on.release()
            for _ in range(3):
                await asyncio.sleep(0)
        while not all(caller.done() for caller in callers):
            database.may_go_on.release()
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert len(set(database.committed)) == len(database.committed)
    for row, outcome in enumerate(outcomes):
        check(database, row, outcome)


def check(database: Database, row: int, outcome: str | BaseException | None) -> None:
    """Is what the caller was told of its row what became of it?"""
    if isinstance(outcome, str):
        assert outcome == f"row {row}"
        assert row in database.committed
    elif outcome is None:
        assert row not in database.committed
    else:
        assert isinstance(outcome, (StoreUnavailable, asyncio.CancelledError))


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(0, 5) | st.none(), max_size=30),
    size_max=st.integers(1, 8),
    taken_back=st.sets(st.integers(0, 30)),
)
async def test_batches_hold_each_wanted_row_once_and_in_order(
    sizes: list[int | None], size_max: int, taken_back: set[int]
) -> None:
    """A row has a size, or None once nobody wants it; some batches are put back once."""
    rows: GroupCommit[int] = GroupCommit(_nothing, size_max=size_max, size_of=sizes.__getitem__)
    for number in range(len(sizes)):
        rows.put(number)
    seen: list[int] = []
    turn = 0
    while rows:
        batch = rows.take()
        if turn in taken_back:
            rows.put_back(batch)
            taken_back.remove(turn)
            continue
        turn += 1
        before_last = sum(sizes[row] or 0 for row in batch[:-1])
        assert before_last < size_max
        seen += batch
    assert seen == [number for number, size in enumerate(sizes) if size is not None]


async def _nothing(_rows: list[int]) -> None:
    pass


@pytest.mark.slow
@given(st.lists(st.booleans(), max_size=40))
async def test_a_defect_costs_the_others_nothing(are_bad: list[bool]) -> None:
    committed: list[int] = []
    given_up: list[int] = []

    async def commit(rows: Sequence[int]) -> None:
        if any(are_bad[row] for row in rows):
            raise ValueError
        committed.extend(rows)

    await commit_but_defects(range(len(are_bad)), commit, lambda row, _: given_up.append(row))
    assert committed == [row for row, is_bad in enumerate(are_bad) if not is_bad]
    assert given_up == [row for row, is_bad in enumerate(are_bad) if is_bad]


async def test_while_the_database_is_away_no_row_is_taken_for_a_defect() -> None:
    async def commit(_rows: Sequence[int]) -> None:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await commit_but_defects([1, 2], commit, lambda *_: pytest.fail("given up"))
