"""A stream event as every transport carries it: typed, numbered, already encoded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from gateway.values import value

TERMINAL_TYPES: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


@value
class Event:
    """`data` is the whole JSON object on one line, `type` and `sequence_number` in it.

    `delta_length` is the number of characters of `delta` in a delta event and 0 otherwise: the
    writer pads by it (`stream_options.include_obfuscation`).
    """

    type: str
    sequence_number: int
    data: bytes
    delta_length: int = 0

    @property
    def is_terminal(self) -> bool:
        """Nothing follows it."""
        return self.type in TERMINAL_TYPES


Show = Callable[[list[Event]], Awaitable[None] | None]
"""Shows a reader some events without waiting; none at all where it has the terminal one already.

Returns None when it may be called again, else what has to be awaited before that: a reader that is
slow. What either raises is for the reader's task.
"""
Play = Callable[[Show], Awaitable[None]]
"""Shows a reader all events of a stream as they come; returns when there are no more."""


async def play_batches(batches: AsyncGenerator[list[Event], None], show: Show) -> None:
    """Show a reader what is made for one that asks. Finalises `batches` whatever happens."""
    async with aclosing(batches):
        async for batch in batches:
            rest = show(batch)
            if rest is not None:
                await rest
