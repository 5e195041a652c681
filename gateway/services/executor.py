"""Threads for work that would hold up the event loop, with a bound on what waits."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from gateway.fair_queue import FairSlots
from gateway.held_bytes import HeldBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")
Args = TypeVarTuple("Args")

INLINE_BYTES_MAX: Final = 20_000
"""Handled on the event loop."""
WAITING_BYTES_MAX: Final = 256 << 20
"""Bytes of requests in the threads and waiting for them, at most; a request beyond is answered
429."""
WORKS_FOR: Final[ContextVar[Hashable]] = ContextVar("works_for", default=None)
"""The tenant whose request the current task answers."""


def _give_way(nice: int) -> None:
    # Threads of the executor run after the other threads of the process where CPUs are few.
    if sys.platform == "linux":  # elsewhere niceness is that of a process
        thread_id = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread_id)
        os.setpriority(os.PRIO_PROCESS, thread_id, now + nice)


class ThreadExecutor:
    """Threads for work that would hold up the event loop: they parse, assemble and render large
    requests.

    Tokenising frees the GIL; the rest competes with the loop for it. So there are few threads, and
    work that finds none free waits: tenants (`WORKS_FOR`) take turns, and there is always room for
    one more.
    """

    def __init__(
        self,
        *,
        threads_max: int,
        inline_bytes_max: int = INLINE_BYTES_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        nice: int = 0,
    ) -> None:
        """Start `threads_max` threads for requests and as many for runs.

        They are separate so that requests cannot keep an accepted response from its end. Work on up
        to `inline_bytes_max` bytes runs at once on the event loop, where it costs less than a
        thread. Running and waiting work is bounded by `waiting_bytes_max` bytes together. `nice` is
        added to the threads' nice value.
        """
        self.inline_bytes_max = inline_bytes_max
        self._held = HeldBytes(
            waiting_bytes_max,
            "The server is reading as many large requests as it can. Please retry in a moment.",
        )
        self._slots = FairSlots(threads_max)
        self._executor = ThreadPoolExecutor(threads_max, "heavy", _give_way, (nice,))
        self._for_runs = ThreadPoolExecutor(threads_max, "runs", _give_way, (nice,))

    async def run(self, work: Callable[[*Args], T], *args: *Args, size_bytes: int) -> T:
        """Run `work` on `args`, for a request of `size_bytes`, and return its result.

        Raises what it raises, and `RateLimited` if too much work waits; a single request may have
        any size. When the caller is cancelled, work that has begun runs to its end in its thread.
        """
        if size_bytes <= self.inline_bytes_max:
            return work(*args)
        tenant = WORKS_FOR.get()
        with self._held.one(tenant) as hold:
            hold(size_bytes)
            async with self._slots.taken(tenant):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._executor, work, *args)

    async def run_accepted(self, work: Callable[[], T]) -> T:
        """Run `work` of a run in a thread and return its result.

        It is never refused: its response is already being generated.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._for_runs, work)

    def close(self) -> None:
        """Wait for running work, drop waiting work, and end the threads."""
        self._executor.shutdown(cancel_futures=True)
        self._for_runs.shutdown(cancel_futures=True)
