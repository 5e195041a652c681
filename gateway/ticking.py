"""One timer of the loop for all that waits long: a timer of its own costs a stream 0.7 KiB.

What waits for about the same time wakes in the same turn. Nothing wakes early; it may be late by an
eighth of its wait, and by `LATE_MAX_S` at most.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextvars import Context
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

LATE_MAX_S: Final = 1.0
SHORTEST_S: Final = 1 / 128
"""What waits for less is not told apart: a loop counts milliseconds."""
AT_ONCE: Final = 32
"""So many wake before the loop has its turn again: most of them write something then."""


class Waiting(ABC):
    """What a ticker wakes."""

    __slots__ = ("due_at",)

    def __init__(self) -> None:
        self.due_at = math.inf
        """When the ticker wakes it, in the loop's time; inf while it is not told to. Its own."""

    @abstractmethod
    def wake(self) -> None:
        """The time has come; it waits no more, unless it is put again."""


class Ticker:
    """Wakes what waits, each once. All is done in constant time, but for the times it knows."""

    __slots__ = ("_context", "_fires_at", "_loop", "_timer", "_turns")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = Context()
        """Of nobody: not of the request that happens to start the timer."""
        self._turns: dict[float, set[Waiting]] = {}
        """Who wakes together, by when; never an empty set."""
        self._fires_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def put(self, waiting: Waiting, at: float) -> None:
        """Wake it once `at` of the loop's time is reached. It must not be waiting already."""
        _, exponent = math.frexp(max(at - self._loop.time(), SHORTEST_S))
        # Powers of two, so that different waits have times in common, and floats hold them exactly.
        step_s = min(math.ldexp(1.0, exponent - 4), LATE_MAX_S)
        waiting.due_at = due_at = math.ceil(at / step_s) * step_s
        turn = self._turns.get(due_at)
        if turn is None:
            self._turns[due_at] = {waiting}
            if due_at < self._fires_at:
                self._start(due_at)
        else:
            turn.add(waiting)

    def put_in(self, waiting: Waiting, seconds: float) -> None:
        """Wake it so long from now."""
        self.put(waiting, self._loop.time() + seconds)

    def take(self, waiting: Waiting) -> None:
        """Let it not be woken. Nothing happens where it does not wait."""
        turn = self._turns.get(waiting.due_at)
        if turn is not None:
            turn.discard(waiting)
            if not turn:
                # The timer runs out unheard: most often somebody else needs one before.
                del self._turns[waiting.due_at]
        waiting.due_at = math.inf

    def _start(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = at
        self._timer = self._loop.call_at(at, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        self._fires_at = -math.inf  # What is put meanwhile starts no timer: that follows.
        try:
            first = min(self._turns, default=math.inf)
            if first <= self._loop.time():
                self._wake(first)
        finally:
            self._fires_at = math.inf
            if self._turns:
                self._start(min(self._turns))

    def _wake(self, due_at: float) -> None:
        for _ in range(AT_ONCE):
            turn = self._turns.get(due_at)
            if turn is None:
                return
            waiting = turn.pop()
            if not turn:
                del self._turns[due_at]
            waiting.due_at = math.inf
            waiting.wake()


_tickers: Final[dict[asyncio.AbstractEventLoop, Ticker]] = {}


def ticker_of(loop: asyncio.AbstractEventLoop) -> Ticker:
    """The one that all share which run in this loop."""
    found = _tickers.get(loop)
    if found is None:
        for closed in [known for known in _tickers if known.is_closed()]:
            del _tickers[closed]
        found = _tickers[loop] = Ticker(loop)
    return found
