"""The log of one running response in this process: where a run and its readers meet.

The run appends entries and never waits; a reader that falls behind loses its queue, not its place:
it folds the log again up to where it stands. So memory per run is its ids, and per reader at most
`reader_events_max` events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from gateway.log import Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gateway.log import Entry
    from gateway.output.fold import Fold
    from gateway.protocol.events import Event

REPLAY_SLICE_ENTRIES = 256
"""A replay lets other tasks run after so many entries."""


class _Reader:
    __slots__ = ("events", "lagging", "wake")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.lagging = True
        self.wake = asyncio.Event()


class LiveLog:
    """Entries of one response, folded as they come.

    `produced` is set once there is more than the announcement of a turn: output, or an end;
    `closed` once there is the end.
    `failure` is why a run failed, for whoever can still answer with an HTTP status.
    `shown_at` is when readers last got an event, in the loop's time: ids that show nothing (a long
    header) are silence to a client.
    `append` folds, keeps and shows an entry. `close` shows the last events, which the caller
    folded itself because something (a commit) had to happen between folding and showing them.
    """

    def __init__(self, new_fold: Callable[[], Fold], *, reader_events_max: int) -> None:
        self._new_fold = new_fold
        self._reader_events_max = reader_events_max
        self._entries: list[Entry] = []
        self._readers: set[_Reader] = set()
        self.fold = new_fold()
        self.failure: Exception | None = None
        self._defect: Exception | None = None
        self.produced = asyncio.Event()
        self.closed = asyncio.Event()
        self.shown_at = asyncio.get_running_loop().time()

    def append(self, entry: Entry) -> None:
        """Fold an entry and show its events at once."""
        self._keep(entry, self.fold.apply(entry))
        if isinstance(entry, Tokens):
            self.produced.set()

    def close(self, entry: Entry, events: list[Event]) -> None:
        """Show the events of the last entry, which the caller has folded; nothing follows."""
        self.closed.set()
        self._keep(entry, events)
        self.produced.set()

    def give_up(self, failure: Exception) -> None:
        """Let everybody go without an end. Does nothing once there is one.

        Only a defect leads here; nobody may wait for ever because of it.
        """
        if self.closed.is_set():
            return
        self.failure = self._defect = failure
        self.closed.set()
        self.produced.set()
        for reader in self._readers:
            reader.wake.set()

    def refold(self) -> Fold:
        """Fold again all that was appended: takes back an end that could not be kept."""
        self.fold = self._new_fold()
        for entry in self._entries:
            self.fold.apply(entry)
        return self.fold

    async def follow(self, after: int = -1) -> AsyncGenerator[list[Event], None]:
        """Events with a sequence number above `after`: those that were, then those to come.

        Yields non-empty lists; ends after the terminal event. Raises what
        `give_up` was given.
        """
        reader = _Reader()
        self._readers.add(reader)
        try:
            while True:
                if reader.lagging:
                    async for batch in self._replay(reader, after):
                        after = batch[-1].sequence_number
                        yield batch
                elif reader.events:
                    batch = list(reader.events)
                    reader.events.clear()
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
        """Fold again from the start, in slices, until nothing was appended meanwhile."""
        fold = self._new_fold()
        done = 0
        while done < len(self._entries):
            batch: list[Event] = []
            for entry in self._entries[done : done + REPLAY_SLICE_ENTRIES]:
                batch += [event for event in fold.apply(entry) if event.sequence_number > after]
                done += 1
            if batch:
                yield batch
            await asyncio.sleep(0)
        reader.lagging = False

    def _keep(self, entry: Entry, events: list[Event]) -> None:
        self._entries.append(entry)
        if not events:
            return
        self.shown_at = asyncio.get_running_loop().time()
        for reader in self._readers:
            if not reader.lagging:
                reader.events.extend(events)
                if len(reader.events) > self._reader_events_max:
                    reader.lagging = True
                    reader.events.clear()
            reader.wake.set()
