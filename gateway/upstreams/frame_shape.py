"""What the events of one stream have in common, so that their ids can be taken without parsing.

An event of a completion differs from the one before it in two places only: its text, and its ids.
Reading it as JSON builds two objects, a list and a dozen strings to find one number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

EVENT_BYTES_MAX: Final = 0xFFF
"""No event has more that is a read of its own, and is read as that (`steady`)."""
_FRAME_BYTES_MAX: Final = 2048
ID_END: Final = 1 << 31
"""No number from here on is an id, whatever the vocabulary."""

JSON_STRING: Final = rb'[^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+){0,16}+'
r"""The inside of a JSON string, its UTF-8 unchecked. `\u` is for a parser: some are invalid.

So are texts of many escapes, for an expression that looks for a string may begin at any quote, and
would read on from each to the end (`is_plain`).
"""
_ESCAPE_BYTES_MIN: Final = 32
_TEMPLATE: Final = re.compile(
    rb'(data: [^\n]*?"text": ?")' + JSON_STRING + rb'("[^\n]*"token_ids": ?\[)[0-9,]+(\][^\n]*)'
)
_PROBE: Final = "a probe"
_PROBE_IDS: Final = [7, 12]


@dataclass(frozen=True, slots=True)
class FrameShape:
    """The bytes before the text, between text and ids, and behind the ids with the blank line."""

    before: bytes
    between: bytes
    behind: bytes
    _cutter: re.Pattern[bytes] = field(repr=False)
    _only: Callable[[bytes], re.Match[bytes] | None] = field(repr=False)

    @classmethod
    def learn(cls, payload: bytes, event: dict[str, object]) -> FrameShape | None:
        """The shape of an event, given as bytes and parsed; None where none is certain.

        It is certain once another event made by it is read as what it was made to say. Both places
        are then known to be the inside of a string and of a list, whatever they are filled with.
        """
        match = len(payload) <= _FRAME_BYTES_MAX and _TEMPLATE.fullmatch(b"data: " + payload)
        choices = event.get("choices")
        if not match or not isinstance(choices, list) or not isinstance(choices[0], dict):
            return None
        before, between, behind = match[1], match[2], match[3] + b"\n\n"
        sizes = len(before), len(between), len(behind)
        shape = cls(before, between, behind, _cutter(*sizes), _only(*sizes).fullmatch)
        said = {**choices[0], "text": _PROBE, "token_ids": _PROBE_IDS}
        if orjson.loads(shape._frame(_PROBE, _PROBE_IDS)) != {
            **event, "choices": [said, *choices[1:]],
        }:  # fmt: skip
            return None
        return shape

    def only_id(self, event: bytes) -> int | None:
        """The id of an event, given with its blank line, that has this shape and no other id.

        None where it has not, or that takes a closer look (`runs`).
        """
        match = self._only(event)
        if match is None:
            return None
        text, digits = match.groups()
        made = b"".join((self.before, text, self.between, digits, self.behind))
        if made != event or not (event.isascii() or is_utf8(event)):
            return None
        token = int(digits)
        return token if token < ID_END else None

    def runs(self, block: bytes) -> list[bytes | list[int]]:
        """Cut whole events, each with its blank line, into the ids of those that have this shape
        and the bytes of the others, both in the order of the stream.

        The expression only guesses where text and ids are, because it skips what it need not see.
        What makes it certain is that the parts, put together again, are the block.
        """
        parts = self._cutter.split(block)
        others, ids = parts[0::3], parts[2::3]
        if not ids or not self._makes(parts, block) or not (block.isascii() or is_utf8(block)):
            return [block]
        if not any(others):
            taken = numbers(ids)
            return [block] if taken is None else [taken]
        return self._mixed(others, ids) or [block]

    def _mixed(self, others: list[bytes], ids: list[bytes]) -> list[bytes | list[int]] | None:
        """None when the others are not whole events, or ids are no ids."""
        runs: list[bytes | list[int]] = []
        begin = 0
        for at, other in enumerate(others):
            if not other:
                continue
            if not other.endswith(b"\n\n"):
                return None
            if at > begin:
                taken = numbers(ids[begin:at])
                if taken is None:
                    return None
                runs.append(taken)
            runs.append(other)
            begin = at
        if begin < len(ids):
            taken = numbers(ids[begin:])
            if taken is None:
                return None
            runs.append(taken)
        return runs

    def _makes(self, parts: list[bytes], block: bytes) -> bool:
        count = len(parts) // 3
        if count == 1:  # what a stream at its usual pace brings; the general way costs twice that
            other, text, ids, rest = parts
            made = other + self.before + text + self.between + ids + self.behind + rest
            return made == block
        pieces = [b""] * (6 * count)
        pieces[0::6] = parts[0:-1:3]
        pieces[1::6] = [self.before] * count
        pieces[2::6] = parts[1::3]
        pieces[3::6] = [self.between] * count
        pieces[4::6] = parts[2::3]
        pieces[5::6] = [self.behind] * count
        pieces.append(parts[-1])
        return b"".join(pieces) == block

    def _frame(self, text: str, ids: list[int]) -> bytes:
        made = self.before + text.encode() + self.between + b",".join(b"%d" % i for i in ids)
        return (made + self.behind).removeprefix(b"data: ")


@lru_cache(maxsize=256)
def _cutter(before: int, between: int, behind: int) -> re.Pattern[bytes]:
    """Splits a block into: what does not fit, text, ids, what does not fit, text, ids, ..."""
    return re.compile(
        rb'(?s).{%d}"(%s)".{%d}\[([0-9,]++)\].{%d}'
        % (before - 1, JSON_STRING, between - 2, behind - 1)
    )


@lru_cache(maxsize=256)
def _only(before: int, between: int, behind: int) -> re.Pattern[bytes]:
    """Finds text and id of one event."""
    return re.compile(
        rb'(?s).{%d}"(%s)".{%d}\[([1-9][0-9]{0,9}+)\].{%d}'
        % (before - 1, JSON_STRING, between - 2, behind - 1)
    )


def numbers(lists: list[bytes]) -> list[int] | None:
    """The ids of several lists in one; None when any is no id, or a list is not as JSON has it."""
    try:
        ids: list[int] = orjson.loads(b"[%b]" % b",".join(lists))
    except orjson.JSONDecodeError:
        return None
    return ids if max(ids) < ID_END else None


def is_plain(block: bytes) -> bool:
    """Whether it has so few escapes that it is worth looking for texts in it."""
    return block.count(b"\\") * _ESCAPE_BYTES_MIN <= len(block)


def is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
