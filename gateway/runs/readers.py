"""Who follows a live log, and what is kept back from them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.protocol.showing import ShowsDeltas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from gateway.protocol.events import Event
    from gateway.protocol.showing import DeltaPattern, Show, ShowDelta


class Reader:
    """One who follows: shown events where they are made (`show`), or given them from a queue.

    `after` is the number of the last event it has, or is about to get. While it lags the queue is
    empty, and the log is folded again instead. While it `holds` it is shown nothing.
    """

    __slots__ = (
        *("_events_max", "_failure", "_grace_s", "_rest", "_show", "_timer", "_waiter"),
        *("after", "events", "holds", "lags"),
    )

    def __init__(self, after: int, events_max: int, show: Show | None) -> None:
        self.after = after
        self.events: list[Event] = []
        self.lags = False
        self.holds = False
        self._events_max = events_max
        self._show = show
        self._grace_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._rest: Awaitable[None] | None = None
        self._failure: Exception | None = None

    def put(self, events: list[Event] | None) -> None:
        """Show or queue events; None stands for some that are not at hand."""
        waiter, show = self._waiter, self._show
        if events is None:
            self._lag()
        elif show is not None and waiter is not None and not (waiter.done() or self.holds):
            if self._show_now(events, show):
                return
        elif not self.lags:
            self.events += events
            if len(self.events) > self._events_max:
                self._lag()
        if self.holds:
            self._limit()
        else:
            self.wake()

    @property
    def waits(self) -> bool:
        """It has all that were shown, and is shown what comes next at once."""
        return self._waiter is not None and not self._waiter.done()

    def deltas(self, pattern: DeltaPattern, first: int) -> ShowDelta | None:
        """How it is shown deltas from number `first` on, while it `waits` and has none of them."""
        show = self._show
        if first <= self.after or not (self.waits and isinstance(show, ShowsDeltas)):
            return None
        return show.deltas(pattern)

    async def hold(self, grace_s: float) -> bool:
        """What `wait` does, but be shown nothing before `release`, or until so long after there was
        something to show.

        Whether it was not released.
        """
        self.holds = True
        self._grace_s = grace_s
        if self.events or self.lags:
            self._limit()
        try:
            await self.wait()
        finally:
            is_held = self._let_go()
        return is_held

    def release(self) -> None:
        """Show what is queued, and from here on all, at once."""
        if self._let_go() and (self.lags or not self._show_first()):
            self.wake()

    def _limit(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self.wake)

    def _let_go(self) -> bool:
        """Whether it was held until now."""
        is_held, self.holds = self.holds, False
        if is_held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return is_held

    def _show_first(self) -> bool:
        events, self.events = self.events, []
        return self._show is not None and (not events or self._show_now(events, self._show))

    def wake(self) -> None:
        """There is something to do for the task that follows."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> list[Event]:
        """What is queued."""
        events, self.events = self.events, []
        return list(self.unknown(events))

    def show_queued(self, show: Show) -> Awaitable[None] | None:
        """Show what is queued. Returns what has to be awaited before more is shown."""
        # Who waits for that holds none of it: the first events repeat the request.
        events = self.take()
        return show(events) if events else None

    def unknown(self, events: Sequence[Event]) -> Sequence[Event]:
        """Those of some events that it does not have; it is about to get them."""
        after = self.after
        if events and events[0].sequence_number <= after:
            events = [event for event in events if event.sequence_number > after]
        if events:
            self.after = events[-1].sequence_number
        return events

    def catch_up(self, asked: list[Event], events: Sequence[Event]) -> Awaitable[None] | None:
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

    def _show_now(self, events: Sequence[Event], show: Show) -> bool:
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


class Withheld:
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
