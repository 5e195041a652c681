"""The log of one running response in this process, where its run and its readers meet.

The run never waits. A reader gets events in the call that made them, so no task wakes; while its
client is slow they go to a queue, and if that is full, it is dropped and the log folded again. So
memory is the ids of a run, and at most `reader_events_max` events a reader.

A *held* log shows an entry only when it is committed (`show`), but folds it at once, because the
run decides by the fold what comes next.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Self

from gateway.concurrency import OnceEvent
from gateway.entries import Repair, Tokens, TurnStarted
from gateway.eventlog.fold_slices import AFTER_EVERY_EVENT, SLICE_S, EntryBuffer, fold_slice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from uuid import UUID

    from gateway.entries import Entry
    from gateway.eventlog.fold.fold import Fold
    from gateway.protocol.stream_events import Event, EventSink

READER_EVENTS_MAX: Final = 1000
SHORT_ENTRIES: Final = 16
OPENING_EVENTS_MAX: Final = 16
"""Events kept for the first reader, which may come after them."""


class LiveLog:
    """Entries of one response, folded as they come (`fold`).

    `produced` is set once there is output or an end, `closed` once nothing follows here. `shown_at`
    is when readers last got an event: ids that show nothing (a long header) are silence to a
    client.
    """

    __slots__ = (
        "_clock", "_defect", "_entries", "_first_tokens", "_gathered", "_is_produced",
        "_is_unreleased", "_last_shown", "_new_fold", "_opening", "_reader_events_max", "_readers",
        "_shown", "_slice_s", "_turn", "_withheld", "closed", "failure", "fold", "handed_over",
        "produced", "shown_at",
    )  # fmt: skip

    def __init__(
        self,
        new_fold: Callable[[], Fold],
        *,
        reader_events_max: int,
        held: bool = False,
        turn: asyncio.Lock | None = None,
        slice_s: float = SLICE_S,
    ) -> None:
        # One at a time of the logs with the same `turn` is folded again, in slices of `slice_s`.
        self._slice_s = slice_s
        self._new_fold = new_fold
        self._reader_events_max = reader_events_max
        self._turn = turn or asyncio.Lock()
        self._entries = EntryBuffer()
        self._first_tokens: int | None = None  # number of the first entry with output
        self._shown = 0
        self._last_shown: int | None = -1
        self._opening: list[Event] | None = []
        self._gathered: list[Event] | None = None
        self._clock = asyncio.get_running_loop().time
        self._withheld = WithheldEvents(reader_events_max) if held else None
        self._readers: tuple[Reader, ...] = ()
        self._defect: Exception | None = None
        self._is_produced = False
        self._is_unreleased = False
        self.fold = new_fold()
        self.failure: Exception | None = None
        self.handed_over = False
        self.produced = OnceEvent()
        self.closed = OnceEvent()
        self.shown_at = self._clock()

    @classmethod
    def restored(
        cls,
        new_fold: Callable[[], Fold],
        entries: EntryBuffer,
        *,
        fold: Fold,
        reader_events_max: int,
        turn: asyncio.Lock | None = None,
    ) -> Self:
        live = cls(new_fold, reader_events_max=reader_events_max, held=True, turn=turn)
        live.fold = fold
        live._entries = entries
        tokens = (number for number, one in enumerate(entries) if isinstance(one, Tokens))
        live._first_tokens = next(tokens, None)
        live._reveal(len(entries), None)
        return live

    @property
    def next_entry(self) -> int:
        return len(self._entries)

    @property
    def is_holding(self) -> bool:
        return self._shown < len(self._entries)

    @property
    def last_repair(self) -> str | None:
        if not self.fold.is_repaired:
            return None
        for entry in reversed(self._entries):
            if isinstance(entry, Repair):
                return entry.rule
            if isinstance(entry, Tokens | TurnStarted):
                return None
        return None

    def was_repaired(self, rule: str) -> bool:
        if not self.fold.is_repaired:
            return False
        for entry in reversed(self._entries):
            if isinstance(entry, Repair) and entry.rule == rule:
                return True
            if isinstance(entry, TurnStarted):
                return False
        return False

    def append(self, entry: Entry) -> None:
        """Fold an entry and show its events, unless the log is held. Raises `ValueError`, and keeps
        nothing.
        """
        events = self.fold.apply(entry)
        if self._first_tokens is None and isinstance(entry, Tokens):
            self._first_tokens = len(self._entries)
        self._entries.append(entry)
        if self._withheld is not None:
            self._withheld.put(events)
            return
        self._shown += 1
        if events:
            self._send_readers(events)
        if not self._is_produced and self._first_tokens is not None:
            self._produce()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Show the events of the block in one piece at its end."""
        self._gathered = []
        try:
            yield
        finally:
            gathered, self._gathered = self._gathered, None
            if gathered:
                self._send_readers(gathered)
            if self._is_unreleased:
                self._release()

    def show(self, count: int) -> None:
        # The first `count` entries are committed.
        if not self.handed_over and count > self._shown and self._withheld is not None:
            self._reveal(count, self._withheld.take(count - self._shown))

    def close(self, entry: Entry, events: list[Event]) -> None:
        """Show the events of the last entry, which the caller folded before committing it."""
        if self._withheld is not None:
            self.show(len(self._entries))
        self._entries.append(entry)
        self._reveal(len(self._entries), events)
        self._wake_readers()

    def hand_over(self) -> None:
        # Readers find the rest elsewhere. Does nothing after the terminal event.
        if not self.closed.is_set():
            self.handed_over = True
            self._wake_readers()

    def give_up(self, failure: Exception) -> None:
        # Only a defect leads here; readers must not wait for ever because of it.
        if not self.closed.is_set():
            self.failure = self._defect = failure
            self._wake_readers()

    def refold(self) -> Fold:
        """Fold all entries again, to take back an end that could not be committed."""
        self.fold = self._new_fold()
        for portion in self._entries.portions(0, len(self._entries)):
            self.fold.replay(portion, AFTER_EVERY_EVENT)
        return self.fold

    async def stream(self, sink: EventSink, after: int = -1, *, grace_s: float = 0.0) -> None:
        """Send a sink the events above number `after`: past ones, then those to come.

        The sink is called in the task that makes the events until it returns an awaitable; first
        once the log is `produced`, or `grace_s` seconds after the first event. Until then a failure
        is raised. Returns after the terminal event, or when the log is handed over. Raises what
        `give_up` got, and what the sink and its awaitable raise.
        """
        is_behind = self._last_shown is None or after < self._last_shown
        # No variable keeps the first events, which repeat the request, as long as the stream.
        reader = Reader(after, self._reader_events_max, sink, self._opening if is_behind else [])
        self._opening = None
        self._readers = (*self._readers, reader)
        try:
            is_held = grace_s > 0 and not self._is_produced
            if is_held and not self.closed.is_set():
                reader.hold(grace_s)
                await reader.wait()
                is_held = reader.unhold()
            if is_held and self.closed.is_set() and self.failure and not self.handed_over:
                raise self.failure
            while True:
                if reader.lags:
                    await self._catch_up(reader)
                elif reader.events:
                    if (rest := reader.send_queued()) is not None:
                        await rest
                elif not self.closed.is_set():
                    # A reader that waits has all events so far.
                    await reader.wait()
                elif self._defect is not None:
                    raise self._defect
                else:
                    return
        finally:
            reader.unhold()
            self._readers = tuple(one for one in self._readers if one is not reader)

    async def _catch_up(self, reader: Reader) -> None:
        # In slices, so that the event loop runs other tasks in between.
        fold = self._new_fold()
        done = 0
        while (left := self._shown - done) > 0:
            log, done = self._entries.portions(done, self._shown), self._shown
            is_more = True
            while is_more:
                async with nullcontext() if left <= SHORT_ENTRIES else self._turn:
                    rest, is_more = fold_slice(
                        fold, log, reader.send, after=reader.after, slice_s=self._slice_s
                    )
                    await asyncio.sleep(0)
                if rest is not None:
                    await rest
        reader.lags = False

    def _reveal(self, count: int, events: Sequence[Event] | None) -> None:
        self._shown = count
        if events is None or events:
            self._send_readers(events)
        first = self._first_tokens
        if not self._is_produced and first is not None and first < count:
            self._produce()

    def _produce(self) -> None:
        self._is_produced = True  # asked for at every entry, where `is_set` would be a call
        self.produced.set()
        self._is_unreleased = self._gathered is not None
        if not self._is_unreleased:
            self._release()

    def _release(self) -> None:
        self._is_unreleased = False
        for reader in self._readers:
            reader.release()

    def _send_readers(self, events: Sequence[Event] | None) -> None:
        if self._gathered is not None and events is not None:
            self._gathered += events
            return
        self.shown_at = self._clock()
        self._last_shown = events[-1].sequence_number if events else None
        opening = self._opening
        if opening is not None:
            # Keep the first events as long as they are few and nobody has them.
            few = min(OPENING_EVENTS_MAX, self._reader_events_max)
            if events is None or len(opening) + len(events) > few:
                self._opening = None
            else:
                opening += events
        for reader in self._readers:
            reader.put(events)

    def _wake_readers(self) -> None:
        self.closed.set()
        self.produced.set()
        for reader in self._readers:
            reader.wake()


