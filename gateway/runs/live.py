"""The log of one running response in this process: where a run and its readers meet.

The run appends entries and never waits; a reader that falls behind loses its queue, not its place:
it folds the log again up to where it stands. So memory per run is its ids, and per reader at most
`reader_events_max` events.

A *held* log shows an entry only when it is told that the entry is committed. It is folded at once
all the same, because the run decides by the fold what comes next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Self

from gateway.log import Repair, Tokens, TurnStarted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from gateway.log import Entry
    from gateway.output.fold import Fold
    from gateway.protocol.events import Event

REPLAY_SLICE_ENTRIES: Final = 256
"""A replay lets other tasks run after so many entries."""
SHORT_ENTRIES: Final = 16
"""So many are folded without waiting for one's turn."""


class _Reader:
    """A queue, unless it is lagging: then it is empty, and the log is folded again instead."""

    __slots__ = ("events", "lagging", "wake")

    def __init__(self, *, lagging: bool) -> None:
        self.events: deque[Event] = deque()
        self.lagging = lagging
        self.wake = asyncio.Event()

    def put(self, events: list[Event] | None, events_max: int) -> None:
        """Queue events; None stands for some that are not at hand."""
        if not self.lagging and events is not None:
            self.events.extend(events)
        if events is None or len(self.events) > events_max:
            self.lagging = True
            self.events.clear()
        self.wake.set()

    def take(self) -> list[Event]:
        batch = list(self.events)
        self.events.clear()
        return batch


class _Withheld:
    """Events by entry until the entries are shown. Forgotten when there are more than `events_max`.

    What is forgotten costs readers one folding of the log, and keeps an outage of the database
    from filling the memory.
    """

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._by_entry: deque[list[Event]] = deque()
        self._number = 0
        self._forgotten_entries = 0

    def put(self, events: list[Event]) -> None:
        self._by_entry.append(events)
        self._number += len(events)
        if self._number > self._events_max:
            self._forgotten_entries += len(self._by_entry)
            self._by_entry.clear()
            self._number = 0

    def take(self, entries: int) -> list[Event] | None:
        """The events of the first so many entries; None when some of them are forgotten."""
        forgotten = min(entries, self._forgotten_entries)
        self._forgotten_entries -= forgotten
        events: list[Event] = []
        for _ in range(entries - forgotten):
            events += self._by_entry.popleft()
        self._number -= len(events)
        return None if forgotten else events


