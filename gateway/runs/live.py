"""The log of one running response in this process: where a run and its readers meet.

The run appends entries and never waits. A reader that is not behind is shown events where they are
made, in the read of the backend's socket that brought their ids: no task wakes for them. One that
has to wait for its client gets a queue meanwhile; one that falls behind loses its queue, not its
place: it folds the log again up to where it stands. So memory per run is its ids, and per reader at
most `reader_events_max` events.

A *held* log shows an entry only when it is told that the entry is committed. It is folded at once
all the same, because the run decides by the fold what comes next.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from gateway.log import Repair, Tokens, TurnStarted
from gateway.protocol.showing import play_batches
from gateway.runs.kept import KeptEntries
from gateway.runs.moment import Moment
from gateway.runs.slices import ALL_KNOWN, SLICE_S, fold_slice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from gateway.log import Entry
    from gateway.output.fold import Fold
    from gateway.protocol.events import Event
    from gateway.protocol.showing import Show

SHORT_ENTRIES: Final = 16
"""So many are folded without waiting for one's turn."""


OPENING_EVENTS_MAX: Final = 16
"""So many events are kept for the first reader, who comes when there is something to read."""


class _Reader:
    """One who follows: shown events where they are made (`show`), or given them from a queue.

    `after` is the number of the last event it has, or is about to get. While it lags the queue is
    empty, and the log is folded again instead.
    """

    __slots__ = ("_events_max", "_failure", "_rest", "_show", "_waiter", "after", "events", "lags")

    def __init__(self, after: int, events_max: int, show: Show | None) -> None:
        self.after = after
        self.events: list[Event] = []
        self.lags = False
        self._events_max = events_max
        self._show = show
        self._waiter: asyncio.Future[None] | None = None
        self._rest: Awaitable[None] | None = None
        self._failure: Exception | None = None

    def put(self, events: list[Event] | None) -> None:
        """Show or queue events; None stands for some that are not at hand."""
        waiter, show = self._waiter, self._show
        if events is None:
            self._lag()
        elif show is not None and waiter is not None and not waiter.done():
            if self._show_now(events, show):
                return
        elif not self.lags:
            self.events += events
            if len(self.events) > self._events_max:
                self._lag()
        self.wake()

    def wake(self) -> None:
        """There is something to do for the task that follows."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> list[Event]:
        """What is queued."""
        events, self.events = self.events, []
        return self.unknown(events)

    def unknown(self, events: list[Event]) -> list[Event]:
        """Those of some events that it does not have; it is about to get them."""
        after = self.after
        if events and events[0].sequence_number <= after:
            events = [event for event in events if event.sequence_number > after]
        if events:
            self.after = events[-1].sequence_number
        return events

    def catch_up(self, asked: list[Event], events: list[Event]) -> Awaitable[None] | None:
        """Show it what it does not have of these, or put it where it will be asked for."""
        events = self.unknown(events)
        if self._show is not None and events:
            return self._show(events)
        asked += events
        return None

    async def wait(self) -> None:
        """Until events are queued, or not at hand, or the reader is woken.

        From here on events are shown at once, until one of them has a client wait: then that is
        waited for. Raises what `show` raised.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._failure is not None:
            raise self._failure
        if self._rest is not None:
            rest, self._rest = self._rest, None
            await rest

    def _show_now(self, events: list[Event], show: Show) -> bool:
        """Whether that was all, and the reader's task may sleep on."""
        if events[0].sequence_number <= self.after and not (events := self.unknown(events)):
            return True
        self.after = events[-1].sequence_number
        try:
            self._rest = rest = show(events)
        except Exception as error:  # noqa: BLE001 - the reader's task raises it, the run goes on
            self._failure = error
            return False
        return rest is None

    def _lag(self) -> None:
        self.lags = True
        self.events = []


