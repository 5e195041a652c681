"""A task that has begun when it is made is a task as any other."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import eager_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

STEPS = ("sleep", "wait", "timeout", "fail", "swallow")
mark: ContextVar[str] = ContextVar("mark", default="caller's")


class Broken(Exception):
    pass


async def work(steps: list[str], seen: list[str], gate: asyncio.Event) -> None:
    """Does what it is told, and notes whose context it finds itself in."""
    mark.set("its own")
    task = asyncio.current_task()
    try:
        for step in steps:
            assert asyncio.current_task() is task
            seen.append(f"{step} {mark.get()}")
            if step == "sleep":
                await asyncio.sleep(0)
            elif step == "wait":
                await gate.wait()
            elif step == "timeout":
                await _time_out(seen)
            elif step == "fail":
                raise Broken
            else:
                await _swallow(gate, seen)
    finally:
        seen.append(f"left in {mark.get()}")


async def _time_out(seen: list[str]) -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        seen.append("timed out")


async def _swallow(gate: asyncio.Event, seen: list[str]) -> None:
    try:
        await gate.wait()
    except asyncio.CancelledError:
        seen.append("swallowed")


async def outcome(start: Start, steps: list[str], cancelled_after: int | None) -> list[str]:
    seen: list[str] = []
    gate = asyncio.Event()
    task = start(work(steps, seen, gate))
    if cancelled_after is not None:
        for _ in range(cancelled_after):
            await asyncio.sleep(0)
        task.cancel()
    else:
        await asyncio.sleep(0)
    gate.set()
    try:
        await task
    except (Broken, asyncio.CancelledError) as error:
        seen.append(type(error).__name__)
    seen.append(f"cancelled {task.cancelled()}, {task.cancelling()} times")
    seen.append(mark.get())
    return seen


def plainly(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


def eagerly(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    before = asyncio.current_task()
    task = eager_task.start(work)
    assert asyncio.current_task() is before
    return task


@given(st.lists(st.sampled_from(STEPS), max_size=5))
def test_it_does_what_any_task_does(steps: list[str]) -> None:
    ours = asyncio.run(outcome(eagerly, steps, None))
    assert ours == asyncio.run(outcome(plainly, steps, None))


@given(st.lists(st.sampled_from(["wait", "swallow"]), max_size=3), st.integers(1, 3))
def test_it_is_cancelled_as_any_task_is(steps: list[str], rounds: int) -> None:
    ours = asyncio.run(outcome(eagerly, steps, rounds))
    assert ours == asyncio.run(outcome(plainly, steps, rounds))


async def test_its_first_step_is_taken_at_once_in_a_task_and_a_context_of_its_own() -> None:
    seen: list[str] = []
    caller = asyncio.current_task()
    task = eager_task.start(work(["sleep", "sleep"], seen, asyncio.Event()))
    assert seen == ["sleep its own"]
    assert asyncio.current_task() is caller
    assert mark.get() == "caller's"
    await task
    assert seen[1:] == ["sleep its own", "left in its own"]


async def test_one_that_is_cancelled_where_it_waits_first_is_cancelled_there() -> None:
    seen: list[str] = []
    waits = asyncio.Event()
    task = eager_task.start(work(["wait"], seen, waits))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[-1] == "left in its own"
    assert not waits._waiters


async def test_what_ends_in_its_first_step_is_over_though_it_is_cancelled() -> None:
    for steps, error in (([], None), (["fail"], Broken)):
        task = eager_task.start(work(steps, [], asyncio.Event()))
        task.cancel()
        await asyncio.wait([task])
        failure = task.exception()
        assert not task.cancelled()
        assert failure is None if error is None else isinstance(failure, error)


def test_nobody_needs_to_be_in_a_task_to_start_one() -> None:
    seen: list[str] = []
    tasks: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()

    def begin() -> None:
        tasks.append(eager_task.start(work(["sleep"], seen, asyncio.Event())))
        assert asyncio.current_task() is None
        tasks[0].add_done_callback(lambda _: loop.stop())

    loop.call_soon(begin)
    loop.run_forever()
    loop.close()
    assert seen[-1] == "left in its own"