class LiveLog:
    """Entries of one response, folded as they come.

    `produced` is set once readers see more than announcements: output, or an end; `closed` once
    nothing follows: after the end, after `give_up`, after `hand_over`.
    `failure` is why a run failed, for whoever can still answer with an HTTP status.
    `shown_at` is when readers last got an event, in the loop's time: ids that show nothing (a long
    header) are silence to a client.
    `append` folds and keeps an entry, and shows it, unless the log is held: then `show` does.
    `close` shows the last events, which the caller folded itself because something (a commit) had
    to happen between folding and showing them.
    """

    def __init__(
        self,
        new_fold: Callable[[], Fold],
        *,
        reader_events_max: int,
        held: bool = False,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """Of all logs that share a `turn`, one is folded again at a time."""
        self._new_fold = new_fold
        self._reader_events_max = reader_events_max
        self._held = held
        self._turn = turn or asyncio.Lock()
        self._entries: list[Entry] = []
        self._shown = 0
        self._last_shown: int | None = -1
        self._withheld = _Withheld(reader_events_max)
        self._readers: set[_Reader] = set()
        self._defect: Exception | None = None
        self.fold = new_fold()
        self.failure: Exception | None = None
        self.handed_over = False
        """Nothing follows here, but the response goes on or has ended elsewhere."""
        self.produced = asyncio.Event()
        self.closed = asyncio.Event()
        self.shown_at = asyncio.get_running_loop().time()

    @classmethod
    def restored(
        cls,
        new_fold: Callable[[], Fold],
        entries: Sequence[Entry],
        *,
        fold: Fold,
        reader_events_max: int,
        turn: asyncio.Lock | None = None,
    ) -> Self:
        """A held log that begins with entries that are committed already; all of them are shown.

        `fold` is the fold of these entries.
        """
        live = cls(new_fold, reader_events_max=reader_events_max, held=True, turn=turn)
        live.fold = fold
        live._entries = list(entries)
        live._reveal(len(entries), None)
        return live

    @property
    def is_holding(self) -> bool:
        """There are entries that are not shown yet."""
        return self._shown < len(self._entries)

    @property
    def last_repair(self) -> str | None:
        """The rule of the repair that the last turn ended with, or is about to; None: with none."""
        for entry in reversed(self._entries):
            if isinstance(entry, Repair):
                return entry.rule
            if isinstance(entry, Tokens | TurnStarted):
                return None
        return None

    def was_repaired(self, rule: str) -> bool:
        """The last turn has a repair by this rule."""
        for entry in reversed(self._entries):
            if isinstance(entry, Repair) and entry.rule == rule:
                return True
            if isinstance(entry, TurnStarted):
                return False
        return False

    def append(self, entry: Entry) -> None:
        """Fold an entry; show its events at once, or when it is committed.

        Raises `ValueError`, and keeps nothing, for one that cannot stand here.
        """
        events = self.fold.apply(entry)
        self._entries.append(entry)
        if self._held:
            self._withheld.put(events)
        else:
            self._reveal(len(self._entries), events)

    def show(self, count: int) -> None:
        """The first `count` entries are committed: readers get those they have not seen."""
        if self.handed_over or count <= self._shown:
            return
        self._reveal(count, self._withheld.take(count - self._shown))

    def close(self, entry: Entry, events: list[Event]) -> None:
        """Show the events of the last entry, which the caller has folded; nothing follows.

        What a held log kept back is shown before: the end is committed after all else.
        """
        self.show(len(self._entries))
        self._entries.append(entry)
        self.closed.set()
        self._reveal(len(self._entries), events)
        self.produced.set()

    def hand_over(self) -> None:
        """Let readers go without an end, to look for the rest elsewhere; nothing more is shown.

        Does nothing once there is an end.
        """
        if not self.closed.is_set():
            self.handed_over = True
            self._let_go()

    def give_up(self, failure: Exception) -> None:
        """Let everybody go without an end. Does nothing once there is one.

        Only a defect leads here; nobody may wait for ever because of it.
        """
        if not self.closed.is_set():
            self.failure = self._defect = failure
            self._let_go()

    def refold(self) -> Fold:
        """Fold again all that was appended: takes back an end that could not be kept."""
        self.fold = self._new_fold()
        for entry in self._entries:
            self.fold.apply(entry)
        return self.fold

    async def follow(self, after: int = -1) -> AsyncGenerator[list[Event], None]:
        """Events with a sequence number above `after`: those that were, then those to come.

        Yields non-empty lists. Ends after the terminal event, or without one when the log is
        handed over. Raises what `give_up` was given.
        """
        reader = _Reader(lagging=self._last_shown is None or after < self._last_shown)
        self._readers.add(reader)
        try:
            while True:
                if reader.lagging:
                    async for batch in self._replay(reader, after):
                        after = batch[-1].sequence_number
                        yield batch
                elif reader.events:
                    batch = [event for event in reader.take() if event.sequence_number > after]
                    if batch:
                        after = batch[-1].sequence_number
                        yield batch
                elif self.closed.is_set():
                    if self._defect is not None:
                        raise self._defect
                    return
                else:
                    reader.wake.clear()
                    await reader.wake.wait()
        finally:
            self._readers.discard(reader)

    async def _replay(self, reader: _Reader, after: int) -> AsyncGenerator[list[Event], None]:
        """Fold again from the start, in slices, until nothing was shown meanwhile.

        However many readers do so at once: the loop comes round between any two slices.
        """
        fold = self._new_fold()
        done = 0
        while (left := self._shown - done) > 0:
            batch: list[Event] = []
            async with nullcontext() if left <= SHORT_ENTRIES else self._turn:
                for entry in self._entries[done : min(self._shown, done + REPLAY_SLICE_ENTRIES)]:
                    batch += [event for event in fold.apply(entry) if event.sequence_number > after]
                    done += 1
                await asyncio.sleep(0)
            if batch:
                yield batch
        reader.lagging = False

    def _reveal(self, count: int, events: list[Event] | None) -> None:
        """Entries below number `count` are visible from now on; `events`, if known, are new."""
        shown, self._shown = self._entries[self._shown : count], count
        if any(isinstance(entry, Tokens) for entry in shown):
            self.produced.set()
        if events == []:
            return
        self.shown_at = asyncio.get_running_loop().time()
        self._last_shown = events[-1].sequence_number if events else None
        for reader in self._readers:
            reader.put(events, self._reader_events_max)

    def _let_go(self) -> None:
        self.closed.set()
        self.produced.set()
        for reader in self._readers:
            reader.wake.set()
