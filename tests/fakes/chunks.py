"""Chunks as the readers under test make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.generation import TokenChunk

if TYPE_CHECKING:
    from gateway.generation import FinishReason


def chunk_of(
    ids: list[int],
    finish: FinishReason | None = None,
    cached_tokens: int | None = None,
    **fields: Any,
) -> TokenChunk:
    """A chunk of the backend `gpu-1`."""
    return TokenChunk(ids, finish, cached_tokens, **{"upstream": "gpu-1", **fields})
