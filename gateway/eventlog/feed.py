"""Following a durable response from any process: its events so far, then new ones.

A live log and the rows fold to the same events and show an entry only once it is committed, so a
stream can change from one to the other at any sequence number.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.entries import Singles, portions
from gateway.errors import StoreUnavailable
from gateway.eventlog.fold_slices import (
    AFTER_EVERY_EVENT,
    READ_BYTES_MAX,
    SLICE_S,
    fold_slice,
    send_nobody,
)
from gateway.protocol.stream_events import Deltas
from gateway.store.events import day_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from datetime import date
    from types import TracebackType
    from uuid import UUID

    from gateway.entries import Portion
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.live_log import LiveLog, LiveLogRegistry
    from gateway.eventlog.log_watcher import LogWatcher, WatchedLog
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.protocol.stream_events import Event, EventSink
    from gateway.store.events import LogRow
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId

    NewFold = Callable[[ResponseHead], Callable[[], Fold]]

SHORT_BYTES: Final = 1024
"""Packed entries that take less than a slice to fold."""


@dataclass(frozen=True, slots=True)
class FeedLimits:
    read_bytes_max: int = READ_BYTES_MAX
    slice_s: float = SLICE_S
    retry_pause_s: float = 0.5


class ReadLog(Protocol):
    """Type of `store.flushes.read` of one database."""

    async def __call__(
        self, tenant_id: TenantId, uuid: UUID, day: date, /, *, from_entry: int, bytes_max: int
    ) -> list[LogRow]:
        """Read rows from the one that holds `from_entry` on. Raises `StoreUnavailable`."""


class Cursor:
    """Position of one stream in the events (`after`) and in the rows (`next_entry`, `fold`).

    With `shows_more` the stream includes more than its request did, so it is folded from the rows.
    `close` cancels the task, which takes less memory than a timeout.
    """

    __slots__ = (
        *("_fold", "_head", "_is_closed", "_new_fold_for", "_task", "after"),
        *("beginning", "has_terminal_event", "is_complete", "log_removed", "next_entry"),
        *("shows_more", "sink", "tenant_id", "uuid"),
    )

    def __init__(
        self,
        tenant_id: TenantId,
        head: ResponseHead,
        new_fold_for: NewFold,
        sink: EventSink,
        *,
        after: int = -1,
        beginning: Sequence[LogRow] = (),
    ) -> None:
        self.tenant_id = tenant_id
        self.uuid = head.uuid
        self._head = head
        self._new_fold_for = new_fold_for
        self.sink = sink
        self._fold: Fold | None = None
        self._task: asyncio.Task[object] | None = None
        self._is_closed = False
        self.after = after
        self.beginning = beginning
        self.shows_more = False
        self.next_entry = 0
        self.is_complete = self.has_terminal_event = self.log_removed = False

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        if self._is_closed or not events:
            return None
        if isinstance(events, Deltas) and events.sequence_number > self.after:
            self.after = events.last_number  # without making an event of any
            return self.sink(events)
        last = events[-1]
        if last.sequence_number <= self.after:
            return None
        if events[0].sequence_number <= self.after:
            events = [event for event in events if event.sequence_number > self.after]
        self.after = last.sequence_number
        self.has_terminal_event = last.is_terminal
        return self.sink(events)

    @property
    def day(self) -> date:
        return day_of(datetime.fromtimestamp(self._head.created_at, UTC))

    @property
    def fold(self) -> Fold:
        # Made on first use: a response that is generated here needs none.
        if self._fold is None:
            self._fold = self._new_fold_for(self._head)()
        return self._fold

    def live_in(self, live_logs: LiveLogRegistry) -> LiveLog | None:
        # None if generated elsewhere, or if this stream shows more than the live log's events.
        return None if self.shows_more else live_logs.get(self.uuid)

    def is_folded(self) -> bool:
        return self.fold.shown.is_finished

    def forget_rows(self) -> None:
        # Rows are read again if needed: that is rare, and a fold is large.
        self.next_entry = 0
        self._fold = None

    def unread(self, rows: Iterable[LogRow]) -> Iterator[Portion]:
        # Stops before the first missing entry.
        for row in rows:
            if row.first_entry > self.next_entry:
                return
            for portion in portions(row.entries, self.next_entry - row.first_entry):
                self.next_entry += len(portion) if isinstance(portion, Singles) else 1
                yield portion

    def close(self) -> None:
        # Safe to call twice.
        if not self._is_closed and self._task is not None:
            self._is_closed = True
            self._task.cancel()

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not self._is_closed or self._task is None:
            return False
        # Unless somebody else has cancelled the task as well.
        return not self._task.uncancel() and isinstance(error, asyncio.CancelledError)


class Feed:
    def __init__(
        self,
        live_logs: LiveLogRegistry,
        watcher: LogWatcher,
        read_log: ReadLog,
        new_fold_for: NewFold,
        *,
        limits: FeedLimits,
        followers: Callable[[int], None],
    ) -> None:
        # `followers` gets 1 when a stream begins and -1 when it ends.
        self._live_logs = live_logs
        self._watcher = watcher
        self._read_log = read_log
        self._new_fold_for = new_fold_for
        self._limits = limits
        self._count_followers = followers
        self._cursors: set[Cursor] = set()
        self.is_closed = False
        # However many streams replay at once: the loop comes round between any two slices.
        self._turn = asyncio.Lock()

    async def stream(
        self,
        tenant_id: TenantId,
        head: ResponseHead,
        sink: EventSink,
        *,
        after: int = -1,
        beginning: Sequence[LogRow] = (),
        shows_more: bool = False,
    ) -> None:
        """Send a sink the events above `after`, once they are durable.

        Returns after the terminal event; if that is not above `after`, one empty list is sent, and
        never otherwise. Also returns when this process drains or the log was removed. Raises what
        the sink and its awaitable raise.
        """
        new_cursor = partial(Cursor, tenant_id, head, self._new_fold_for, sink, after=after)
        cursor = new_cursor(beginning=beginning)
        cursor.shows_more = shows_more
        if not self.is_closed:
            await self._follow(cursor)
        if self.is_closed and cursor.after == after:
            # Without an event its client would not even know which response to resume. A cursor
            # that was closed passes nothing on.
            await self._fold(new_cursor(), beginning)

    async def _follow(self, cursor: Cursor) -> None:
        self._cursors.add(cursor)
        self._count_followers(1)
        try:
            async with cursor:
                while not (cursor.is_complete or cursor.log_removed):
                    live = cursor.live_in(self._live_logs)
                    if live is not None:
                        cursor.forget_rows()
                        await live.stream(cursor, cursor.after)
                        cursor.is_complete = not live.handed_over
                    elif cursor.beginning:
                        # A log that ends with these rows is not watched.
                        rows, cursor.beginning = cursor.beginning, ()
                        await self._fold(cursor, rows)
                        cursor.is_complete = cursor.is_folded()
                    else:
                        await self._stream_rows(cursor)
                had_it_before = not (cursor.has_terminal_event or cursor.log_removed)
                if had_it_before and (rest := cursor.sink([])) is not None:
                    await rest
        finally:
            self._cursors.discard(cursor)
            self._count_followers(-1)

    async def snapshot(self, tenant_id: TenantId, head: ResponseHead) -> dict[str, Any]:
        """Return the Response object as of the end of its log. Raises `StoreUnavailable`."""
        cursor = Cursor(tenant_id, head, self._new_fold_for, send_nobody, after=AFTER_EVERY_EVENT)
        before = -1
        while before < cursor.next_entry and not cursor.is_folded():
            before = cursor.next_entry
            await self._fold(cursor, await self._read_rows(cursor))
        return cursor.fold.response()

    async def beginning(
        self, tenant_id: TenantId, stored: StoredResponse
    ) -> Sequence[LogRow] | None:
        """Return the first rows of the log; None if they were removed. Raises
        `StoreUnavailable`.
        """
        if not stored.next_entry:
            return ()
        # The rows of a response that is generated here are rarely needed.
        is_live = self._live_logs.get(stored.uuid) is not None
        bytes_max = 1 if is_live else self._limits.read_bytes_max
        rows = await self._read_log(
            tenant_id, stored.uuid, stored.day, from_entry=0, bytes_max=bytes_max
        )
        return rows if rows and rows[0].first_entry == 0 else None

    def close(self) -> None:
        """End every present and future stream; their clients resume elsewhere."""
        self.is_closed = True
        for cursor in self._cursors:
            cursor.close()

    async def _stream_rows(self, cursor: Cursor) -> None:
        with self._watcher.watch(cursor.tenant_id, cursor.uuid, cursor.day) as log:
            reader = RemoteReader(cursor, log, self._live_logs)
            while not cursor.is_folded():
                before = cursor.next_entry
                is_promised = log.is_beyond(before)
                await self._fold(
                    cursor, log.since(before) or await self._read_rows_with_retries(cursor)
                )
                if is_promised and cursor.next_entry == before:
                    cursor.log_removed = True
                    return
                if cursor.is_folded():
                    break
                await reader.wait()
                if cursor.live_in(self._live_logs) is not None:
                    return
        cursor.is_complete = True

    async def _read_rows_with_retries(self, cursor: Cursor) -> list[LogRow]:
        while True:
            try:
                return await self._read_rows(cursor)
            except StoreUnavailable:
                await asyncio.sleep(self._limits.retry_pause_s)

    async def _read_rows(self, cursor: Cursor) -> list[LogRow]:
        return await self._read_log(
            cursor.tenant_id,
            cursor.uuid,
            cursor.day,
            from_entry=cursor.next_entry,
            bytes_max=self._limits.read_bytes_max,
        )

    async def _fold(self, cursor: Cursor, rows: Sequence[LogRow]) -> None:
        is_short = sum(len(row.entries) for row in rows) <= SHORT_BYTES
        log, slice_s = cursor.unread(rows), self._limits.slice_s
        is_more = True
        while is_more:
            async with nullcontext() if is_short else self._turn:
                rest, is_more = fold_slice(
                    cursor.fold, log, cursor, after=cursor.after, slice_s=slice_s
                )
                if is_more:
                    await asyncio.sleep(0)
            if rest is not None:
                await rest


class RemoteReader:
    """Subscriber that sends a stream what polls read of a log that another process writes.

    The task wakes only to await the sink, for entries that are not at hand, or when the response
    goes on here.
    """

    __slots__ = ("_cursor", "_failure", "_live_logs", "_log", "_rest", "_waiter")

    def __init__(self, cursor: Cursor, log: WatchedLog, live_logs: LiveLogRegistry) -> None:
        self._cursor = cursor
        self._log = log
        self._live_logs = live_logs
        self._waiter: asyncio.Future[None] | None = None
        self._rest: Awaitable[None] | None = None
        self._failure: Exception | None = None

    async def wait(self) -> None:
        if self._log.is_beyond(self._cursor.next_entry):
            return
        self._waiter = asyncio.get_running_loop().create_future()
        self._log.readers.append(self)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._log.readers.remove(self)
        if self._failure is not None:
            raise self._failure
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest

    def on_entries(self, part: LogRow) -> bool:
        """Send the next entries. Return False if the task has to go on."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        try:
            if self._send(part):
                return True
        except Exception as error:  # noqa: BLE001 - the stream's task raises it, others go on
            self._failure = error
        waiter.set_result(None)
        return False

    def on_moved(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._log.is_beyond(self._cursor.next_entry):
            waiter.set_result(None)

    def _send(self, part: LogRow) -> bool:
        cursor = self._cursor
        if part.first_entry > cursor.next_entry or len(part.entries) > SHORT_BYTES:
            return False
        if cursor.live_in(self._live_logs) is not None:
            return False
        for portion in cursor.unread([part]):
            self._rest = cursor(cursor.fold.replay(portion, cursor.after))
            if self._rest is not None:
                return False
        return not cursor.is_folded()
