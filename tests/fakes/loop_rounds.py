"""How often the event loop comes round."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Rounds:
    """`count` of them, since this was entered."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def counted_rounds() -> AsyncIterator[Rounds]:
    """While entered, counts them, as somebody else would have their turn."""
    rounds = Rounds()
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(rounds.run())
        yield rounds
        counting.cancel()
