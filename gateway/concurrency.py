"""Events in a twentieth of the memory of `asyncio.Event`, and tasks that begin at once.

Every stream has several events, most of them with at most one waiting task.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task. From Python 3.12 on its first step is done when this returns.

    Between two rounds the loop reads all that has come, among many streams a burst of tokens:
    output that could be sent at once would wait for it.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


class OnceEvent:
    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            _wake(waiter)

    async def wait(self) -> None:
        await self.within(None)

    async def within(self, seconds: float | None) -> bool:
        """Wait until it is set, for `seconds` at most; return whether it is.

        This takes one timer, where `asyncio.timeout` would cancel the task and call it back.
        """
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _wake, waiter)
        self._waiters = (*self._waiters, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters = tuple(one for one in self._waiters if one is not waiter)
        return self._is_set


class ResettableEvent(OnceEvent):
    __slots__ = ()

    def clear(self) -> None:
        # Tasks that waited when it was set still go on.
        self._is_set = False


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
