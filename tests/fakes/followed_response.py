"""A durable response that is generated here or elsewhere, step by step, and the feed of it."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson

from gateway.engine.run_spec import head_of
from gateway.entries import FOLD_VERSION, Finished, pack
from gateway.eventlog.feed import Feed, FeedLimits
from gateway.eventlog.fold.fold import Fold
from gateway.eventlog.fold_slices import EntryBuffer
from gateway.eventlog.live_log import LiveLog, LiveLogRegistry
from gateway.eventlog.log_watcher import LogWatcher
from gateway.store.claims import Claim
from gateway.store.endings import FinishedResponse
from gateway.store.events import LogBatch, LogRow, day_of
from gateway.store.remote_logs import ROWS_MAX, LogChanges
from gateway.store.responses import NewResponse, StoredResponse
from gateway.tenancy import TenantId
from tests.fakes.claim_table import ClaimTable
from tests.fakes.fold_formats import parsed_by
from tests.fakes.following import following
from tests.fakes.response_heads import CREATED_AT, ECHO, UUID_OF_TEST
from tests.fakes.staged_run import NO_RULES
from tests.fakes.stored import TERMS
from tests.fakes.toy_logs import FRAMING
from tests.fakes.toy_parser import ToyParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
    from datetime import date

    from gateway.entries import Entry
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.protocol.stream_events import Event
    from gateway.store.remote_logs import LogQuery, Seen

TENANT: Final = TenantId(UUID(int=7))
CREATED: Final = datetime.fromtimestamp(CREATED_AT, UTC)
DAY: Final = day_of(CREATED)
NEVER_S: Final = 3600.0


def toy_fold(head: ResponseHead) -> Callable[[], Fold]:
    return lambda: Fold(head, parsed_by(lambda _trace: ToyParser(), FRAMING), NO_RULES)


def accepted(*, background: bool = True) -> NewResponse:
    """The response of `tests.fakes.response_heads`, as it is inserted."""
    return NewResponse(
        uuid=UUID_OF_TEST,
        key_id=UUID(int=8),
        model="gpt-oss-20b",
        created_at=CREATED,
        root_created_at=CREATED,
        request=orjson.dumps({"echo": ECHO, "binding": None}),
        background=background,
        durable=True,
        streamed=True,
        plan=b"{}",
        prompt_ids=array("I"),
        owner="replica",
        lease_s=TERMS.lease_s,
    )


@dataclass
class Table:
    """The model of the database, asked as the feed asks the real one."""

    rows: ClaimTable = field(default_factory=lambda: ClaimTable(lambda: 0.0))
    reads: int = 0

    async def poll(
        self, asked: Sequence[LogQuery], _seen: Seen, _wanted: Collection[bytes]
    ) -> LogChanges:
        """`remote_logs.poll`, where nobody flushes."""
        await asyncio.sleep(0)
        heads = self.rows.heads([(TenantId(one.tenant_id), one.uuid) for one in asked])
        parts = [
            (one.key, head.epoch, row)
            for one in asked
            if (head := heads.get(one.uuid)) is not None
            for row in self.rows.rows[one.uuid].log
            if row.first_entry + row.count > one.entries
        ]
        return LogChanges({one.uuid: heads.get(one.uuid) for one in asked}, {}, parts[:ROWS_MAX])

    async def read(
        self, tenant_id: TenantId, uuid: UUID, day: date, /, *, from_entry: int, bytes_max: int
    ) -> list[LogRow]:
        """`events.read`: from the row that holds the entry on; past the end that is the last."""
        await asyncio.sleep(0)
        self.reads += 1
        assert (tenant_id, day) == (TENANT, DAY)
        log = self.rows.rows[uuid].log if uuid in self.rows.rows else []
        start = max((i for i, row in enumerate(log) if row.first_entry <= from_entry), default=0)
        before = itertools.accumulate((len(row.entries) for row in log[start:]), initial=0)
        return [row for row, size in zip(log[start:], before, strict=False) if size < bytes_max]

    def load(self) -> StoredResponse:
        """`responses.load`."""
        row = self.rows.rows[UUID_OF_TEST]
        return StoredResponse(
            uuid=row.uuid,
            key_id=row.new.key_id,
            model=row.new.model,
            status=row.status,
            created_at=CREATED,
            root_created_at=CREATED,
            completed_at=None,
            parent=None,
            background=row.new.background,
            stored=True,
            durable=True,
            streamed=True,
            fold_version=FOLD_VERSION,
            epoch=row.epoch,
            next_entry=row.next_entry,
            is_held=row.owner is not None,
            request=row.new.request,
            plan=None,
            body=None,
            recoveries=None,
        )


class Stage:
    """One response, its log in a table, and the feed of one process.

    It begins elsewhere; `come` and `go` let this process generate it for a while.
    """

    def __init__(
        self,
        *,
        background: bool = True,
        read_bytes_max: int = 1_000_000,
        slice_s: float = 1.0,
        new_fold_for: Callable[..., Callable[[], Fold]] = toy_fold,
    ) -> None:
        self.table = Table()
        self.table.rows.insert(TENANT, accepted(background=background))
        self.live_logs = LiveLogRegistry()
        self.watcher = LogWatcher(self.table.poll, interval_s=NEVER_S, pause_s=0)
        self.followers: list[int] = []
        self.feed = Feed(
            self.live_logs,
            self.watcher,
            self.table.read,
            new_fold_for,
            limits=FeedLimits(read_bytes_max, slice_s=slice_s, retry_pause_s=0),
            followers=self.followed,
        )
        self.live: LiveLog | None = None
        self._claim = Claim(TENANT, UUID_OF_TEST, 1)
        self._entries: list[Entry] = []
        self.head = head_of(self.table.load())
        self._new_fold = new_fold_for(self.head)

    def followed(self, change: int) -> None:
        self.followers.append(change + (self.followers[-1] if self.followers else 0))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.watcher.run())
            yield
            task.cancel()

    def append(self, entries: Sequence[Entry]) -> None:
        """One row more. Here it is shown when it is committed, elsewhere a notice comes of it."""
        if not entries:
            return
        if isinstance(entries[-1], Finished):
            self.append(entries[:-1])
            self._finish(entries[-1])
        else:
            self._append(entries)
        self.watcher.poll_soon([UUID_OF_TEST])

    def _append(self, entries: Sequence[Entry]) -> None:
        for entry in entries if self.live else ():
            assert self.live is not None
            self.live.append(entry)
        parcel = LogBatch(self._claim, DAY, len(self._entries), len(entries), pack(entries))
        assert self.table.rows.append([parcel])
        self._entries += entries
        if self.live:
            self.live.show(len(self._entries))

    def _finish(self, end: Finished) -> None:
        events = self.live.fold.apply(end) if self.live else []
        row = LogRow(len(self._entries), 1, pack([end]))
        finished = FinishedResponse(
            uuid=UUID_OF_TEST,
            epoch=self._claim.epoch,
            status=end.status,
            completed_at=CREATED,
            body=b"{}",
            entries=row,
        )
        self.table.rows.finish(finished)
        if self.live:
            self.live.close(end, events)

    def come(self) -> None:
        """This process takes the response over."""
        if self.live is None:
            self._take_over()
            fold = self._new_fold()
            for entry in self._entries:
                fold.apply(entry)
            self.live = LiveLog.restored(
                self._new_fold, EntryBuffer(self._entries), fold=fold, reader_events_max=3
            )
            self.live_logs.add(UUID_OF_TEST, self.live)

    def go(self) -> None:
        """Another process takes it over."""
        if self.live is not None:
            self.live.hand_over()
            self.live_logs.discard(UUID_OF_TEST, self.live)
            self.live = None
            self._take_over()

    def _take_over(self) -> None:
        self.table.rows.release([self._claim])
        (run,) = self.table.rows.claim("another", TERMS, limit=1, take_over=False)
        self._claim = run.claim

    async def read(self, after: int = -1, beginning: Sequence[LogRow] = ()) -> list[list[Event]]:
        """All that a stream from `after` on yields."""
        stream = following(
            partial(self.feed.stream, TENANT, self.head, after=after, beginning=beginning)
        )
        return [batch async for batch in stream]

    async def play(self, after: int = -1, beginning: Sequence[LogRow] = ()) -> list[list[Event]]:
        """The same as it is shown; now and then it has to be waited for."""
        shown: list[list[Event]] = []

        def show(events: Sequence[Event]) -> Awaitable[None] | None:
            shown.append(list(events))
            return asyncio.sleep(0) if len(shown) % 3 == 2 else None

        await self.feed.stream(TENANT, self.head, show, after=after, beginning=beginning)
        return shown


def folded(log: Sequence[Entry], *, background: bool = True) -> list[Event]:
    """The whole stream."""
    stage = Stage(background=background)
    fold = stage._new_fold()
    return [event for entry in log for event in fold.apply(entry)]
