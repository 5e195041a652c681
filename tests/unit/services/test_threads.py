"""Small work is done at once, large work beside the event loop."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from gateway.services.threads import Threads


@pytest.mark.parametrize(("size_bytes", "inline"), [(10, True), (11, False)])
async def test_large_work_leaves_the_event_loop_alone(size_bytes: int, inline: bool) -> None:
    with closing(Threads(threads_max=1, inline_bytes_max=10)) as threads:
        worker = await threads.run(threading.get_ident, size_bytes=size_bytes)
    assert (worker == threading.get_ident()) is inline


async def test_what_work_raises_is_raised() -> None:
    def refuse() -> None:
        raise ValueError("too long")

    with (
        closing(Threads(threads_max=1, inline_bytes_max=10)) as threads,
        pytest.raises(ValueError, match="too long"),
    ):
        await threads.run(refuse, size_bytes=11)
