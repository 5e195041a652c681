"""Stop strings: the text up to the first of them, while it streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.generation import SegmentText

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Stops:
    """One text on its way to where it stops. What may be the front of a stop string waits.

    The first stop string to be complete counts; of two that end in the same place the longer one.
    `spelled` tells the bytes of the id at a position: text that comes with the ids that spell it is
    cut between ids, except at the stop string itself. There the last id may say more than the text.
    """

    def __init__(self, stops: Sequence[str], spelled: Callable[[int], bytes]) -> None:
        self.is_reached = False
        self._stops = stops
        self._fronts = _fronts(stops)
        self._spelled = spelled
        self._text = ""
        self._tokens: tuple[int, ...] = ()
        self._is_traced = True

    def feed(self, text: SegmentText) -> list[SegmentText]:
        """What may be shown now; nothing after a stop string."""
        if self.is_reached:
            return []
        self._text += text.text
        self._tokens += text.tokens
        # Once there is text without ids nobody can tell which ids are whose.
        self._is_traced = self._is_traced and bool(text.tokens)
        begin = self._begin_of_stop()
        if begin is not None:
            self.is_reached = True
            return self._show(begin, is_last=True)
        return self._show(len(self._text) - self._length_of_front(), is_last=False)

    def finish(self) -> list[SegmentText]:
        """The text is over; what waited was no stop string."""
        return [] if self.is_reached else self._show(len(self._text), is_last=True)

    def _begin_of_stop(self) -> int | None:
        found = ((self._text.find(stop), len(stop)) for stop in self._stops)
        ends = [(begin + length, begin) for begin, length in found if begin >= 0]
        return min(ends)[1] if ends else None

    def _length_of_front(self) -> int:
        """How much of the end may be the front of a stop string."""
        if not self._text.endswith(self._fronts):
            return 0
        return next(len(front) for front in self._fronts if self._text.endswith(front))

    def _show(self, length: int, *, is_last: bool) -> list[SegmentText]:
        tokens: tuple[int, ...] = ()
        if self._is_traced:
            count, length = self._cut(length, is_last=is_last)
            tokens, self._tokens = self._tokens[:count], self._tokens[count:]
        text, self._text = self._text[:length], self._text[length:]
        return [SegmentText(text, tokens)] if text else []

    def _cut(self, length: int, *, is_last: bool) -> tuple[int, int]:
        """How many ids spell the first `length` characters, and how many these really are."""
        content = self._text.encode()
        wanted = len(self._text[:length].encode())
        count = spelled = whole_count = whole = 0
        while spelled < wanted:
            spelled += len(self._spelled(self._tokens[count]))
            count += 1
            if spelled <= wanted and _is_boundary(content, spelled):
                whole_count, whole = count, spelled
        if is_last:
            return count, length
        return whole_count, len(content[:whole].decode())


def _fronts(stops: Sequence[str]) -> tuple[str, ...]:
    """The proper fronts of the stop strings, longest first."""
    fronts = {stop[:length] for stop in stops for length in range(1, len(stop))}
    return tuple(sorted(fronts, key=len, reverse=True))


def _is_boundary(content: bytes, at: int) -> bool:
    """Whether a character begins, or everything ends, at this offset into UTF-8."""
    return at == len(content) or content[at] & 0xC0 != 0x80
