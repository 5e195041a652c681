"""Small work is done at once, large work beside the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gateway.errors import RateLimited
from gateway.services.executor import WORKS_FOR, ThreadExecutor

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("size_bytes", "inline"), [(10, True), (11, False)])
async def test_large_work_leaves_the_event_loop_alone(size_bytes: int, inline: bool) -> None:
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=10)) as threads:
        worker = await threads.run(threading.get_ident, size_bytes=size_bytes)
    assert (worker == threading.get_ident()) is inline


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is that of a process elsewhere")
async def test_threads_give_way_and_the_event_loop_does_not() -> None:
    niceness = partial(os.getpriority, os.PRIO_PROCESS, 0)
    own = niceness()
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=0, nice=3)) as threads:
        found = [await threads.run(niceness, size_bytes=1), await threads.run_accepted(niceness)]
    assert found == [min(own + 3, 19)] * 2
    assert niceness() == own


async def test_what_work_raises_is_raised() -> None:
    def refuse() -> None:
        raise ValueError("too long")

    with (
        closing(ThreadExecutor(threads_max=1, inline_bytes_max=10)) as threads,
        pytest.raises(ValueError, match="too long"),
    ):
        await threads.run(refuse, size_bytes=11)


async def test_what_was_accepted_is_never_refused_nor_kept_waiting_by_requests() -> None:
    go_on = threading.Event()
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=0, waiting_bytes_max=1)) as threads:
        async with asyncio.TaskGroup() as group:
            group.create_task(threads.run(go_on.wait, size_bytes=99))
            await asyncio.sleep(0)
            worker = await threads.run_accepted(threading.get_ident)
            go_on.set()
    assert worker != threading.get_ident()


async def test_work_that_would_make_too_much_wait_is_refused_and_taken_when_there_is_room() -> None:
    go_on = threading.Event()
    with closing(
        ThreadExecutor(threads_max=1, inline_bytes_max=0, waiting_bytes_max=10)
    ) as threads:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(threads.run(go_on.wait, size_bytes=99))  # alone it may be
            await asyncio.sleep(0)
            with pytest.raises(RateLimited, match="as many large requests"):
                await threads.run(go_on.wait, size_bytes=1)
            go_on.set()
        assert first.result()
        assert await threads.run(go_on.is_set, size_bytes=10)


async def test_work_whose_client_has_left_counts_until_it_is_over() -> None:
    go_on = threading.Event()
    with closing(
        ThreadExecutor(threads_max=1, inline_bytes_max=0, waiting_bytes_max=10)
    ) as threads:
        gone = asyncio.ensure_future(threads.run(go_on.wait, size_bytes=10))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        another = asyncio.ensure_future(threads.run(go_on.wait, size_bytes=1))
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(RateLimited):
            await another
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await threads.run(go_on.is_set, size_bytes=10)


async def test_tenants_take_turns_and_who_leaves_gives_its_turn_up() -> None:
    """Whoever comes with much at once keeps another waiting for what is under way, and no more."""
    go_on = threading.Event()
    done: list[str] = []
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=0)) as threads:
        async with asyncio.TaskGroup() as group:

            def ask(name: str, work: Callable[[], object]) -> asyncio.Task[object]:
                async def asked() -> object:
                    WORKS_FOR.set(name[0])
                    return await threads.run(work, size_bytes=1)

                return group.create_task(asked())

            ask("a0", go_on.wait)
            flood = [ask(f"a{n}", partial(done.append, f"a{n}")) for n in range(1, 6)]
            await asyncio.sleep(0)
            gone, _ = ask("b0", go_on.wait), ask("b1", partial(done.append, "b1"))
            await asyncio.sleep(0)
            flood[0].cancel()
            gone.cancel()
            await asyncio.sleep(0)
            go_on.set()
        assert sorted(done) == ["a2", "a3", "a4", "a5", "b1"]
        assert done.index("b1") <= 1
        assert await threads.run(go_on.is_set, size_bytes=1)
        assert (threads._slots._free, dict(threads._held.of_tenants)) == (1, {})


async def test_one_tenant_leaves_room_for_the_work_of_others() -> None:
    go_on = threading.Event()
    with closing(
        ThreadExecutor(threads_max=1, inline_bytes_max=0, waiting_bytes_max=100)
    ) as threads:
        async with asyncio.TaskGroup() as group:
            WORKS_FOR.set("a")
            for size_bytes in (40, 40):
                group.create_task(threads.run(go_on.wait, size_bytes=size_bytes))
            await asyncio.sleep(0)
            with pytest.raises(RateLimited):
                await threads.run(go_on.wait, size_bytes=1)
            WORKS_FOR.set("b")
            group.create_task(threads.run(go_on.wait, size_bytes=20))
            await asyncio.sleep(0)
            go_on.set()
        assert not threads._held.of_tenants
