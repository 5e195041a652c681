"""A database of runs in memory, with the failures of a real one, for the writer and its runs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from uuid import UUID

from typing_extensions import override

from gateway import ids
from gateway.entries import Entry, unpack
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_writer import Channel, LogWriter, WriterBounds
from gateway.store.claims import Claim
from gateway.store.events import day_of
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from tests.fakes.claim_table import ClaimTable
from tests.fakes.stored import CREATED, durable_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from gateway.store.claims import LogHead
    from gateway.store.events import LogBatch, LogRow, WriteClaim
    from gateway.store.postgres.database import Database

TENANT = TenantId(UUID(int=1))
BOUNDS = WriterBounds(
    flush_bytes_max=10_000, run_pending_bytes_max=1_000, pending_bytes_max=5_000, retry_pause_s=0.0
)


@dataclass
class LogRows:
    """`before` and `after` are raised around the next appends, `asked` by the next heads.

    While `gate` is clear, appends wait in front of the database; `reached` is set when one does.
    `damaged` are responses that the database takes for a mistake.
    """

    table: ClaimTable = field(default_factory=lambda: ClaimTable(lambda: 0.0))
    before: list[Exception] = field(default_factory=list)
    after: list[Exception] = field(default_factory=list)
    asked: list[Exception] = field(default_factory=list)
    damaged: dict[UUID, Exception] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def new(self) -> Claim:
        """A response that is claimed, with one entry in its log."""
        row = durable_response(uuid=ids.new_uuid(), owner="here")
        self.table.insert(TENANT, row)
        return Claim(TENANT, row.uuid, 1)

    def log(self, claim: Claim) -> list[Entry]:
        """What is in the log, but for that first entry."""
        rows = self.table.rows[claim.uuid].log
        return [entry for row in rows for entry in unpack(row.entries)][1:]

    async def append(self, parcels: Sequence[LogBatch]) -> frozenset[UUID]:
        self.reached.set()
        await self.gate.wait()
        self.batches.append(len(parcels))
        if self.before:
            raise self.before.pop(0)
        for parcel in parcels:
            if parcel.claim.uuid in self.damaged:
                raise self.damaged[parcel.claim.uuid]
        committed = self.table.append(parcels)
        if self.after:
            raise self.after.pop(0)
        return committed

    async def heads(self, responses: Collection[tuple[TenantId, UUID]]) -> dict[UUID, LogHead]:
        await asyncio.sleep(0)
        if self.asked:
            raise self.asked.pop(0)
        return self.table.heads(responses)


class _Unsettled(Flusher):
    """Writes to rows in memory, in which every entry has its place at once."""

    def __init__(self, rows: LogRows) -> None:
        super().__init__(cast("Database", None), "here")
        self._rows = rows

    @override
    async def append(self, batches: Sequence[LogBatch]) -> frozenset[UUID]:
        return await self._rows.append(batches)

    @override
    async def heads(self, logs: Collection[tuple[TenantId, UUID]]) -> dict[UUID, LogHead]:
        return await self._rows.heads(logs)

    @override
    async def settle(self) -> None: ...

    @override
    async def complete_row(self, claim: WriteClaim, row: LogRow) -> LogRow:
        return row


@dataclass
class Desk:
    """A writer at work, and what it told."""

    rows: LogRows
    writer: LogWriter
    durable: list[tuple[UUID, int]] = field(default_factory=list)
    lost: list[UUID] = field(default_factory=list)

    def open(
        self,
        *,
        claim: Claim | None = None,
        durable: Callable[[int], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> Channel:
        claim = claim or self.rows.new()
        return self.writer.open(
            claim,
            day_of(CREATED),
            1,
            durable=durable or (lambda count: self.durable.append((claim.uuid, count))),
            lost=lost or (lambda: self.lost.append(claim.uuid)),
        )


@asynccontextmanager
async def writing(
    *,
    bounds: WriterBounds = BOUNDS,
    committed: Callable[[Collection[UUID]], None] = lambda _: None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Desk]:
    rows = LogRows()
    writer = LogWriter(_Unsettled(rows), bounds, metrics=metrics or Metrics(), committed=committed)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        yield Desk(rows, writer)
        task.cancel()