class Reader:
    """Stream of a live log to one reader.

    `after` is the last number passed on. While it lags, its queue is empty and the log is folded
    again. While it `holds`, nothing is sent.
    """

    __slots__ = (
        *("_events_max", "_failure", "_grace_s", "_rest", "_sink", "_timer", "_waiter"),
        *("after", "events", "holds", "lags"),
    )

    def __init__(
        self, after: int, events_max: int, sink: EventSink, missed: list[Event] | None
    ) -> None:
        self.after = after
        self.events = missed or []
        self.lags = missed is None
        self.holds = False
        self._events_max = events_max
        self._sink = sink
        self._grace_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._rest: Awaitable[None] | None = None
        self._failure: Exception | None = None

    def put(self, events: Sequence[Event] | None) -> None:
        """Send or queue events; None stands for events that are not at hand."""
        waiter = self._waiter
        if events is None:
            self._lag()
        elif waiter is not None and not (self.holds or waiter.done()):
            try:
                self._rest = rest = self.send(events)
            except Exception as error:  # noqa: BLE001 - the reader's task raises it, the run goes on
                self._failure = error
            else:
                if rest is None:
                    return  # and the reader's task may sleep on
        elif not self.lags:
            self.events += events
            if len(self.events) > self._events_max:
                self._lag()
        if self.holds:
            self._limit()
        else:
            self.wake()

    def hold(self, grace_s: float) -> None:
        """Hold events until `release` or `unhold`; wake `grace_s` seconds after the first one."""
        self.holds = True
        self._grace_s = grace_s
        if self.events or self.lags:
            self._limit()

    def release(self) -> None:
        if not self.unhold():
            return
        events, self.events = self.events, []
        if self.lags:
            self.wake()
        elif events:
            self.put(events)

    def _limit(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self.wake)

    def unhold(self) -> bool:
        is_held, self.holds = self.holds, False
        if is_held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return is_held

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send_queued(self) -> Awaitable[None] | None:
        """Send what is queued. Return what must be awaited before more is sent."""
        # A waiting sender does not keep them alive: the first events repeat the request.
        events, self.events = self.events, []
        return self.send(events)

    def send(self, events: Sequence[Event]) -> Awaitable[None] | None:
        after = self.after
        if events and events[0].sequence_number <= after:
            events = [event for event in events if event.sequence_number > after]
        if not events:
            return None
        self.after = events[-1].sequence_number
        return self._sink(events)

    async def wait(self) -> None:
        """Wait until events are queued or not at hand; send those that come meanwhile."""
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

    def _lag(self) -> None:
        self.lags = True
        self.events = []


