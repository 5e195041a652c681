"""Say something when nothing was said for a while.

Proxies and Codex cut streams that are silent; comments do not reset Codex's timer, real events do
(clients.md §0.7). The entry is in the log, so a replay shows the same events.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from gateway.log import Alive

if TYPE_CHECKING:
    from gateway.runs.journal import Pen


class KeepAlive:
    """While entered, appends `Alive` whenever readers saw nothing for `interval_s`."""

    def __init__(self, pen: Pen, interval_s: float) -> None:
        self._pen = pen
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._schedule(self._interval_s)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        if self._pen.is_down:
            return
        silent_s = self._loop.time() - self._pen.live.shown_at
        if silent_s >= self._interval_s:
            # What waits for its commit breaks the silence as well. And while the database is away,
            # nothing is heard, however often it is said.
            if not self._pen.live.is_holding:
                self._pen.append(Alive())
            silent_s = 0.0
        self._schedule(self._interval_s - silent_s)
