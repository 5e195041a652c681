"""Following a durable response from any process: what was, then what comes.

Where the response is generated here, its live log is followed; everywhere else its rows are read
and folded. A sequence number says where a stream stands, so it can go from one to the other as the
run comes and goes, without a gap and without a repetition: both are the same fold of the same log,
and both show an entry only once it is committed.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.errors import StoreUnavailable
from gateway.protocol.showing import ShowsDeltas, play_batches
from gateway.runs.follower import SHORT_BYTES, Follower
from gateway.runs.place import Place
from gateway.runs.slices import ALL_KNOWN, SLICE_S, fold_slice

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Sequence,
    )
    from datetime import date
    from types import TracebackType
    from uuid import UUID

    from gateway.protocol.events import Event
    from gateway.protocol.responses.body import ResponseHead
    from gateway.protocol.showing import DeltaPattern, DeltaText, Show, ShowDelta
    from gateway.runs.live import LiveLog
    from gateway.runs.lives import Lives
    from gateway.runs.place import NewFold
    from gateway.runs.tails import Tails
    from gateway.store.events import LogRow
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """What one stream may take at once.

    `read_bytes_max` bytes of a log are read at once, by which a stream's memory is bounded, and it
    folds for `slice_s` before all else that goes on in this process has its turn. While the
    database is away it is tried every `retry_pause_s`.
    """

    read_bytes_max: int
    slice_s: float = SLICE_S
    retry_pause_s: float = 0.5


class ReadLog(Protocol):
    """`store.flushes.read` of one database."""

    async def __call__(
        self, tenant_id: TenantId, uuid: UUID, day: date, /, *, from_entry: int, bytes_max: int
    ) -> list[LogRow]:
        """Rows from the one that holds `from_entry` on. Raises `StoreUnavailable`."""


class Feed:
    """The streams that follow durable responses in this process."""

    def __init__(
        self,
        lives: Lives,
        tails: Tails,
        read_log: ReadLog,
        new_fold_for: NewFold,
        *,
        limits: FeedLimits,
        followers: Callable[[int], None],
    ) -> None:
        """`followers` is told how many streams there are, whenever that changes."""
        self._lives = lives
        self._tails = tails
        self._read_log = read_log
        self._new_fold_for = new_fold_for
        self._limits = limits
        self._tell_followers = followers
        self._followers = 0
        self._waits: set[_UntilClosed] = set()
        self.is_closed = False
        """Every stream is about to be left."""
        # However many streams replay at once: the loop comes round between any two slices.
        self._turn = asyncio.Lock()

    async def follow(
        self,
        tenant_id: TenantId,
        head: ResponseHead,
        after: int = -1,
        *,
        beginning: Sequence[LogRow] = (),
    ) -> AsyncGenerator[list[Event], None]:
        """Events with a sequence number above `after`, as soon as they are durable.

        `beginning` are the first rows of the log, if they were read before (`beginning`).
        Ends after the terminal event. Where that is not above `after`, ends with one empty list,
        the only one there is. Ends without either when this process drains (`close`), or when the
        log has been removed meanwhile. While the database is away it waits.
        """
        place = Place(tenant_id, head, self._new_fold_for, after)
        place.beginning = beginning
        self._count(1)
        try:
            async with aclosing(self._events(place)) as batches:
                while (batch := await self._unless_closed(batches)) is not None:
                    yield batch
        finally:
            self._count(-1)

    async def play(
        self,
        tenant_id: TenantId,
        head: ResponseHead,
        show: Show,
        *,
        after: int = -1,
        beginning: Sequence[LogRow] = (),
    ) -> None:
        """Show a reader the same, an empty list included; what is generated here where it commits.

        Raises what `show` and what it returns do.
        """
        if self.is_closed:
            return
        place = Place(tenant_id, head, self._new_fold_for, after, show)
        place.beginning = beginning
        self._count(1)
        try:
            async with self._until_closed():
                # What `_events` does, but for a stream that follows a live log, as nearly all do
                # for long: whatever only passes on what is made within it would be there as long.
                while not (place.is_over or place.is_gone):
                    live = self._lives.get(place.uuid)
                    if live is None:
                        await play_batches(self._stored(place), show)
                    else:
                        place.forget_rows()
                        await live.play(_PassedOn(self, place, show), place.after)
                        place.is_over = not live.handed_over
                if not (place.is_ended or place.is_gone) and (rest := show([])) is not None:
                    await rest
        finally:
            self._count(-1)

    async def snapshot(self, tenant_id: TenantId, head: ResponseHead) -> dict[str, Any]:
        """The Response object as far as its log has come. Raises `StoreUnavailable`."""
        place = Place(tenant_id, head, self._new_fold_for, ALL_KNOWN)
        before = -1
        while before < place.next_entry and not place.is_through():
            before = place.next_entry
            rows = await self._read(place)
            async with aclosing(self._fold(place, rows)) as batches:
                async for _ in batches:
                    pass
        return place.fold.response()

    async def beginning(
        self, tenant_id: TenantId, stored: StoredResponse
    ) -> Sequence[LogRow] | None:
        """The first rows of its log, if there are any yet; None where they have been removed.

        Whoever follows the response may bring them along. Raises `StoreUnavailable`.
        """
        if not stored.next_entry:
            return ()
        # Where it is generated here its rows are hardly needed.
        is_live = self._lives.get(stored.uuid) is not None
        bytes_max = 1 if is_live else self._limits.read_bytes_max
        rows = await self._read_log(
            tenant_id, stored.uuid, stored.day, from_entry=0, bytes_max=bytes_max
        )
        return rows if rows and rows[0].first_entry == 0 else None

    def close(self) -> None:
        """End every stream, and each that begins from now on: its client resumes elsewhere."""
        self.is_closed = True
        for wait in self._waits:
            wait.leave()

    async def _unless_closed(
        self, batches: AsyncGenerator[list[Event], None]
    ) -> list[Event] | None:
        """The next of them; None at their end, and when this is closed first."""
        batch: list[Event] | None = None
        if not self.is_closed:
            async with self._until_closed():
                batch = await anext(batches, None)
        return batch

    def _until_closed(self) -> _UntilClosed:
        """What is in here is left when this is closed."""
        return _UntilClosed(self._waits)

    async def _events(self, place: Place) -> AsyncGenerator[list[Event], None]:
        while not place.is_over:
            async with aclosing(self._source(place)) as batches:
                async for batch in batches:
                    yield batch
            if place.is_gone:
                return
        if not place.is_ended:
            yield []

    def _source(self, place: Place) -> AsyncGenerator[list[Event], None]:
        live = self._lives.get(place.uuid)
        if live is not None:
            return self._from_live(place, live)
        return self._stored(place)

    def _stored(self, place: Place) -> AsyncGenerator[list[Event], None]:
        return self._from_beginning(place) if place.beginning else self._from_rows(place)

    async def _from_live(self, place: Place, live: LiveLog) -> AsyncGenerator[list[Event], None]:
        """Events of a live log, until the end, or until the response goes elsewhere."""
        place.forget_rows()
        async with aclosing(live.follow(place.after)) as batches:
            async for batch in batches:
                place.pass_by(batch)
                yield batch
        place.is_over = not live.handed_over

    async def _from_beginning(self, place: Place) -> AsyncGenerator[list[Event], None]:
        """Events of the rows that were read before: of a log that ends there no tail is watched."""
        beginning, place.beginning = place.beginning, ()
        async with aclosing(self._fold(place, beginning)) as batches:
            async for batch in batches:
                yield batch
        place.is_over = place.is_through()

    async def _from_rows(self, place: Place) -> AsyncGenerator[list[Event], None]:
        """Events of rows, until the end, or until the response is generated here."""
        with self._tails.watch(place.tenant_id, place.uuid, place.day) as tail:
            follower = None
            if place.show is not None:
                show = _PassedOn(self, place, place.show)
                follower = Follower(place, show, tail, self._lives)
            while not place.is_through():
                before = place.next_entry
                is_promised = tail.is_beyond(before)
                rows = tail.since(before) or await self._insist(place)
                async with aclosing(self._fold(place, rows)) as batches:
                    async for batch in batches:
                        yield batch
                if is_promised and place.next_entry == before:
                    place.is_gone = True
                    return
                if place.is_through():
                    break
                await (tail.moved(place.next_entry) if follower is None else follower.wait())
                if self._lives.get(place.uuid) is not None:
                    return
        place.is_over = True

    async def _insist(self, place: Place) -> list[LogRow]:
        while True:
            try:
                return await self._read(place)
            except StoreUnavailable:
                await asyncio.sleep(self._limits.retry_pause_s)

    async def _read(self, place: Place) -> list[LogRow]:
        return await self._read_log(
            place.tenant_id,
            place.uuid,
            place.day,
            from_entry=place.next_entry,
            bytes_max=self._limits.read_bytes_max,
        )

    async def _fold(
        self, place: Place, rows: Sequence[LogRow]
    ) -> AsyncGenerator[list[Event], None]:
        """The events of rows, in lists that took a slice to make; who is shown them has them."""
        is_short = sum(len(row.entries) for row in rows) <= SHORT_BYTES
        log, slice_s = place.unread(rows), self._limits.slice_s
        is_more = True
        while is_more:
            asked: list[Event] = []
            show = _PassedOn(self, place, place.show or asked.extend)
            async with nullcontext() if is_short else self._turn:
                rest, is_more = fold_slice(
                    place.fold, log, show, after=place.after, slice_s=slice_s
                )
                if is_more and rest is None:
                    await asyncio.sleep(0)
            if rest is not None:
                await rest
            if asked:
                yield asked

    def _count(self, change: int) -> None:
        self._followers += change
        self._tell_followers(self._followers)


class _UntilClosed:
    """A part of a task that is one of `waits` while entered; to `leave` it is no failure.

    Every stream is in one as long as it lasts: this takes less memory than a timeout.
    """

    __slots__ = ("_is_left", "_task", "_waits")

    def __init__(self, waits: set[_UntilClosed]) -> None:
        self._waits = waits
        self._is_left = False

    def leave(self) -> None:
        """End what is done in here, which sleeps. Safe to call twice."""
        if not self._is_left and self._task is not None:
            self._is_left = True
            self._task.cancel()

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._waits.add(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._waits.discard(self)
        if not self._is_left or self._task is None:
            return False
        # Unless somebody else has cancelled the task as well.
        return not self._task.uncancel() and isinstance(error, asyncio.CancelledError)


class _PassedOn:
    """`gateway.protocol.showing.ShowsDeltas`: what a stream has not had is shown, and noted."""

    __slots__ = ("_feed", "_place", "_show")

    def __init__(self, feed: Feed, place: Place, show: Show) -> None:
        self._feed = feed
        self._place = place
        self._show = show

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        wanted = self._place.wanted(events)
        if self._feed.is_closed or not wanted:
            return None
        self._place.pass_by(wanted)
        return self._show(wanted)

    def deltas(self, pattern: DeltaPattern) -> ShowDelta | None:
        """Those behind what the stream has, without an event of each."""
        feed, place = self._feed, self._place
        show = self._show.deltas(pattern) if isinstance(self._show, ShowsDeltas) else None
        if show is None:
            return None

        def show_delta(number: int, text: DeltaText) -> bool:
            if feed.is_closed or not show(number, text):
                return False
            place.after = number
            return True

        return show_delta