class WithheldEvents:
    """Events by entry until the entries are shown.

    Above `events_max` they are dropped, so that an outage of the database does not fill the memory.
    """

    __slots__ = ("_by_entry", "_events_max", "_forgotten_entries", "_number")

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._by_entry: list[Sequence[Event]] = []
        self._number = 0
        self._forgotten_entries = 0

    def put(self, events: Sequence[Event]) -> None:
        self._by_entry.append(events)
        self._number += len(events)
        if self._number > self._events_max:
            self._forgotten_entries += len(self._by_entry)
            self._by_entry.clear()
            self._number = 0

    def take(self, entries: int) -> list[Event] | None:
        """Take the events of the first `entries` entries; None if some of them were dropped."""
        forgotten = min(entries, self._forgotten_entries)
        self._forgotten_entries -= forgotten
        taken = self._by_entry[: entries - forgotten]
        del self._by_entry[: entries - forgotten]
        events = [event for each in taken for event in each]
        self._number -= len(events)
        return None if forgotten else events


class LiveLogRegistry:
    def __init__(self) -> None:
        self._logs: dict[UUID, LiveLog] = {}

    def add(self, uuid: UUID, live: LiveLog) -> None:
        self._logs[uuid] = live

    def discard(self, uuid: UUID, live: LiveLog) -> None:
        # A newer log of the same response stays.
        if self._logs.get(uuid) is live:
            del self._logs[uuid]

    def get(self, uuid: UUID) -> LiveLog | None:
        live = self._logs.get(uuid)
        return None if live is None or live.handed_over else live
