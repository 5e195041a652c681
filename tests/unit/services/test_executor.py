"""Small work is done at once, large work beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing

import pytest

from gateway.errors import RateLimited
from gateway.services.executor import ThreadExecutor


@pytest.mark.parametrize(("size_bytes", "inline"), [(10, True), (11, False)])
async def test_large_work_leaves_the_event_loop_alone(size_bytes: int, inline: bool) -> None:
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=10)) as threads:
        worker = await threads.run(threading.get_ident, size_bytes=size_bytes)
    assert (worker == threading.get_ident()) is inline


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
