"""A bounded pool of connections, opened when needed. Whoever waits for one is served in turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.store.postgres.translation import DRIVER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.store.postgres.connection import Connection

CLOSE_WAIT_S: Final = 2.0
"""How long a connection may take to say goodbye, and to have its last statement cancelled."""


class Pool:
    """Connections of one process to one database. Raises the driver's errors.

    The connection that came back last is taken first, so that in quiet times few are warm.
    """

    def __init__(
        self, opened: Callable[[], Awaitable[Connection]], *, size_max: int, wait_s: float
    ) -> None:
        """`wait_s` bounds the wait for a free one: then `take` raises `TimeoutError`."""
        self._opened = opened
        self._wait_s = wait_s
        self._places = asyncio.Semaphore(size_max)
        self._idle: list[Connection] = []
        self._is_closed = False
        self.taken = 0
        """How many are in use."""

    async def take(self) -> Connection:
        """A connection of the caller's own, until it is given back or dropped."""
        if self._places.locked():
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        else:
            await self._places.acquire()
        self.taken += 1
        try:
            return self._waiting_one() or await self._opened()
        except BaseException:
            self._leave()
            raise

    def _waiting_one(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            # The server may have closed it: that is known here, without a round trip.
            if not connection.driver.is_closed():
                return connection
        return None

    async def give_back(self, connection: Connection) -> None:
        """For others; nothing may be under way on it."""
        if self._is_closed:
            await self.drop(connection)
            return
        connection.used_at = asyncio.get_running_loop().time()
        self._idle.append(connection)
        self._leave()

    async def drop(self, connection: Connection) -> None:
        """Close it: nobody knows what state it is in. What it has under way is cancelled."""
        try:
            await _end(connection)
        finally:
            self._leave()

    def _leave(self) -> None:
        self.taken -= 1
        self._places.release()

    async def close(self) -> None:
        """Close all that are idle, and the others when they come back. Safe to call twice."""
        self._is_closed = True
        while self._idle:
            await _end(self._idle.pop())


async def _end(connection: Connection) -> None:
    try:
        await connection.driver.close(timeout=CLOSE_WAIT_S)
    except DRIVER_ERRORS:
        pass
    finally:
        # Does nothing to one that has said goodbye.
        connection.driver.terminate()
