"""Turns and prompts of models whose servers take and return text only, as ids.

All stages behind a turn count ids. So each character is an id, behind all ids that a vocabulary may
have, and so are the marks between thoughts, answer and calls:

    THOUGHT  characters …   ANSWER  characters …   CALL  name  ARGUMENTS  JSON …   END

The prompt is lines of JSON, four bytes in each id, which is about what a token is: the options of
the request, then a message on each (`docs/models.md`).
"""

from __future__ import annotations

import re
import sys
from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TEXT_BASE: Final = 1 << 24
"""The id of U+0000. No vocabulary has so many ids."""
CHARACTERS: Final = sys.maxunicode + 1
TEXT_IDS: Final = range(TEXT_BASE, TEXT_BASE + CHARACTERS)
THOUGHT, ANSWER, CALL, ARGUMENTS, END = range(TEXT_IDS.stop, TEXT_IDS.stop + 5)
TEXT_IDS_END: Final = END + 1
TEXT_STATE: Final = b"text"
"""`ModelFormat.template_state` of a run whose turns are text."""
CHARACTERS_PER_TOKEN: Final = 4
MESSAGE_START: Final = b'{"role":'
ASSISTANT_START: Final = b'{"role":"assistant"'
IMAGE_TOKENS: Final = 1024

_MARK_BYTE: Final = 0xF8
"""The first of the bytes that no UTF-8 has: each of them is a mark."""
_MARKS: Final = re.compile(b"([\xf8-\xff])")
_WORD: Final = 4
_IMAGE: Final = re.compile(rb'\{"type":"image_url","image_url":\{"url":("data:[^"]*")')
"""An image in a message, and its URL. A text cannot look like it: JSON escapes its quotes."""


def ids_of(text: str) -> list[int]:
    """Return the id of each character; half a surrogate pair becomes U+FFFD."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return [TEXT_BASE + ord(character) for character in text]


def text_of(ids: Iterable[int]) -> str:
    return "".join(chr(one - TEXT_BASE) for one in ids if one in TEXT_IDS)


def is_text(ids: Sequence[int]) -> bool:
    return bool(ids) and ids[0] >= TEXT_BASE


def estimated_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def packed_text(ids: Sequence[int]) -> bytes:
    """Return UTF-8, with a byte that UTF-8 does not use for each mark. Raises `ValueError` for
    other ids.
    """
    packed, begun = bytearray(), 0
    for at, one in enumerate(ids):
        if one in TEXT_IDS:
            continue
        if not THOUGHT <= one <= END:
            raise ValueError(f"{one} is no id of text")
        packed += text_of(ids[begun:at]).encode()
        packed.append(_MARK_BYTE + one - THOUGHT)
        begun = at + 1
    packed += text_of(ids[begun:]).encode()
    return bytes(packed)


def unpacked_text(packed: bytes) -> tuple[int, ...]:
    """Reverse `packed_text`. Raises `ValueError` for other bytes."""
    ids: list[int] = []
    for part in _MARKS.split(packed):
        if _MARKS.fullmatch(part):
            mark = THOUGHT + part[0] - _MARK_BYTE
            if mark > END:
                raise ValueError("a text in the log has a mark that is not known")
            ids.append(mark)
        else:
            ids += map(TEXT_BASE.__add__, map(ord, part.decode()))
    return tuple(ids)


def packed_lines(lines: Iterable[bytes]) -> array[int]:
    """Return JSON values, on a line each, as ids. All replicas must have the same byte order."""
    content = b"".join(line + b" " * (-(len(line) + 1) % _WORD) + b"\n" for line in lines)
    return array("I", content)


def unpacked_lines(ids: Sequence[int]) -> list[bytes]:
    return _content(ids).split(b"\n")[:-1]


def prompt_tokens(ids: Sequence[int]) -> int:
    """Return about how many tokens such a prompt is, with `IMAGE_TOKENS` for an image.

    Options and calls of an assistant have users' JSON in them, and no images.
    """
    content = _content(ids)
    images = [
        match.end(1) - match.start(1)
        for line in content.split(b"\n")
        if line.startswith(MESSAGE_START) and not line.startswith(ASSISTANT_START)
        for match in _IMAGE.finditer(line)
    ]
    return (len(content) - sum(images)) // _WORD + IMAGE_TOKENS * len(images)


def surplus_ids(ids: Sequence[int]) -> int:
    return len(ids) - prompt_tokens(ids)


def _content(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()
