"""Characters that a reader does not see, or that change how others are read, and a model obeys.

What tools return, wherever it comes from, loses them before a model or a client is shown it.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPED: Final = r"\x00-\x08\x0b-\x1f"
"""Controls but tabs and line ends: JSON has them as escapes, which anybody sees."""
_RAW: Final = (
    r"\x7f-\x9f"  # more controls
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    r"\ufeff"  # a byte order mark
    r"\U000e0000-\U000e007f"  # tags, in which whole orders can be written
)
UNSEEN: Final = _ESCAPED + _RAW
"""The inside of a character class. Sources: Unicode Standard Annex 9 (directional formatting
characters), and chapter 23.9 of the Unicode Standard (tag characters)."""
_ANY: Final = re.compile(f"[{UNSEEN}]")
_ANY_RAW: Final = re.compile(f"[{_RAW}]")


def without_unseen(text: str) -> str:
    """Remove invisible characters; everything else stays as it is."""
    return _ANY.sub("", text)


def shown_in_json(text: str) -> str:
    """Remove invisible characters from a JSON string; JSON shows some of them, which stay."""
    return _ANY_RAW.sub("", text)
