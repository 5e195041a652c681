"""A deadline that is moved at every read and hardly ever met: moving it must cost nothing."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Deadline:
    """Calls `expire` once when the deadline passes.

    Moving the deadline later only stores a number: when the timer of the earlier one fires, it
    looks at that, and starts again for the rest. A stream therefore has one timer for each span of
    its timeout instead of a new one at each read.
    """

    __slots__ = ("_due_at", "_expire", "_loop", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        """When the timer fires, in the loop's time."""
        self.at: float | None = None
        """When it passes, in the loop's time."""

    def set(self, seconds: float) -> None:
        """Let the deadline be `seconds` from now, whatever it was."""
        self.set_at(self._loop.time() + seconds)

    def set_at(self, at: float) -> None:
        """Let the deadline be at `at` of the loop's time."""
        self.at = at
        if self._timer is None or at < self._due_at:
            self._start(at)

    def clear(self) -> None:
        """No deadline. Its timer runs on, because the next `set` may have use for it."""
        self.at = None

    def cancel(self) -> None:
        """No deadline, and no timer."""
        self.at = None
        self._stop()

    def _start(self, at: float) -> None:
        self._stop()
        self._due_at = at
        # In an empty context, or the timer keeps that of the request which happens to start it.
        self._timer = self._loop.call_at(at, self._fire, context=Context())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self.at is None:
            return
        if self.at > self._loop.time():
            self._start(self.at)
            return
        self.at = None
        self._expire()
