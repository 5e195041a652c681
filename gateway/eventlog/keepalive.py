"""Say something when nothing was said for a while.

Proxies and Codex cut streams that are silent; comments do not reset Codex's timer, real events do
(clients.md §0.7). The entry is in the log, so a replay shows the same events.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

from gateway.entries import Alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.eventlog.journal import JournalWriter


class KeepAlive:
    """While entered, appends `Alive` whenever readers saw nothing for `interval_s`.

    It calls `too_long` once that is `time_max_s` ago, because it waits anyway.
    """

    __slots__ = ("_ends_at", "_interval_s", "_loop", "_pen", "_timer", "_too_long")

    def __init__(
        self,
        pen: JournalWriter,
        interval_s: float,
        *,
        time_max_s: float = math.inf,
        too_long: Callable[[], None] | None = None,
    ) -> None:
        self._pen = pen
        self._interval_s = interval_s
        self._too_long = too_long
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = self._loop.time() + time_max_s

    def __enter__(self) -> Self:
        self._schedule(self._interval_s)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, delay_s: float) -> None:
        at = min(self._loop.time() + delay_s, self._ends_at)
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        """The interval is over: say something, unless something was said meanwhile."""
        if self._pen.is_down:
            return
        if self._too_long is not None and self._loop.time() >= self._ends_at:
            self._too_long()
            return
        silent_s = self._loop.time() - self._pen.live.shown_at
        if silent_s >= self._interval_s:
            # What waits for its commit breaks the silence as well. And while the database is away,
            # nothing is heard, however often it is said.
            if not self._pen.live.is_holding:
                self._pen.append(Alive())
            silent_s = 0.0
        self._schedule(self._interval_s - silent_s)
