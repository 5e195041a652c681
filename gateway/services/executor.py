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
"""Shorter requests are handled on the event loop."""
WAITING_BYTES_MAX: Final = 256 << 20
"""Bound of running and waiting work; requests beyond it get a 429."""
WORKS_FOR: Final[ContextVar[Hashable]] = ContextVar("works_for", default=None)


def _give_way(nice: int) -> None:
    # Where CPUs are few, the process's other threads come first.
    if sys.platform == "linux":  # elsewhere niceness is that of a process
        thread_id = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread_id)
        os.setpriority(os.PRIO_PROCESS, thread_id, now + nice)


class ThreadExecutor:
    """Threads for large requests, which would hold up the event loop.

    Tokenising frees the GIL; other work competes with the loop for it. So there are few threads;
    tenants (`WORKS_FOR`) take turns, and none alone can use up the bound of waiting work.
    """

    def __init__(
        self,
        *,
        threads_max: int,
        inline_bytes_max: int = INLINE_BYTES_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        nice: int = 0,
    ) -> None:
        """Keep separate threads for runs: requests cannot delay their end.

        Work up to `inline_bytes_max` costs less on the event loop than in a thread.
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
        """Run work for a request of `size_bytes`.

        Raises `RateLimited` if too much work waits; a single request may have any size. Work that
        has begun runs to its end, for which a caller that is cancelled waits.
        """
        if size_bytes <= self.inline_bytes_max:
            return work(*args)
        tenant = WORKS_FOR.get()
        with self._held.one(tenant) as hold:
            hold(size_bytes)
            async with self._slots.taken(tenant):
                loop = asyncio.get_running_loop()
                working = loop.run_in_executor(self._executor, work, *args)
                try:
                    return await asyncio.shield(working)
                except asyncio.CancelledError:
                    # Until then it takes its thread and its memory.
                    await asyncio.wait([working])
                    raise

    async def run_accepted(self, work: Callable[[], T]) -> T:
        """Run a run's work without a bound: its response is already being generated."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._for_runs, work)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)
        self._for_runs.shutdown(cancel_futures=True)
