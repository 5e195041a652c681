"""The entries of one log in memory, of which nearly all are a token id or two."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from gateway.entries import SINGLES_MAX, Singles, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.entries import Entry, Portion


class EntryBuffer:
    """A list of entries that only grows.

    Ids stand in one array, and where each entry ends in it in another one: 8 bytes for an entry of
    one id, where the entry itself has 140. All else is kept as it is.
    """

    __slots__ = ("_ends", "_ids", "_others")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._ids = array("I")
        self._ends = array("I")
        self._others: dict[int, Entry] = {}
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        """One more."""
        if type(entry) is Tokens and not entry.logprobs:
            self._ids.extend(entry.ids)
        else:
            self._others[len(self._ends)] = entry
        self._ends.append(len(self._ids))

    def add(self, portion: Portion) -> None:
        """One more portion."""
        if isinstance(portion, Singles):
            end = len(self._ids)
            self._ids.extend(portion.ids)
            self._ends.extend(range(end + 1, end + 1 + len(portion)))
        else:
            self.append(portion)

    def portions(self, start: int, stop: int) -> Iterator[Portion]:
        """The same as `between`, those with a single id together."""
        while start < stop:
            ids = self._singles(start, min(stop, start + SINGLES_MAX))
            yield Singles(ids) if ids else self._at(start)
            start += len(ids) or 1

    def _singles(self, start: int, stop: int) -> tuple[int, ...]:
        """The ids of the first entries between these, as far as each has one."""
        first = self._ends[start - 1] if start else 0
        end = first
        for end_of_one in self._ends[start:stop]:
            if end_of_one != end + 1:
                break
            end = end_of_one
        return tuple(self._ids[first:end])

    def between(self, start: int, stop: int) -> Iterator[Entry]:
        """Those from number `start` on, before number `stop`, which must be there."""
        for number in range(start, stop):
            yield self._at(number)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Entry]:
        return self.between(0, len(self))

    def __reversed__(self) -> Iterator[Entry]:
        for number in reversed(range(len(self))):
            yield self._at(number)

    def _at(self, number: int) -> Entry:
        other = self._others.get(number)
        if other is not None:
            return other
        start = self._ends[number - 1] if number else 0
        return Tokens(tuple(self._ids[start : self._ends[number]]))
