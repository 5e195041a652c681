"""What of the next ids belongs together, and is written before anybody looks at the turn again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.models.harmony.vocabulary import CHANNEL, FIRST_SPECIAL, MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER_IDS: Final = 5
"""So many ids are a header of a channel, at most, that names nobody."""
LOOK_IDS: Final = 64
"""Loops are looked for after so many ids."""
STRETCH_IDS_MAX: Final = 4096
"""So many ids are written at once, at most: to read them takes a millisecond or two."""


def text_at(ids: Sequence[int], at: int) -> int:
    """How many ids from `at` on stand before the next marker, `STRETCH_IDS_MAX` at most."""
    end, last = at, min(len(ids), at + STRETCH_IDS_MAX)
    for size in (LOOK_IDS, 1):
        while end < last and max(ids[end : min(end + size, last)]) < FIRST_SPECIAL:
            end = min(end + size, last)
    return end - at


def header_at(ids: Sequence[int], at: int) -> int:
    """How many ids are a header that begins with a channel; 0 if none is there."""
    header = ids[at : at + HEADER_IDS]
    if header[0] != CHANNEL or MESSAGE not in header:
        return 0
    end = header.index(MESSAGE)
    return end + 1 if max(header[1:end], default=0) < FIRST_SPECIAL else 0
