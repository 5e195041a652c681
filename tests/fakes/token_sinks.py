"""Token sinks: one that only keeps what it is given, and one that a test leads."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.generation import TokenChunk, TokenSink


@dataclass
class Heard:
    """Keeps every chunk."""

    chunks: list[TokenChunk] = field(default_factory=list)

    def on_tokens(self, chunk: TokenChunk) -> bool:
        self.chunks.append(chunk)
        return True

    async def room(self) -> bool:
        raise AssertionError("it always has room")

    @property
    def ids(self) -> list[int]:
        return [i for chunk in self.chunks for i in chunk.ids]


@dataclass
class Led(Heard):
    """`news` is set by every chunk; `stop_after` of them it has enough.

    With `width` it is full after so many chunks, until it is told to `make_room`; `held` is set
    whenever somebody waits for that.
    """

    stop_after: int | None = None
    width: int | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    _is_full: bool = False
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _since_room: int = 0

    @override
    def on_tokens(self, chunk: TokenChunk) -> bool:
        assert not self._is_full, "nobody asked whether there is room"
        assert not self.has_enough
        self.chunks.append(chunk)
        self._since_room += 1
        self._is_full = self.width is not None and self._since_room >= self.width
        self.news.set()
        return not (self._is_full or self.has_enough)

    @property
    def has_enough(self) -> bool:
        return self.stop_after is not None and len(self.chunks) >= self.stop_after

    @override
    async def room(self) -> bool:
        if self._is_full:
            self.held.set()
            await self._room.wait()
            self._room.clear()
        return not self.has_enough

    def make_room(self) -> None:
        self._since_room = 0
        self._is_full = False
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
    """Raises `error` when it is given something."""

    error: Exception = field(kw_only=True)

    @override
    def on_tokens(self, chunk: TokenChunk) -> bool:
        self.chunks.append(chunk)
        raise self.error


@asynccontextmanager
async def led_by(
    generate: Callable[[TokenSink], Awaitable[None]], led: Led | None = None
) -> AsyncIterator[tuple[Led, asyncio.Task[None]]]:
    """A generation under way; what of it goes on at the end of the block is cancelled."""
    led = led or Led()

    async def run() -> None:
        await generate(led)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        yield led, task
        task.cancel()
