from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

from gateway.entries import Alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.eventlog.journal import Journal


class KeepAliveTimer:
    """Timer that appends `Alive` when readers saw nothing for `interval_s`.

    Proxies and Codex cut silent streams; Codex's timer is reset by events, not by comments. The
    entry is in the log, so a replay shows the same events.
    """

    __slots__ = ("_ends_at", "_interval_s", "_journal", "_loop", "_timer", "_too_long")

    def __init__(
        self,
        journal: Journal,
        interval_s: float,
        *,
        time_max_s: float = math.inf,
        too_long: Callable[[], None] | None = None,
    ) -> None:
        self._journal = journal
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
        self._timer = self._loop.call_at(at, self._on_interval)

    def _on_interval(self) -> None:
        if self._journal.is_abandoned:
            return
        if self._too_long is not None and self._loop.time() >= self._ends_at:
            self._too_long()
            return
        silent_s = self._loop.time() - self._journal.live.shown_at
        if silent_s >= self._interval_s:
            # Entries that wait for their commit will break the silence. While the database is away
            # readers would see no `Alive` either, however many were appended.
            if not self._journal.live.is_holding:
                self._journal.append(Alive())
            silent_s = 0.0
        self._schedule(self._interval_s - silent_s)
