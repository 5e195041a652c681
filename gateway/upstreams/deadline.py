"""A deadline that is moved at every read and hardly ever met: moving it must cost nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Deadline:
    """Calls `expire` once when the deadline passes.

    Moving the deadline later only stores a number: the timer that is already running looks at it
    when it fires, and is started again for the rest. A stream therefore costs one timer for each
    span of its timeout instead of one for each read.
    """

    __slots__ = ("_expire", "_fires_at", "_loop", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self.at: float | None = None
        """When it passes, in the loop's time. A later time may be put here as it is."""
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf

    def set(self, seconds: float) -> None:
        """Let the deadline be `seconds` from now, whatever it was."""
        self.set_at(self._loop.time() + seconds)

    def set_at(self, at: float) -> None:
        """Let the deadline be at `at` of the loop's time."""
        self.at = at
        if at < self._fires_at:
            self.cancel()
            self.at = at
            self._start(at)

    def clear(self) -> None:
        """No deadline; the timer is left to run out unheard, the next `set` may use it again."""
        self.at = None

    def cancel(self) -> None:
        """No deadline and no timer."""
        self.at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._fires_at = math.inf

    def _start(self, at: float) -> None:
        self._fires_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._fires_at = math.inf
        if self.at is None:
            return
        if self.at > self._loop.time():
            self._start(self.at)
            return
        self.at = None
        self._expire()
