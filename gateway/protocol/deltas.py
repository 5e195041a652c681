"""Deltas that follow on each other, of which nobody has made events yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import orjson
from typing_extensions import override

from gateway.protocol.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.protocol.showing import DeltaPattern


class Deltas(Sequence[Event]):
    """Delta events of one part, numbered one after the other: each is made when it is asked for.

    A long log is replayed as little else, and whoever writes all of it asks for none: from `texts`,
    none of which is empty, their frames are made at once, in a fraction of the time that as many
    events take. `sequence_number` is that of the first.
    """

    __slots__ = ("pattern", "sequence_number", "texts")

    def __init__(self, pattern: DeltaPattern, sequence_number: int, texts: Sequence[str]) -> None:
        self.pattern = pattern
        self.sequence_number = sequence_number
        self.texts = texts

    @property
    def last_number(self) -> int:
        """The sequence number of the last; of an empty run, that before its first."""
        return self.sequence_number + len(self.texts) - 1

    def part(self, start: int, stop: int) -> Deltas:
        """Those from one place up to another."""
        return Deltas(self.pattern, self.sequence_number + start, self.texts[start:stop])

    @override
    def __len__(self) -> int:
        return len(self.texts)

    @override
    def __iter__(self) -> Iterator[Event]:
        return map(self._event, self._numbers, self.texts)

    @overload
    def __getitem__(self, at: int) -> Event: ...

    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...

    @override
    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        if isinstance(at, slice):
            return list(map(self._event, self._numbers[at], self.texts[at]))
        return self._event(self._numbers[at], self.texts[at])

    @property
    def _numbers(self) -> range:
        return range(self.sequence_number, self.sequence_number + len(self.texts))

    def _event(self, number: int, text: str) -> Event:
        pattern = self.pattern
        encoded = orjson.dumps(text)
        data = b"".join((pattern.before, b"%d" % number, pattern.between, encoded, pattern.behind))
        return Event(pattern.type, number, data, len(text), encoded)
