"""How a scripted backend tells a listener what it says: as the pool does, chunk by chunk."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gateway.generation import Listener, TokenChunk


async def tell(listener: Listener, chunks: AsyncGenerator[TokenChunk, None]) -> None:
    """Until the end, or until the listener has heard enough; raises what either of them does."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if not listener.hear(chunk):
                return
            if listener.is_full and not await listener.room():
                return
