"""The engine's queue: so many at once, so many waiting, no more."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class QueueFull(GatewayError):
    """No place left to wait."""


class Admission:
    """First come, first served. Counts are exact at any time."""

    def __init__(self, running_max: int, queued_max: int) -> None:
        self._places = asyncio.Semaphore(running_max)
        self._queued_max = queued_max
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises `QueueFull` at once when too many wait."""
        if self._places.locked() and self.waiting >= self._queued_max:
            raise QueueFull("the queue is full")
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()
