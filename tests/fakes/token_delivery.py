"""How a scripted backend gives a token sink what it says: as the pool does, chunk by chunk."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gateway.generation import TokenChunk, TokenSink


async def tell(sink: TokenSink, chunks: AsyncGenerator[TokenChunk, None]) -> None:
    """Until the end, or until the sink has enough; raises what either of them does."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if not sink.on_tokens(chunk) and not await sink.room():
                return
