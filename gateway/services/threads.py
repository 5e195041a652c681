"""A few threads for what would hold up the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Threads:
    """Where large requests are parsed, assembled and rendered.

    Tokenising frees the GIL; the rest competes with the loop for it. So there are few of them, and
    more work than that waits.
    """

    def __init__(self, *, threads_max: int, inline_bytes_max: int) -> None:
        """Work on up to `inline_bytes_max` bytes is done at once: a thread would cost more."""
        self._inline_bytes_max = inline_bytes_max
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="heavy")

    async def run(self, work: Callable[[], T], *, size_bytes: int) -> T:
        """What `work` returns; raises what it raises.

        When the caller is cancelled, work that has begun goes on in its thread to its end.
        """
        if size_bytes <= self._inline_bytes_max:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """End the threads; waits for what they are at, drops what waits."""
        self._executor.shutdown(cancel_futures=True)
