"""Where a long text may be cut, so that its pieces have the tokens that it has as a whole.

Tokens never reach over what the vocabulary's pattern takes at once, and nothing that it takes

- begins with something else than white space and goes on with a space, or
- begins with a letter and goes on with a line feed, a full stop or a comma (Chinese ones, too).

So there a match ends, whatever stands behind it; and a match begins that depends on nothing before
it. (A space, a letter or a mark may each stand in front of others; an apostrophe may follow a
letter, and is no place to cut.)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_CHARS: Final = 32 * 1024
"""Making the ids of so much is short of a millisecond; meanwhile nothing else runs."""
_WINDOW_CHARS: Final = 16 * 1024
# It begins with what can be searched for at once. What is no letter is sorted out afterwards.
_PLACE: Final = re.compile(r"[ \n.,\u3002\uff0c](?:(?<=\S )|(?<=\w[\n.,\u3002\uff0c]))")


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about `PIECE_CHARS` characters; a run without a place to cut is one."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = _cut(text, start + PIECE_CHARS)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _cut(text: str, low: int) -> int:
    """The first place to cut from `low` on; without one, the end."""
    for start in range(low, len(text), _WINDOW_CHARS):
        for match in _PLACE.finditer(text, start, start + _WINDOW_CHARS):
            place = match.start()
            if text[place] == " " or text[place - 1].isalpha():
                return place
    return len(text)
