"""What happens once, and may be waited for."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gateway.concurrency import OnceEvent, ResettableEvent, start_task


async def test_all_who_wait_go_on_when_it_comes() -> None:
    moment = OnceEvent()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(moment.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        assert not moment.is_set()
        moment.set()
    assert moment.is_set()


async def test_nobody_waits_for_what_has_come() -> None:
    moment = OnceEvent()
    moment.set()
    moment.set()
    await moment.wait()


async def test_who_no_longer_waits_keeps_nobody_else_waiting() -> None:
    moment = OnceEvent()
    async with asyncio.TaskGroup() as group:
        impatient, patient = (group.create_task(moment.wait()) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        late = group.create_task(moment.wait())
        await asyncio.sleep(0)
        late.cancel()
        moment.set()
        await patient
    assert late.cancelled()


async def test_who_waits_for_a_while_is_told_whether_it_came() -> None:
    moment = OnceEvent()
    assert not await moment.within(0.0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(moment.within(60.0))
        await asyncio.sleep(0)
        moment.set()
    assert waiting.result()
    assert await moment.within(0.0)


async def test_who_waits_for_a_while_may_be_cancelled() -> None:
    moment = OnceEvent()
    async with asyncio.TaskGroup() as group:
        impatient = group.create_task(moment.within(60.0))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
    moment.set()


async def test_a_signal_may_come_again() -> None:
    signal = ResettableEvent()
    signal.set()
    await signal.wait()
    signal.clear()
    assert not signal.is_set()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(signal.wait())
        await asyncio.sleep(0)
        signal.set()
        signal.clear()
    assert waiting.done(), "it came while this one waited"


async def test_a_task_that_is_started_has_the_outcome_of_its_work() -> None:
    gate, done = asyncio.Event(), list[str]()

    async def work() -> None:
        done.append("begun")
        await gate.wait()
        raise ValueError("a defect")

    task = start_task(work())
    await asyncio.sleep(0)
    assert done == ["begun"]
    gate.set()
    with pytest.raises(ValueError, match="a defect"):
        await task


@pytest.mark.skipif(sys.version_info < (3, 12), reason="from Python 3.12 on tasks begin at once")
async def test_the_first_step_of_a_task_is_done_when_it_has_been_started() -> None:
    gate, steps = asyncio.Event(), list[str]()

    async def work() -> None:
        steps.append("first")
        await gate.wait()
        steps.append("second")

    async def work_of_one_step() -> None:
        steps.append("only")

    waiting, ended = start_task(work()), start_task(work_of_one_step())
    assert (steps, waiting.done(), ended.done()) == (["first", "only"], False, True)
    gate.set()
    await waiting
    assert steps == ["first", "only", "second"]
