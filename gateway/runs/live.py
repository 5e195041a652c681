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
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from gateway.log import Repair, Singles, Tokens, TurnStarted
from gateway.protocol.showing import play_batches
from gateway.runs.flow import Flow, HeldFlow
from gateway.runs.kept import KeptEntries
from gateway.runs.moment import Moment
from gateway.runs.readers import Reader, Withheld
from gateway.runs.slices import ALL_KNOWN, SLICE_S, fold_slice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from gateway.generation import HearText
    from gateway.log import Entry
    from gateway.output.fold import Fold
    from gateway.protocol.events import Event
    from gateway.protocol.showing import DeltaPattern, Show, ShowDelta
    from gateway.runs.flow import Put

SHORT_ENTRIES: Final = 16
"""So many are folded without waiting for one's turn."""


OPENING_EVENTS_MAX: Final = 16
"""So many events are kept for the first reader, who comes when there is something to read."""


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
        self._withheld = Withheld(reader_events_max)
        self._readers: set[Reader] = set()
        self._defect: Exception | None = None
        self._is_produced = False
        self._is_unreleased = False
        self._fold = new_fold()
        self._flow: Flow | HeldFlow | None = None
        self.failure: Exception | None = None
        self.handed_over = False
        """Nothing follows here, but the response goes on or has ended elsewhere."""
        self.produced = Moment()
        self.closed = Moment()
        self._shown_at = self._clock()

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
        live._fold = fold
        live._entries = entries
        live._reveal(len(entries), None)
        return live

    @property
    def fold(self) -> Fold:
        """Of all entries so far."""
        if self._flow is not None:
            self.land()
        return self._fold

    @property
    def shown_at(self) -> float:
        """See above."""
        return self._flow.heard_at if isinstance(self._flow, Flow) else self._shown_at

    @property
    def is_holding(self) -> bool:
        """There are entries that are not shown yet."""
        self.land()
        return self._shown < len(self._entries)

    @property
    def last_repair(self) -> str | None:
        """The rule of the repair that the last turn ended with, or is about to; None: with none."""
        if not self.fold.is_repaired:
            return None
        for entry in reversed(self._entries):
            if isinstance(entry, Repair):
                return entry.rule
            if isinstance(entry, Tokens | TurnStarted):
                return None
        return None

    def was_repaired(self, rule: str) -> bool:
        """The last turn has a repair by this rule."""
        if not self.fold.is_repaired:
            return False
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
        if self._flow is not None:
            self.land()
        events = self._fold.apply(entry)
        self._entries.append(entry)
        if self._held:
            self._withheld.put(events)
            return
        self._shown += 1
        if events:
            self._tell(events)
        if not self._is_produced and isinstance(entry, Tokens):
            self._produce()

    def flow(self, ids_max: int, put: Put | None = None) -> HearText | None:
        """A shorter way for the next ids (`gateway.runs.flow`), at most so many; None where there
        is more to them. It ends when anything else happens here. What a held log hears is `put`.
        """
        self.land()
        flowing = self._fold.flowing()
        if flowing is None or self._opening is not None:
            return None
        if not self._held:
            show = self._delta_show(flowing.pattern, flowing.number)
            if show is None:
                return None
            self._flow = Flow(flowing, show, ids_max=ids_max, now=self._shown_at)
        elif put is not None:
            self._flow = HeldFlow(flowing, put, ids_max=ids_max, folded=len(self._entries))
        return None if self._flow is None else self._flow.hear

    def land(self) -> None:
        """Fold what flowed: each id is an entry of its own, with one event."""
        flow = self._flow
        if flow is None:
            return
        self._flow = None
        flow.close()
        if not flow.ids:
            return
        shown, folded = flow.shown, len(self._entries)
        self._entries.add(Singles(tuple(flow.ids)))
        if shown:
            self._shown = folded + shown
            self._fold.replay(Singles(tuple(flow.ids[:shown])), ALL_KNOWN)
            self._last_shown = flow.first + shown - 1
            for reader in self._readers:
                reader.after = self._last_shown
        for event in self._fold.replay(Singles(tuple(flow.ids[shown:]))):
            self._withheld.put([event])
        if isinstance(flow, Flow):
            self._shown_at = flow.heard_at

    def gather(self) -> None:
        """What is shown from here on is shown by `tell_gathered`: readers get it in one piece."""
        self.land()
        self._gathered = []

    def tell_gathered(self) -> None:
        """Show what was gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._tell(gathered)
        if self._is_unreleased:
            self._release()

    def show(self, count: int) -> None:
        """The first `count` entries are committed: readers get those they have not seen."""
        if self.handed_over or count <= self._shown:
            return
        flow = self._flow
        if isinstance(flow, HeldFlow):
            if self._shown < flow.folded:
                self._show_folded(min(count, flow.folded))
            if count > flow.folded:
                self._show_flow(flow, count)
        if count > self._shown:
            self._show_folded(count)

    def _show_folded(self, count: int) -> None:
        """More than are shown."""
        self._reveal(count, self._withheld.take(count - self._shown))

    def _show_flow(self, flow: HeldFlow, count: int) -> None:
        """Where that is not simple, nothing flows any more."""
        is_shown = True
        if self._readers:
            show = flow.show or self._delta_show(flow.pattern, flow.first)
            is_shown = show is not None and flow.show_to(count - flow.folded, show)
        else:
            flow.pass_over(count - flow.folded)
        self._shown = flow.folded + flow.shown
        self._shown_at = self._clock()
        if not is_shown:
            self.land()

    def _delta_show(self, pattern: DeltaPattern, first: int) -> ShowDelta | None:
        if len(self._readers) != 1:
            return None
        (reader,) = self._readers
        return reader.deltas(pattern, first)

    def close(self, entry: Entry, events: list[Event]) -> None:
        """Show the events of the last entry, which the caller has folded; nothing follows.

        What a held log kept back is shown before: the end is committed after all else.
        """
        self.land()
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
        self.land()
        self._fold = self._new_fold()
        for portion in self._entries.portions(0, len(self._entries)):
            self._fold.replay(portion, ALL_KNOWN)
        return self._fold

    def play(
        self, show: Show, after: int = -1, *, grace_s: float = 0.0
    ) -> Coroutine[object, object, None]:
        """Show a reader the events above `after`: those that were, then those to come.

        `show` is called where they are made, as long as it has nothing to wait for. It is not
        called before anything is `produced`, but for `grace_s` at most from the first event on:
        until then a failure is raised. Returns after the terminal event, or without one when the
        log is handed over. Raises what `give_up` was given, and what `show` and what it returns do.
        """
        return self._play(Reader(after, self._reader_events_max, show), show, grace_s)

    async def _play(self, reader: Reader, show: Show, grace_s: float) -> None:
        """Where it waits, the reader has all there is."""
        self._admit(reader)
        try:
            if grace_s and not self._is_produced:
                await self._hold_back(reader, grace_s)
            while not self._is_over_for(reader):
                if reader.lags:
                    await play_batches(self._replay(reader), show)
                elif not reader.events:
                    await reader.wait()
                elif (rest := reader.show_queued(show)) is not None:
                    await rest
        finally:
            self._dismiss(reader)

    async def _hold_back(self, reader: Reader, grace_s: float) -> None:
        """Until there is something that is worth a status. Raises why there will be nothing."""
        if not self.closed.is_set() and not await reader.hold(grace_s):
            return
        if self.closed.is_set() and self.failure is not None and not self.handed_over:
            raise self.failure

    async def follow(self, after: int = -1) -> AsyncGenerator[list[Event], None]:
        """The same events for a reader that asks for them: yields non-empty lists."""
        reader = Reader(after, self._reader_events_max, None)
        self._admit(reader)
        try:
            while not self._is_over_for(reader):
                if reader.lags:
                    async for batch in self._replay(reader):
                        yield batch
                elif not reader.events:
                    await reader.wait()
                elif batch := reader.take():
                    yield batch
        finally:
            self._dismiss(reader)

    def _is_over_for(self, reader: Reader) -> bool:
        """It has all that there will be. Raises what `give_up` was given."""
        if reader.lags or reader.events or not self.closed.is_set():
            return False
        if self._defect is not None:
            raise self._defect
        return True

    def _dismiss(self, reader: Reader) -> None:
        self.land()
        self._readers.discard(reader)

    def _admit(self, reader: Reader) -> None:
        self.land()
        opening, self._opening = self._opening, None
        if self._last_shown is None or reader.after < self._last_shown:
            reader.lags = opening is None
            reader.events = opening or []
        self._readers.add(reader)

    async def _replay(self, reader: Reader) -> AsyncGenerator[list[Event], None]:
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
        if events is None or events:
            self._tell(events)
        if not self._is_produced:
            shown = self._entries.between(before, count)
            if any(isinstance(entry, Tokens) for entry in shown):
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

    def _tell(self, events: list[Event] | None) -> None:
        if self._gathered is not None and events is not None:
            self._gathered += events
            return
        self._shown_at = self._clock()
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
        self.land()
        self.closed.set()
        self.produced.set()
        for reader in self._readers:
            reader.wake()
