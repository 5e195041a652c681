"""Something that happens once, and may be waited for."""

from __future__ import annotations

import asyncio


class Moment:
    """What an `asyncio.Event` is that is never cleared, in a twentieth of its memory.

    Every stream has several of them, and most have one who waits, or nobody.
    """

    __slots__ = ("_has_come", "_waiters")

    def __init__(self) -> None:
        self._has_come = False
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._has_come

    def set(self) -> None:
        """It happens now."""
        self._has_come = True
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until it has happened."""
        if self._has_come:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters = (*self._waiters, waiter)
        try:
            await waiter
        finally:
            self._waiters = tuple(one for one in self._waiters if one is not waiter)

    async def within(self, seconds: float) -> bool:
        """Wait for so long at most. Whether it has happened by then.

        One timer, where `asyncio.timeout` would have the waiting task cancelled and called back.
        """
        if self._has_come:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _let_go, waiter)
        self._waiters = (*self._waiters, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if not self._has_come:
                self._waiters = tuple(one for one in self._waiters if one is not waiter)
        return self._has_come


class Signal(Moment):
    """One that may come again: what an `asyncio.Event` is, in as little memory."""

    __slots__ = ()

    def clear(self) -> None:
        """It has not come yet; who waited when it did goes on."""
        self._has_come = False


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
