"""A thought, or text for the user, while it is written: its white space, and where its ids are.

Models put white space between a marker and what is said. That belongs to the marker: nothing of it
is told behind one or before one. So white space at the end of what came waits for what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.generation import SegmentEnded, SegmentStarted, SegmentText

if TYPE_CHECKING:
    from gateway.generation import SegmentEvent, SegmentKind


class Unit(NamedTuple):
    """Text, and the positions `start:end` of the ids that spell it: no fewer than end where a
    character does. `is_exact`: these ids are the UTF-8 of this text, and of nothing else.
    """

    text: str
    start: int
    end: int
    is_exact: bool = False

    def cut(self, size: int) -> tuple[Unit, Unit]:
        """Split into the first `size` characters and the others."""
        front = Unit(self.text[:size], self.start, self.end)
        return front, Unit(self.text[size:], self.start, self.end)


class Prose:
    """One segment. It begins with the first text that is more than white space.

    `start` is the position of its message's first id. With `keeps_front` white space in front of
    the text is part of it: there is no marker before it. With `trace` text comes with the positions
    of its ids, and an id is told as a whole.
    """

    __slots__ = ("_events", "_keeps_front", "_spaces", "_trace", "is_started", "kind", "start")

    def __init__(
        self,
        kind: SegmentKind,
        start: int,
        events: list[SegmentEvent],
        *,
        keeps_front: bool = False,
        trace: bool = False,
    ) -> None:
        self.kind = kind
        self.start = start
        self.is_started = False
        self._events = events
        self._keeps_front = keeps_front
        self._trace = trace
        self._spaces: list[Unit] = []

    @property
    def is_flowing(self) -> bool:
        return self.is_started and not self._spaces

    def write(self, unit: Unit) -> None:
        size = len(unit.text.rstrip())
        if not size:
            self._spaces.append(unit)
            return
        units, self._spaces = [*self._spaces, unit], []
        if not self.is_started:
            self.is_started = True
            self._events.append(SegmentStarted(self.kind))
            if not self._keeps_front:
                units = [_without_front(unit)]
        last = units[-1]
        if (behind := len(last.text) - len(last.text.rstrip())) and not self._trace:
            units[-1], space = last.cut(len(last.text) - behind)
            self._spaces.append(space)
        elif behind:
            self._spaces.append(units.pop())
        self._tell(units)

    def close(self, end: int, *, complete: bool, at_marker: bool) -> None:
        """End before position `end`; at a marker, without the white space before that."""
        units, self._spaces = self._spaces, []
        if not self.is_started:
            return
        if at_marker:
            units = [_without_end(unit) for unit in units]
        self._tell([unit for unit in units if unit.text])
        self._events.append(SegmentEnded(self.start, end, complete))

    def _tell(self, units: list[Unit]) -> None:
        if not self._trace:
            if text := "".join(unit.text for unit in units):
                self._events.append(SegmentText(text))
            return
        for text, start, end, is_exact in units:
            tokens = tuple(range(start, end)) if is_exact else ()
            self._events.append(SegmentText(text, tokens))


def _without_front(unit: Unit) -> Unit:
    text = unit.text.lstrip()
    return unit if len(text) == len(unit.text) else Unit(text, unit.start, unit.end)


def _without_end(unit: Unit) -> Unit:
    text = unit.text.rstrip()
    return unit if len(text) == len(unit.text) else Unit(text, unit.start, unit.end)
