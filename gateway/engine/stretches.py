"""What of the next ids belongs together, and is written before anybody looks at the turn again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_IDS: Final = 64
"""Loops are looked for after so many ids."""
STRETCH_IDS_MAX: Final = 4096
"""So many ids are written at once, at most: to read them takes a millisecond or two."""


def is_text(ids: Sequence[int], text_ids: range) -> bool:
    """Whether no marker is among these ids, one or more."""
    return max(ids) < text_ids.stop and min(ids) >= text_ids.start


def text_at(ids: Sequence[int], at: int, text_ids: range) -> int:
    """How many ids from `at` on stand before the next marker, `STRETCH_IDS_MAX` at most."""
    end, last = at, min(len(ids), at + STRETCH_IDS_MAX)
    for size in (LOOK_IDS, 1):
        while end < last and is_text(ids[end : min(end + size, last)], text_ids):
            end = min(end + size, last)
    return end - at
