"""The events of a source for a test that asks for them one list after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.api.streaming import Later

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from gateway.protocol.stream_events import Event, EventSource


async def following(source: EventSource) -> AsyncGenerator[list[Event], None]:
    """Each list as it is sent; the source waits until the next one is asked for."""
    came: asyncio.Queue[list[Event] | None] = asyncio.Queue()
    asked = asyncio.Semaphore(0)

    async def wait() -> None:
        await asked.acquire()

    def sink(events: Sequence[Event]) -> Later:
        came.put_nowait(list(events))
        return Later(wait)

    task = asyncio.ensure_future(source(sink))
    task.add_done_callback(lambda _: came.put_nowait(None))
    try:
        while (batch := await came.get()) is not None:
            yield batch
            asked.release()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def collected(source: EventSource) -> list[Event]:
    """All events of a source."""
    events: list[Event] = []
    await source(events.extend)
    return events
