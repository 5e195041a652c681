"""The `x-ratelimit-*` headers of answers, with OpenAI's names and forms."""

from __future__ import annotations

import math
from typing import Final, NamedTuple


def _names(of: str) -> tuple[bytes, bytes, bytes]:
    limit, remaining, reset = (
        f"x-ratelimit-{what}-{of}".encode() for what in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset


_OF_REQUESTS: Final = _names("requests")
_OF_TOKENS: Final = _names("tokens")
_OF_PROJECT: Final = _names("project-tokens")
LIMIT_HEADERS: Final = (*_OF_REQUESTS, *_OF_TOKENS, *_OF_PROJECT)


class Headroom(NamedTuple):
    limit: int
    remaining: int
    reset_s: float
    is_project: bool = False


Headers = tuple[tuple[bytes, bytes], ...]


def duration(seconds: float) -> str:
    """Format seconds as Go does: `12ms`, `1.2s`, `6m0s`, `14h29m11.04s`; rounded up."""
    millis = math.ceil(max(0.0, seconds) * 1000)
    if millis < 1000:
        return f"{millis}ms" if millis else "0s"
    if millis >= 600_000:  # nobody needs the milliseconds of ten minutes
        millis = math.ceil(millis / 10) * 10
    minutes, rest = divmod(millis, 60_000)
    spelled = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{spelled}"
    return f"{minutes}m{spelled}" if minutes else spelled


def headers_of(requests: Headroom | None, tokens: Headroom | None) -> Headers:
    """Return the headers of an answer, without unknown values: clients parse each as a number."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if requests is not None:
        headers = _limit_headers(_OF_REQUESTS, requests)
    if tokens is not None:
        headers += _limit_headers(_OF_TOKENS, tokens)
        if tokens.is_project:
            headers += _limit_headers(_OF_PROJECT, tokens)
    return headers


def _limit_headers(names: tuple[bytes, bytes, bytes], room: Headroom) -> Headers:
    limit, remaining, reset = names
    return (
        (limit, b"%d" % room.limit),
        (remaining, b"%d" % room.remaining),
        (reset, duration(room.reset_s).encode()),
    )
