"""Reads of a stream that comes as fast as it can: each has many chunks, of one event each.

HTTP's parser makes an object of every chunk, and the reader of events cuts them up again. Here one
expression goes over the chunks as they came. What it makes no sense of, at either end of a read,
goes the general way, which finds nothing changed: its parser is between the same two chunks. The
part of an event that most reads end with waits for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from operator import add
from typing import TYPE_CHECKING, Final

from gateway.upstreams.frame_shape import EVENT_BYTES_MAX, JSON_STRING, is_plain, is_utf8, numbers

if TYPE_CHECKING:
    from gateway.upstreams.frame_shape import FrameShape

LONG_READ_BYTES: Final = 4096
"""A shorter read goes the general way."""
OPENING_BYTES: Final = 8192
"""So much of a read shows what its events look like."""
_SIZE_LINE: Final = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{0,7}+)\r\n")
_PART_OF_SIZE_LINE: Final = re.compile(rb"[1-9a-fA-F][0-9a-fA-F]{0,2}+\r?")
_LAST_SIZE_LINE: Final = re.compile(rb"\r\n([1-9a-fA-F][0-9a-fA-F]{0,7}+)\r\n\Z")
_LAST_SIZE_LINE_BYTES: Final = 12
_CONTENT_BYTES: Final = 8
"""About as many have a text and its ids."""

HearRun = Callable[[list[int]], bool]
"""Has ids of events heard that all had the expected shape; False: they were not."""


class LongReads:
    """Finds the ids in runs of whole chunks, each of one event of one shape.

    `owed` is how many bytes have to come before the HTTP parser is between two chunks; None: not
    known.
    """

    __slots__ = ("_cutter", "_heads", "hear", "owed", "shape")

    def __init__(self, shape: FrameShape, hear: HearRun) -> None:
        self.hear = hear
        self.owed: int | None = None
        self.shape = shape
        fixed = len(shape.before) + len(shape.between) + len(shape.behind)
        # Nearly all chunks of a stream have a size of as many digits, which need not be looked for.
        head = len(b"%x\r\n" % (fixed + _CONTENT_BYTES)) + len(shape.before)
        self._cutter = _cutter(head, len(shape.between), len(shape.behind))
        self._heads = _Heads(fixed, shape.before)

    def cut(self, read: bytes) -> tuple[int, list[int], int]:
        """Where a run begins in this read, its ids, and where it ends.

        Without ids there is none. Behind the run `owed` is as if what follows it was parsed.
        """
        begin, self.owed = self.owed, None
        if begin is None or len(read) - begin < LONG_READ_BYTES or not is_plain(read):
            return 0, [], 0
        ids, end = self._run(read, begin)
        if not ids:
            return 0, [], 0
        self.owed = _owed(read[end:])
        return begin, ids, end

    def _run(self, read: bytes, begin: int) -> tuple[list[int], int]:
        """The expression only guesses where texts and ids are, as in `FrameShape.runs`. What makes
        it certain is that the chunks, with sizes made anew, are what the read has there.
        """
        parts = self._cutter.split(read[begin:] if begin else read)
        others = parts[0:-1:3]
        if any(others):  # they are steady up to there
            del parts[3 * next(at for at, other in enumerate(others) if other) + 1 :]
        texts, lists = parts[1::3], parts[2::3]
        try:
            heads = list(map(self._heads.__getitem__, map(add, map(len, texts), map(len, lists))))
        except KeyError:  # one is too long
            return [], begin
        if not heads:
            return [], begin
        shape, count = self.shape, len(texts)
        pieces = [shape.between] * (5 * count)
        pieces[0::5] = heads
        pieces[1::5] = texts
        pieces[3::5] = lists
        pieces[4::5] = [shape.behind + b"\r\n"] * count
        made = b"".join(pieces)
        if not read.startswith(made, begin) or not (made.isascii() or is_utf8(made)):
            return [], begin
        return numbers(lists) or [], begin + len(made)


class _Heads(dict[int, bytes]):
    """What a chunk has before its text, by how many bytes its text and its ids have together."""

    def __init__(self, fixed: int, before: bytes) -> None:
        super().__init__()
        self._fixed = fixed
        self._before = before

    def __missing__(self, size: int) -> bytes:
        if size + self._fixed > EVENT_BYTES_MAX:
            raise KeyError(size)
        head = self[size] = b"%x\r\n%b" % (size + self._fixed, self._before)
        return head


def opening(read: bytes) -> int:
    """How much of a read goes the general way first, so that the rest need not: up to the end of
    an event, most likely. All of it where the rest is not worth it.
    """
    if len(read) < 2 * OPENING_BYTES:
        return len(read)
    end = read.find(b"\n\n\r\n", OPENING_BYTES)
    return end + 4 if end > 0 else len(read)


def owed(read: bytes, piece: bytes) -> int | None:
    """How many bytes have to come before the parser is between two chunks, behind a read of which
    it found this last piece of the body; None: that is not certain.

    A line end that is no carriage return is in no size, so a piece that ends with an empty line
    stands where it seems to, and behind it is no more than the end of its chunk. Without any
    carriage return a piece cannot end with what comes between two chunks either.
    """
    if not piece or b"\r" in piece:
        return None
    if piece.endswith(b"\n\n") and read.endswith(piece + b"\r\n"):
        return 0
    begin = len(read) - len(piece)
    line = _LAST_SIZE_LINE.search(read, max(0, begin - _LAST_SIZE_LINE_BYTES), begin)
    if line is None or not read.endswith(piece):
        return None
    return int(line[1], 16) + 2 - len(piece)


def is_part(rest: bytes) -> bool:
    """What stands behind a run is a part of one event and no more, so that nobody misses it yet."""
    line = _SIZE_LINE.match(rest)
    if line is None:
        return _PART_OF_SIZE_LINE.fullmatch(rest) is not None
    if int(line[1], 16) > EVENT_BYTES_MAX:
        return False
    # No event ends without a line end, and no other line of it is of interest.
    begin = line.end()
    return rest.find(b"\n", begin) < 0 and rest.find(b"\r", begin) < 0


def _owed(rest: bytes) -> int | None:
    """The same behind bytes that begin with a chunk, if they hold no whole one."""
    if not rest:
        return 0
    line = _SIZE_LINE.match(rest)
    left = line.end() + int(line[1], 16) + 2 - len(rest) if line is not None else -1
    return left if left >= 0 else None


@lru_cache(maxsize=256)
def _cutter(head: int, between: int, behind: int) -> re.Pattern[bytes]:
    """Splits a read into: what does not fit, text, ids, what does not fit, text, ids, ...

    Given how many bytes there are from size to text, between text and ids, and behind these.
    """
    return re.compile(
        rb'(?s).{%d}+"(%b)".{%d}+\[([0-9,]++)\].{%d}+'
        % (head - 1, JSON_STRING, between - 2, behind + 1)
    )
