"""Reads of a stream at its usual pace: each is one chunk, of one event, with one id.

The general way to that id is HTTP's parser, the stream's splitter and its reader of events, one
after the other. Here one expression looks at the read as it came, and the id goes straight to who
listens. Whatever is not exactly such a read goes the general way, which finds nothing changed.
"""

from __future__ import annotations

import asyncio
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gateway.upstreams.frame_shape import JSON_STRING, is_utf8

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.generation import HearText, Listener
    from gateway.upstreams.completions import CompletionReader
    from gateway.upstreams.frame_shape import FrameShape
    from gateway.upstreams.http.connection import Connection, TakeShort
    from gateway.upstreams.http.deadline import Deadline

_WAIT_IDS_MAX: Final = 64
_FRAMING: Final = 4
"""The bytes of the two line ends around a chunk."""


class Shortcut:
    """Whether one generation's reads are taken as they come.

    To open it costs as much as some ids that go the general way. So where it ends soon, again and
    again (each second read has two events, each second id has half a character), or does not open
    at all, it is tried less often.
    """

    __slots__ = ("_opened_at", "_reader", "_stall_s", "_steady", "_wait_ids")

    def __init__(self, reader: CompletionReader, stall_s: float) -> None:
        """A backend may say nothing for `stall_s` between two ids."""
        self._reader = reader
        self._stall_s = stall_s
        self._steady: SteadyReads | None = None
        self._opened_at = reader.ids_left
        self._wait_ids = 1

    @property
    def heard_at(self) -> float:
        """When the last id came this way, in the loop's time; a time before all if none did."""
        return -math.inf if self._steady is None else self._steady.heard_at

    def open(self, listener: Listener, connection: Connection) -> TakeShort | None:
        """What takes the next reads behind one that had one id; None: not now.

        All that was read must have been heard.
        """
        came, wait = self._opened_at - self._reader.ids_left, self._wait_ids
        if came < wait:
            return None
        self._opened_at -= came
        self._wait_ids = max(1, wait // 2) if came >= 4 * wait else min(2 * wait, _WAIT_IDS_MAX)
        shape = self._reader.steady_shape
        hear = listener.flow() if shape is not None else None
        if shape is None or hear is None:
            return None
        if self._steady is None or self._steady.shape is not shape:
            self._steady = SteadyReads(
                shape,
                self._reader,
                connection.deadline,
                patience_s=self._stall_s,
                clock=asyncio.get_running_loop().time,
            )
        self._steady.hear = hear
        return self._steady.take


class SteadyReads:
    """Takes reads of events of one shape, as long as they are steady.

    Between two of them the HTTP parser must be between two chunks, and the reader of events between
    two events. `heard_at` is when the last was taken, in the loop's time; it moves the deadline to
    `patience_s` after that.
    """

    __slots__ = (
        *("_before", "_behind", "_between", "_clock", "_deadline", "_match", "_patience_s"),
        *("_reader", "hear", "heard_at", "shape"),
    )

    def __init__(
        self,
        shape: FrameShape,
        reader: CompletionReader,
        deadline: Deadline,
        *,
        patience_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.hear: HearText = _hear_nothing
        self.heard_at = -math.inf
        self.shape = shape
        self._before = b"\r\n" + shape.before
        self._between = shape.between
        self._behind = shape.behind + b"\r\n"
        sizes = len(self._before), len(shape.between), len(self._behind)
        self._match = _steady(*sizes).fullmatch
        self._reader = reader
        self._deadline = deadline
        self._patience_s = patience_s
        self._clock = clock

    def take(self, read: bytes) -> bool:
        """Have the id heard; False: it was not, and the read goes the general way.

        The expression only guesses where size, text and id are. They are there if all that it found
        makes up the read again, as in `FrameShape.runs`.
        """
        match = self._match(read)
        reader = self._reader
        if match is None or reader.ids_left <= 0:
            return False
        size, text, digits = match.groups()
        made = b"".join((size, self._before, text, self._between, digits, self._behind))
        if made != read or _read_bytes[size] != len(read):
            return False
        if not (read.isascii() or is_utf8(read)):
            return False
        token, now = int(digits), self._clock()
        if token >= reader.id_end or not self.hear(token, now):
            return False
        reader.ids_left -= 1
        reader.last_id = token
        self.heard_at = now
        self._deadline.at = now + self._patience_s
        return True


class _ReadBytes(dict[bytes, int]):
    """How many bytes a chunk has with what is around it, by its size as it is written. A backend
    writes few of the sizes that the expression finds, and to look one up is faster than to read it.
    """

    def __missing__(self, size: bytes) -> int:
        whole = self[size] = len(size) + int(size, 16) + _FRAMING
        return whole


_read_bytes: Final = _ReadBytes()


def _hear_nothing(_token: int, _now: float) -> bool:
    return False


@lru_cache(maxsize=256)
def _steady(before: int, between: int, behind: int) -> re.Pattern[bytes]:
    """Finds size, text and id in one chunk of one event, which has `EVENT_BYTES_MAX` at most."""
    return re.compile(
        rb'(?s)([1-9a-fA-F][0-9a-fA-F]{0,2}+).{%d}"(%b)".{%d}\[([1-9][0-9]{0,9}+)\].{%d}'
        % (before - 1, JSON_STRING, between - 2, behind - 1)
    )
