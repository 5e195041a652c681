"""An executor for work that would hold up the event loop: threads, and a bound on what waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from gateway.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Given = TypeVarTuple("Given")


class ThreadExecutor:
    """Runs what would hold up the event loop: large requests are parsed, assembled and rendered in
    threads.

    Tokenising frees the GIL; the rest competes with the loop for it. So there are few threads, and
    work that finds none free waits.
    """

    def __init__(
        self, *, threads_max: int, inline_bytes_max: int, waiting_bytes_max: int = 256 << 20
    ) -> None:
        """Work on up to `inline_bytes_max` bytes is done at once, on the event loop: a thread would
        cost more.

        Work in threads and waiting for them is on `waiting_bytes_max` bytes together at most. There
        are `threads_max` threads for requests and as many for runs: requests must not keep an
        accepted response from its end.
        """
        self.inline_bytes_max = inline_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="heavy")
        self._for_runs = ThreadPoolExecutor(threads_max, thread_name_prefix="runs")

    async def run(self, work: Callable[[*Given], T], *given: *Given, size_bytes: int) -> T:
        """Do `work` on what is `given`, a request of `size_bytes`, and return what it returns.

        Raises what it raises, and `RateLimited` where too much waits; a single request may be of
        any size. When the caller is cancelled, work that has begun goes on in its thread to its
        end.
        """
        if size_bytes <= self.inline_bytes_max:
            return work(*given)
        if self._waiting_bytes and self._waiting_bytes + size_bytes > self._waiting_bytes_max:
            raise RateLimited(
                "The server is reading as many large requests as it can. Please retry in a moment.",
                code="rate_limit_exceeded",
            )
        self._waiting_bytes += size_bytes
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, work, *given)
        finally:
            self._waiting_bytes -= size_bytes

    async def run_accepted(self, work: Callable[[], T]) -> T:
        """Do `work` of a run, always in a thread, and return what it returns: it is never refused,
        since its response is being generated.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._for_runs, work)

    def close(self) -> None:
        """End the threads: wait for the work that they are doing, drop the work that waits."""
        self._executor.shutdown(cancel_futures=True)
        self._for_runs.shutdown(cancel_futures=True)
