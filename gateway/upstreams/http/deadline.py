"""A deadline that is moved at every read and hardly ever met: moving it must cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from gateway.ticking import Waiting, ticker_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Deadline(Waiting):
    """Calls `expire` once when the deadline passes, or as much later as a ticker may be.

    Moving the deadline later only stores a number: when it is woken for the earlier one, it looks
    at that, and waits again for the rest. A stream is therefore woken once for each span of its
    timeout instead of being put elsewhere at each read.
    """

    __slots__ = ("_expire", "_loop", "_ticker", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        super().__init__()
        self._loop = loop
        self._ticker = ticker_of(loop)
        self._expire = expire
        self.at: float | None = None
        """When it passes, in the loop's time. A later time may be put here as it is."""

    def set(self, seconds: float) -> None:
        """Let the deadline be `seconds` from now, whatever it was."""
        self.set_at(self._loop.time() + seconds)

    def set_at(self, at: float) -> None:
        """Let the deadline be at `at` of the loop's time."""
        self.at = at
        if at < self.due_at:
            self._ticker.take(self)
            self._ticker.put(self, at)

    def clear(self) -> None:
        """No deadline; it is left to be woken for nothing, the next `set` may have use for that."""
        self.at = None

    def cancel(self) -> None:
        """No deadline, and nothing waits for it."""
        self.at = None
        self._ticker.take(self)

    @override
    def wake(self) -> None:
        if self.at is None:
            return
        if self.at > self._loop.time():
            self._ticker.put(self, self.at)
            return
        self.at = None
        self._expire()
