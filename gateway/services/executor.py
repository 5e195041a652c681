"""An executor for work that would hold up the event loop: threads, and a bound on what waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from gateway.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ThreadExecutor:
    """Where large requests are parsed, assembled and rendered.

    Tokenising frees the GIL; the rest competes with the loop for it. So there are few of them, and
    more work than that waits.
    """

    def __init__(
        self, *, threads_max: int, inline_bytes_max: int, waiting_bytes_max: int = 256 << 20
    ) -> None:
        """Work on up to `inline_bytes_max` bytes is done at once: a thread would cost more.

        Work in threads and before them is on `waiting_bytes_max` bytes at most. There are as many
        threads for runs as for requests, which must not keep what was accepted from its end.
        """
        self.inline_bytes_max = inline_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="heavy")
        self._for_runs = ThreadPoolExecutor(threads_max, thread_name_prefix="runs")

    async def run(self, work: Callable[[], T], *, size_bytes: int) -> T:
        """What `work` returns; raises what it raises, and `RateLimited` where too much waits.

        One work alone may be of any size. When the caller is cancelled, work that has begun goes on
        in its thread to its end.
        """
        if size_bytes <= self.inline_bytes_max:
            return work()
        if self._waiting_bytes and self._waiting_bytes + size_bytes > self._waiting_bytes_max:
            raise RateLimited(
                "The server is reading as many large requests as it can. Please retry in a moment.",
                code="rate_limit_exceeded",
            )
        self._waiting_bytes += size_bytes
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, work)
        finally:
            self._waiting_bytes -= size_bytes

    async def run_accepted(self, work: Callable[[], T]) -> T:
        """The same for a response that is generated already: never at once, and never refused."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._for_runs, work)

    def close(self) -> None:
        """End the threads; waits for what they are at, drops what waits."""
        self._executor.shutdown(cancel_futures=True)
        self._for_runs.shutdown(cancel_futures=True)