class _Withheld:
    """Events by entry until the entries are shown. Forgotten when there are more than `events_max`.

    What is forgotten costs readers one folding of the log, and keeps an outage of the database
    from filling the memory.
    """

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._by_entry: list[list[Event]] = []
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
        taken = self._by_entry[: entries - forgotten]
        del self._by_entry[: entries - forgotten]
        events = [event for each in taken for event in each]
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
        slice_s: float = SLICE_S,
    ) -> None:
        """Of all logs that share a `turn`, one is folded again at a time, for `slice_s`."""
        self._slice_s = slice_s
        self._new_fold = new_fold
        self._reader_events_max = reader_events_max
        self._held = held
        self._turn = turn or asyncio.Lock()
        self._entries = KeptEntries()
        self._shown = 0
        self._last_shown: int | None = -1
        self._opening: list[Event] | None = []
        self._gathered: list[Event] | None = None
        self._clock = asyncio.get_running_loop().time
        self._withheld = _Withheld(reader_events_max)
        self._readers: set[_Reader] = set()
        self._defect: Exception | None = None
        self._is_produced = False
        self.fold = new_fold()
        self.failure: Exception | None = None
        self.handed_over = False
        """Nothing follows here, but the response goes on or has ended elsewhere."""
        self.produced = Moment()
        self.closed = Moment()
        self.shown_at = self._clock()

    @classmethod
    def restored(
        cls,
        new_fold: Callable[[], Fold],
        entries: KeptEntries,
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
        live._entries = entries
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
            return
        self._shown += 1
        if not self._is_produced and isinstance(entry, Tokens):
            self._produce()
        if events:
            self._tell(events)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is shown meanwhile is shown at the end: readers get it in one piece."""
        gathered: list[Event] = []
        self._gathered = gathered
        try:
            yield
        finally:
            self._gathered = None
            if gathered:
                self._tell(gathered)

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
        self._reveal(len(self._entries), events)
        self._let_go()

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
        for portion in self._entries.portions(0, len(self._entries)):
            self.fold.replay(portion, ALL_KNOWN)
        return self.fold

    async def play(self, show: Show, after: int = -1) -> None:
        """Show a reader the events above `after`: those that were, then those to come.

        `show` is called where they are made, as long as it has nothing to wait for. Returns after
        the terminal event, or without one when the log is handed over. Raises what `give_up` was
        given, and what `show` and what it returns do.
        """
        reader = _Reader(after, self._reader_events_max, show)
        await play_batches(self._follow(reader), show)

    def follow(self, after: int = -1) -> AsyncGenerator[list[Event], None]:
        """The same events for a reader that asks for them: yields non-empty lists."""
        return self._follow(_Reader(after, self._reader_events_max, None))

    async def _follow(self, reader: _Reader) -> AsyncGenerator[list[Event], None]:
        """What is not shown at once. Where it waits, the reader has all there is."""
        self._admit(reader)
        try:
            while True:
                if reader.lags:
                    async for batch in self._replay(reader):
                        yield batch
                elif reader.events:
                    if batch := reader.take():
                        yield batch
                    # The first ones repeat the request, and would stay as long as the stream.
                    del batch
                elif self.closed.is_set():
                    if self._defect is not None:
                        raise self._defect
                    return
                else:
                    await reader.wait()
        finally:
            self._readers.discard(reader)

    def _admit(self, reader: _Reader) -> None:
        opening, self._opening = self._opening, None
        if self._last_shown is None or reader.after < self._last_shown:
            reader.lags = opening is None
            reader.events = opening or []
        self._readers.add(reader)

    async def _replay(self, reader: _Reader) -> AsyncGenerator[list[Event], None]:
        """Fold again from the start, in slices, until nothing was shown meanwhile.

        However many readers do so at once: the loop comes round between any two slices.
        """
        fold = self._new_fold()
        done = 0
        while (left := self._shown - done) > 0:
            log, done = self._entries.portions(done, self._shown), self._shown
            is_more = True
            while is_more:
                asked: list[Event] = []
                show = partial(reader.catch_up, asked)
                async with nullcontext() if left <= SHORT_ENTRIES else self._turn:
                    rest, is_more = fold_slice(
                        fold, log, show, after=reader.after, slice_s=self._slice_s
                    )
                    await asyncio.sleep(0)
                if rest is not None:
                    await rest
                if asked:
                    yield asked
        reader.lags = False

    def _reveal(self, count: int, events: list[Event] | None) -> None:
        """Entries below number `count` are visible from now on; `events`, if known, are new."""
        before, self._shown = self._shown, count
        if not self._is_produced:
            shown = self._entries.between(before, count)
            if any(isinstance(entry, Tokens) for entry in shown):
                self._produce()
        if events is None or events:
            self._tell(events)

    def _produce(self) -> None:
        self._is_produced = True  # asked for at every entry, where `is_set` would be a call
        self.produced.set()

    def _tell(self, events: list[Event] | None) -> None:
        if self._gathered is not None and events is not None:
            self._gathered += events
            return
        self.shown_at = self._clock()
        self._last_shown = events[-1].sequence_number if events else None
        if self._opening is not None:
            self._open(self._opening, events)
        for reader in self._readers:
            reader.put(events)

    def _open(self, opening: list[Event], events: list[Event] | None) -> None:
        """Keep the first events as long as they are few and nobody has them."""
        few = min(OPENING_EVENTS_MAX, self._reader_events_max)
        if events is None or len(opening) + len(events) > few:
            self._opening = None
        else:
            opening += events

    def _let_go(self) -> None:
        self.closed.set()
        self.produced.set()
        for reader in self._readers:
            reader.wake()
