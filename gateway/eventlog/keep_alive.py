from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from gateway.entries import Alive

if TYPE_CHECKING:
    from gateway.eventlog.journal import Journal


class KeepAliveTimer:
    """Timer that appends `Alive` when readers saw nothing for `interval_s`.

    Proxies and Codex cut silent streams; Codex's timer is reset by events, not by comments. The
    entry is in the log, so a replay shows the same events.
    """

    __slots__ = ("_interval_s", "_journal", "_loop", "_timer")

    def __init__(self, journal: Journal, interval_s: float) -> None:
        self._journal = journal
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._interval_s, self._on_interval)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _on_interval(self) -> None:
        if self._journal.is_abandoned:
            return
        silent_s = self._loop.time() - self._journal.live.shown_at
        if silent_s >= self._interval_s:
            # Entries that wait for their commit will break the silence. While the database is away
            # readers would see no `Alive` either, however many were appended.
            if not self._journal.live.is_holding:
                self._journal.append(Alive())
            silent_s = 0.0
        self._timer = self._loop.call_later(self._interval_s - silent_s, self._on_interval)
