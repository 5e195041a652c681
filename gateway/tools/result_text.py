"""Text of results, shortened for the model, and without invisible characters: a model may obey what
a reader does not see.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


_ESCAPED: Final = r"\x00-\x08\x0b-\x1f"
"""Not tabs and line ends. JSON has these as visible escapes."""
_RAW: Final = (
    r"\x7f-\x9f"  # more controls
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    r"\ufeff"  # a byte order mark
    r"\U000e0000-\U000e007f"  # tags, in which whole orders can be written
)
UNSEEN: Final = _ESCAPED + _RAW
"""Unicode Standard Annex 9, and chapter 23.9 of the Unicode Standard."""
_ANY: Final = re.compile(f"[{UNSEEN}]")
_ANY_RAW: Final = re.compile(f"[{_RAW}]")


def without_unseen(text: str) -> str:
    return _ANY.sub("", text)


def shown_in_json(text: str) -> str:
    """Remove invisible characters that JSON does not escape."""
    return _ANY_RAW.sub("", text)


HEAD_SHARE: Final = 0.6
"""Errors and totals stand at the end."""
LINE_SHARE_MIN: Final = 0.5
"""A part is cut at a line end if that leaves so much of it."""
CHARS_PER_ID: Final = 4
"""About, in English."""
BYTES_PER_CHAR_MAX: Final = 4
"""No id is less than a byte, so no character is more ids than that."""
_TRIES_MAX: Final = 8
_FILL: Final = 0.85
"""So much of its ids is enough for a part."""


def truncated(text: str, ids_max: int, count_ids: Callable[[str], int], advice: str) -> str:
    """Return at most `ids_max` ids: head, a note with `advice` on how to get the rest, and tail.

    `count_ids` may take long: call this in a thread for a long text.
    """
    if _is_short(text, ids_max, count_ids):
        return text
    room = ids_max
    for _ in range(_TRIES_MAX):
        # Its number is not longer than that of the whole text.
        note_ids = count_ids(_note(len(text), advice))
        left = room - note_ids
        if left <= 0:
            break
        head = _line_end(_beginning(text, int(left * HEAD_SHARE), count_ids))
        rest = text[len(head) :]
        tail = _line_begin(_end(rest, left - int(left * HEAD_SHARE), count_ids))
        cut = head + _note(len(rest) - len(tail), advice) + tail
        excess = count_ids(cut) - ids_max
        if excess <= 0:
            return cut
        # Joining parts can change the ids at their borders, and so their number.
        room -= excess
    return _beginning(text, ids_max, count_ids)


def _note(missing: int, advice: str) -> str:
    return f"\n[{missing} characters are left out here. {advice}]\n"


def _is_short(text: str, ids_max: int, count_ids: Callable[[str], int]) -> bool:
    if len(text) * BYTES_PER_CHAR_MAX <= ids_max:
        return True
    # If the beginning alone is too long, the rest of the text need not be counted.
    beginning = text[: ids_max * CHARS_PER_ID * 2]
    count = count_ids(beginning)
    return count <= ids_max and (len(beginning) == len(text) or count_ids(text) <= ids_max)


def _beginning(text: str, ids_max: int, count_ids: Callable[[str], int]) -> str:
    return text[: _length(lambda size: count_ids(text[:size]), len(text), ids_max)]


def _end(text: str, ids_max: int, count_ids: Callable[[str], int]) -> str:
    size = _length(lambda size: count_ids(text[-size:]), len(text), ids_max)
    return text[-size:] if size else ""


def _length(count: Callable[[int], int], length: int, ids_max: int) -> int:
    # A number of characters that is at most `ids_max` ids, not always the greatest. `count` is
    # called a few times, with not much more than that.
    size, best = min(length, ids_max * CHARS_PER_ID), min(length, ids_max // BYTES_PER_CHAR_MAX)
    for _ in range(_TRIES_MAX):
        if size <= best:
            break
        ids = count(size)
        if ids <= ids_max:
            best = size
            if size == length or ids >= ids_max * _FILL:
                break
        # A little less than what the same rate would give, for the rate is not everywhere the same.
        size = min(length, int(size * ids_max / max(ids, 1) * 0.95))
    return best


def _line_end(text: str) -> str:
    at = text.rfind("\n")
    return text[:at] if at >= len(text) * LINE_SHARE_MIN else text


def _line_begin(text: str) -> str:
    at = text.find("\n") + 1
    return text[at:] if 0 < at <= len(text) * (1 - LINE_SHARE_MIN) else text


def plain(text: str) -> str:
    """Remove what a terminal or reader would obey or not see."""
    return without_unseen(text).encode("utf-8", "replace").decode()


def cut(text: str, bytes_max: int) -> str:
    """Shorten text to about `bytes_max` bytes of UTF-8."""
    content = text.encode("utf-8", "replace")
    if len(content) <= bytes_max:
        return content.decode()
    head = content[: int(bytes_max * HEAD_SHARE)].decode("utf-8", "ignore")
    tail = content[len(content) - (bytes_max - int(bytes_max * HEAD_SHARE)) :]
    missing = len(content) - bytes_max
    return f"{head}\n[... {missing} bytes left out ...]\n{tail.decode('utf-8', 'ignore')}"


def bounded(text: str, chars_max: int) -> str:
    cleaned = plain(text)
    return cleaned if len(cleaned) <= chars_max else cleaned[: chars_max - 1] + "…"
