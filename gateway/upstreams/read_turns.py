"""Reads of streams are parsed in turns once there are more of them than a moment's work.

An engine gives a token to each of hundreds of streams in one step, and the event loop would parse
all of them before it sees anything else. So after `BURST_S` of that the others wait for the next
rounds of the loop, in the order of their tenants. A tenant with nothing that waits may have one
read parsed all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

BURST_S: Final = 0.002
"""Seconds of parsing, one read after the other, before the event loop has its turn."""
PAUSE_S: Final = 0.001
"""With a longer pause between two reads the event loop has had its turn."""


class ReadTurns:
    """The turns of one process."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds and never goes back."""
        self._clock = clock
        self._burst_since = self._ended_at = clock()
        self._served: set[Hashable] = set()
        """Tenants that had a turn in this round, while others wait."""
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._is_due = False
        """The next round is scheduled."""

    def begin(self, tenant: Hashable) -> bool:
        """Whether a read of this tenant may be parsed now: then call `end` after it. Otherwise
        `wait`.
        """
        now = self._clock()
        if now - self._ended_at > PAUSE_S:
            self._burst_since = now
        if not self._waiting:
            return now - self._burst_since < BURST_S
        if tenant in self._waiting or tenant in self._served:
            return False
        self._served.add(tenant)
        return True

    def end(self) -> None:
        """The read that had begun is parsed."""
        self._ended_at = self._clock()

    def wait(self, tenant: Hashable, callback: Callable[[], None]) -> None:
        """Have `callback` called when it is the turn of this tenant."""
        if not self._is_due:
            self._next_round()
        self._waiting.setdefault(tenant, deque()).append(callback)

    def _next_round(self) -> None:
        self._is_due = True
        # In an empty context, or it keeps that of the request which happens to be the first.
        asyncio.get_running_loop().call_soon(self._round, context=Context())

    def _round(self) -> None:
        """One read of each tenant after the other, until time is up."""
        self._served.clear()
        until = self._clock() + BURST_S
        try:
            while self._waiting:
                self._run_next()
                if self._clock() >= until:
                    break
        finally:
            self._is_due = False
            if self._waiting:
                self._next_round()

    def _run_next(self) -> None:
        tenant, callbacks = next(iter(self._waiting.items()))
        callback = callbacks.popleft()
        del self._waiting[tenant]
        if callbacks:
            self._waiting[tenant] = callbacks  # the last in turn
        self._served.add(tenant)
        callback()
