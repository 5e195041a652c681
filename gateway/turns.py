"""Work is begun in turns: that of one tenant which comes at once does not all go before another's.

A request takes milliseconds until it waits for something, and the event loop does whatever has come
before it looks for more. So of a tenant that has hundreds at once only a few begin in one round of
the loop; the others wait for the next ones, in order. Of a tenant that has begun nothing in this
round one may always begin. (Reads of streams have turns of their own: `upstreams.read_turns`.)
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

ROUND_S: Final = 0.002
"""Seconds of a round in which all that come may begin."""
COST_S: Final = 0.002
"""About how many seconds one of them takes."""
SHARE: Final = 0.25
"""The part of a round that is for those that begin; other work may make a round long."""


class Turns:
    """The turns of one process."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds and never goes back."""
        self._clock = clock
        self._since = 0.0
        self._is_round = False
        self._begun: set[Hashable] = set()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def begin(self, tenant: Hashable) -> asyncio.Future[None] | None:
        """What has to be waited for until it may begin; None: it may now."""
        if not self._is_round:
            self._is_round = True
            self._since = self._clock()
            asyncio.get_running_loop().call_soon(self._next)
        if tenant not in self._waiting and (
            tenant not in self._begun or self._clock() - self._since < ROUND_S
        ):
            self._begun.add(tenant)
            return None
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        return turn

    def _next(self) -> None:
        """The next round of the loop has begun."""
        self._begun.clear()
        if not self._waiting:
            self._is_round = False
            return
        now = self._clock()
        count = max(1, int(SHARE * (now - self._since) / COST_S))
        self._since = now
        asyncio.get_running_loop().call_soon(self._next)
        for tenant in list(self._waiting):
            if self._release(tenant):
                count -= 1
            if count <= 0:
                return

    def _release(self, tenant: Hashable) -> bool:
        """Whether one that waits began; its tenant is the last in turn then."""
        waiting = self._waiting.pop(tenant)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._begun.add(tenant)
                if waiting:
                    self._waiting[tenant] = waiting
                return True
        return False
