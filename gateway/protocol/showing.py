"""Between whoever has the events of a stream and whoever shows them to a reader."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from gateway.protocol.events import Event
from gateway.values import value

Show = Callable[[Sequence[Event]], Awaitable[None] | None]
"""Shows a reader some events without waiting; none at all where it has the terminal one already.

Returns None when it may be called again, else what has to be awaited before that: a reader that is
slow. What either raises is for the reader's task.
"""
DeltaText = tuple[int, bytes]
"""The text of a delta: how many characters it has, and the text as JSON."""
ShowDelta = Callable[[int, DeltaText], bool]
"""Shows one more delta at once, given its number and its text, which is not empty.

False, and nothing was done: the reader has to wait, or is gone. Then it is an event as any other.
"""
Play = Callable[[Show], Awaitable[None]]
"""Shows a reader all events of a stream as they come; returns when there are no more."""


@value
class DeltaPattern:
    """What the delta events of one open part have in common.

    The data of one is `before`, its number, `between`, its text as JSON, and `behind`.
    """

    type: str
    before: bytes
    between: bytes
    behind: bytes


@runtime_checkable
class ShowsDeltas(Protocol):
    """A `Show` that can be spared the event of a delta: its pattern is known, and never changes."""

    def __call__(self, events: Sequence[Event], /) -> Awaitable[None] | None: ...

    def deltas(self, pattern: DeltaPattern, /) -> ShowDelta | None:
        """How deltas of this pattern are shown; None: as events."""
        ...


async def play_batches(batches: AsyncGenerator[list[Event], None], show: Show) -> None:
    """Show a reader what is made for one that asks. Finalises `batches` whatever happens."""
    async with aclosing(batches):
        async for batch in batches:
            rest = show(batch)
            del batch  # it is shown, and the next one may be long in coming
            if rest is not None:
                await rest
