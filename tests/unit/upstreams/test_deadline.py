from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, cast

from gateway.upstreams.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable


class Clockwork:
    """A loop whose time passes on command."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = 0
        self._timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object
    ) -> asyncio.TimerHandle:
        self.started += 1
        handle = asyncio.TimerHandle(when, callback, args, cast("Any", self))
        heapq.heappush(self._timers, handle)
        return handle

    def get_debug(self) -> bool:
        return False

    def pass_until(self, when: float) -> None:
        while self._timers and self._timers[0].when() <= when:
            timer = heapq.heappop(self._timers)
            self.now = max(self.now, timer.when())
            if not timer.cancelled():
                timer._run()
        self.now = when

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...


def deadline() -> tuple[Clockwork, Deadline, list[float]]:
    loop = Clockwork()
    expired: list[float] = []
    return loop, Deadline(cast("Any", loop), lambda: expired.append(loop.now)), expired


def test_it_expires_once_at_its_time() -> None:
    loop, limit, expired = deadline()
    limit.set(5)
    loop.pass_until(100)
    assert expired == [5]


def test_moving_it_later_starts_no_timer() -> None:
    loop, limit, expired = deadline()
    limit.set(10)
    for second in range(1, 10):
        loop.pass_until(second)
        limit.set(10)
    assert loop.started == 1
    loop.pass_until(100)
    assert expired == [19]


def test_it_may_be_moved_earlier() -> None:
    loop, limit, expired = deadline()
    limit.set(300)
    limit.set(2)
    loop.pass_until(1000)
    assert expired == [2]


def test_a_cleared_deadline_does_not_expire_and_may_be_set_again() -> None:
    loop, limit, expired = deadline()
    limit.set(5)
    limit.clear()
    loop.pass_until(6)
    assert expired == []
    limit.set(5)
    loop.pass_until(20)
    assert expired == [11]


def test_a_cancelled_deadline_leaves_no_timer() -> None:
    loop, limit, expired = deadline()
    limit.set(5)
    limit.cancel()
    loop.pass_until(20)
    assert expired == []
