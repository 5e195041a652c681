"""A loop whose time passes on command, for what only waits."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context


class Clockwork:
    """Knows the time and timers, and counts those that were started and that ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = 0
        self.ran = 0
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Itself, for who wants a whole one."""
        return cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        return self.now

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.started += 1
        handle = asyncio.TimerHandle(when, callback, args, self.loop, context)
        heapq.heappush(self._timers, handle)
        return handle

    def is_closed(self) -> bool:
        """A test forgets it without closing it."""
        return True

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def pass_until(self, when: float) -> None:
        """Run what is due until then, each at its time."""
        while self._timers and self._timers[0].when() <= when:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self.now = max(self.now, timer.when())
                self.ran += 1
                timer._run()
        self.now = when

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...
