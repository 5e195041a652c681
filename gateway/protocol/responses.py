"""The Response object: every field, always present, from a request and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.generation import TokenUsage


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What a response is known by before a token was generated; the fold's only other input.

    `echo` holds every field of the Response object that follows from the request alone.
    """

    uuid: UUID
    created_at: int
    background: bool
    echo: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a response ended, or (status `queued`, `in_progress`) that it did not yet."""

    status: str = "in_progress"
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    usage: TokenUsage | None = None


def usage_body(usage: TokenUsage) -> dict[str, Any]:
    """`usage` as the API spells it."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
