"""Writing without waiting: all that can be done at once is, and the rest is done in a task."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.writing import Later, begin


async def test_what_has_nothing_to_wait_for_is_done_at_once() -> None:
    done: list[int] = []

    async def send() -> None:
        done.append(1)

    assert begin(send()) is None
    assert done == [1]


async def test_what_has_to_wait_goes_on_where_it_is_awaited() -> None:
    room, done = asyncio.Event(), []

    async def send() -> None:
        done.append("begun")
        await room.wait()
        await asyncio.sleep(0)
        done.append("sent")

    rest = begin(send())
    assert rest is not None
    assert done == ["begun"]
    room.set()
    await rest
    assert done == ["begun", "sent"]


async def test_what_was_waited_for_may_have_come_before_anybody_waits() -> None:
    room = asyncio.Event()
    rest = begin(_until(room))
    room.set()
    await asyncio.sleep(0)
    assert rest is not None
    await rest


async def test_what_it_raises_is_raised_where_it_is_done() -> None:
    async def broken(room: asyncio.Event | None = None) -> None:
        if room is not None:
            await room.wait()
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        begin(broken())
    room = asyncio.Event()
    rest = begin(broken(room))
    assert rest is not None
    room.set()
    with pytest.raises(ValueError, match="a defect"):
        await rest


@pytest.mark.parametrize("waits", [1, 2])
async def test_a_task_that_waits_for_the_rest_may_be_cancelled(waits: int) -> None:
    left: list[int] = []
    rooms = [asyncio.Event() for _ in range(2)]
    reached = asyncio.Event()

    async def send() -> None:
        try:
            await rooms[0].wait()
            reached.set()
            await rooms[1].wait()
        finally:
            left.append(1)

    rest = begin(send())
    assert rest is not None
    waiting = asyncio.ensure_future(_await(rest))
    if waits == 2:
        rooms[0].set()
        await reached.wait()
    else:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert left == [1]
    assert not rooms[waits - 1]._waiters


async def test_work_for_later_is_done_when_it_is_awaited_and_may_be_left_undone() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    later = Later(work)
    assert not done
    await later
    assert done == [1]
    Later(work)


async def _until(room: asyncio.Event) -> None:
    await room.wait()


async def _await(rest: object) -> None:
    await rest  # type: ignore[misc]
