"""Listeners to a generation: one that only keeps what it hears, and one that a test leads."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.generation import Listener, TokenChunk


@dataclass
class Heard:
    """Keeps every chunk."""

    chunks: list[TokenChunk] = field(default_factory=list)
    is_full: bool = False

    def hear(self, chunk: TokenChunk) -> bool:
        self.chunks.append(chunk)
        return True

    def flow(self) -> None:
        """It wants to hear everything."""

    async def room(self) -> bool:
        raise AssertionError("it never is full")

    @property
    def ids(self) -> list[int]:
        return [i for chunk in self.chunks for i in chunk.ids]


@dataclass
class Led(Heard):
    """`news` is set by every chunk; `stop_after` of them it has heard enough.

    With `width` it is full after so many chunks, until it is told to `make_room`; `held` is set
    whenever somebody waits for that.
    """

    stop_after: int | None = None
    width: int | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _since_room: int = 0

    @override
    def hear(self, chunk: TokenChunk) -> bool:
        assert not self.is_full, "nobody asked whether there is room"
        self.chunks.append(chunk)
        self._since_room += 1
        self.is_full = self.width is not None and self._since_room >= self.width
        self.news.set()
        return self.stop_after is None or len(self.chunks) < self.stop_after

    @override
    async def room(self) -> bool:
        self.held.set()
        await self._room.wait()
        self._room.clear()
        return True

    def make_room(self) -> None:
        self._since_room = 0
        self.is_full = False
        self.held.clear()
        self._room.set()

    async def next(self) -> TokenChunk:
        """The next chunk that was not asked for yet, once it is there."""
        while not self.chunks:
            self.news.clear()
            await self.news.wait()
        return self.chunks.pop(0)


@dataclass
class Faulty(Heard):
    """Raises `error` when it hears something."""

    error: Exception = field(kw_only=True)

    @override
    def hear(self, chunk: TokenChunk) -> bool:
        self.chunks.append(chunk)
        raise self.error


@asynccontextmanager
async def led_by(
    generate: Callable[[Listener], Awaitable[None]], led: Led | None = None
) -> AsyncIterator[tuple[Led, asyncio.Task[None]]]:
    """A generation under way; what of it goes on at the end of the block is cancelled."""
    led = led or Led()

    async def run() -> None:
        await generate(led)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        yield led, task
        task.cancel()
