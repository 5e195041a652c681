"""Entries of one log in memory, folded in slices so that the event loop is not held up."""

from __future__ import annotations

import asyncio
from array import array
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.entries import SINGLES_MAX, Singles, Tokens, portions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from gateway.entries import Entry, Portion
    from gateway.eventlog.fold.fold import Fold
    from gateway.protocol.stream_events import Event, EventSink
    from gateway.store.events import LogRow

READ_BYTES_MAX: Final = 1024 * 1024
SLICE_S: Final = 0.002
SHOWN_MIN: Final = 64
"""Fewer events wait for the next ones, unless the slice is over."""
AFTER_EVERY_EVENT: Final = 2**62


class EntryBuffer:
    """Append-only list of entries; an entry of one id takes 8 bytes instead of 140."""

    __slots__ = ("_ends", "_ids", "_others")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._ids = array("I")
        self._ends = array("I")
        self._others: dict[int, Entry] = {}
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        if type(entry) is Tokens and not entry.logprobs:
            self._ids.extend(entry.ids)
        else:
            self._others[len(self._ends)] = entry
        self._ends.append(len(self._ids))

    def add(self, portion: Portion) -> None:
        if isinstance(portion, Singles):
            end = len(self._ids)
            self._ids.extend(portion.ids)
            self._ends.extend(range(end + 1, end + 1 + len(portion)))
        else:
            self.append(portion)

    def portions(self, start: int, stop: int) -> Iterator[Portion]:
        while start < stop:
            ids = self._singles(start, min(stop, start + SINGLES_MAX))
            yield Singles(ids) if ids else self._entry_at(start)
            start += len(ids) or 1

    def _singles(self, start: int, stop: int) -> tuple[int, ...]:
        first = self._ends[start - 1] if start else 0
        end = first
        for end_of_one in self._ends[start:stop]:
            if end_of_one != end + 1:
                break
            end = end_of_one
        return tuple(self._ids[first:end])

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry_at, range(len(self)))

    def __reversed__(self) -> Iterator[Entry]:
        return map(self._entry_at, reversed(range(len(self))))

    def _entry_at(self, number: int) -> Entry:
        other = self._others.get(number)
        if other is not None:
            return other
        start = self._ends[number - 1] if number else 0
        return Tokens(tuple(self._ids[start : self._ends[number]]))


def fold_slice(
    fold: Fold, log: Iterator[Portion], sink: EventSink, *, after: int, slice_s: float
) -> tuple[Awaitable[None] | None, bool]:
    """Fold for `slice_s` seconds, to the end, or until the sink returns an awaitable.

    Return that awaitable, and True if there is more. The sink gets short sequences, to bound
    memory.
    """
    events: Sequence[Event] = ()
    until = monotonic() + slice_s
    for portion in log:
        more = fold.replay(portion, after)
        # A run of deltas is shown as it is, for nobody may need the events.
        events = [*events, *more] if events else more
        is_over = monotonic() >= until
        if is_over or len(events) >= SHOWN_MIN:
            rest = sink(events)
            if is_over or rest is not None:
                return rest, True
            events = ()
    return sink(events), False


def send_nobody(_events: Sequence[Event]) -> None:
    """Ignore events."""


async def fold_rows(
    fold: Fold, rows: Iterable[LogRow], *, from_entry: int = 0, slice_s: float = SLICE_S
) -> EntryBuffer:
    """Fold and return the entries of a log from number `from_entry` on; `rows` begin with its row.

    Raises `ValueError` if entries are missing, damaged or invalid.
    """
    entries = EntryBuffer()
    log = _keep_portions(entries, rows, from_entry)
    is_more = True
    while is_more:
        _, is_more = fold_slice(fold, log, send_nobody, after=AFTER_EVERY_EVENT, slice_s=slice_s)
        if is_more:
            await asyncio.sleep(0)
    return entries


def _keep_portions(
    entries: EntryBuffer, rows: Iterable[LogRow], from_entry: int
) -> Iterator[Portion]:
    for row in rows:
        done = from_entry + len(entries)
        if row.first_entry > done:
            raise ValueError(f"entries of the log are missing before number {row.first_entry}")
        for portion in portions(row.entries, done - row.first_entry):
            yield portion
            entries.add(portion)


def check_complete(entries: int, next_entry: int) -> None:
    if entries != next_entry:
        raise ValueError(f"the log has {entries} entries where there should be {next_entry}")
