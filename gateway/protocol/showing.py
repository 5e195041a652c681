"""Between whoever has the events of a stream and whoever shows them to a reader."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from gateway.protocol.events import Event

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
            del batch  # it is shown, and the next one may be long in coming
            if rest is not None:
                await rest
