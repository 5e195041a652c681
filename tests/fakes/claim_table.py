"""A model of the rows of runs: what `store.claims`, `events` and `endings` do, without a database.

The same verbs on the same values, but synchronous, at the time that the test says it is, and fast
enough for millions of steps. `test_claim_table.py` holds it against PostgreSQL.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gateway.entries import FOLD_VERSION, FOLD_VERSIONS
from gateway.errors import ClaimLost, StoreConflict
from gateway.store.claim_order import EXPECTED_AT_FIRST
from gateway.store.claims import Claim, ClaimedRun, ClaimTerms, LogHead
from gateway.store.events import LogBatch, LogRow, WriteClaim, day_of
from gateway.store.schema import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from uuid import UUID

    from gateway.store.endings import FinishedResponse
    from gateway.store.responses import NewResponse
    from gateway.tenancy import TenantId

RUNNING: Final = ("queued", "in_progress")
IN_LINE: Final = 2
"""The rank of what is claimed in the order of shares, and not before its turn."""


@dataclass(slots=True)
class Row:
    """A response and its log. Times are seconds of the table's clock."""

    tenant_id: TenantId
    new: NewResponse
    status: str
    owner: str | None
    epoch: int
    lease_until: float | None
    next_entry: int
    attempts: int
    inserted_at: float
    fold_version: int = FOLD_VERSION
    log: list[LogRow] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    """Under which epoch each row of the log was written."""

    @property
    def uuid(self) -> UUID:
        return self.new.uuid

    def add(self, epoch: int, entries: LogRow) -> None:
        self.log.append(entries)
        self.epochs.append(epoch)
        self.next_entry = entries.first_entry + entries.count

    def read(self, from_entry: int = 0) -> list[LogRow]:
        """What `events.read` gives when no bound of bytes stops it."""
        return [row for row in self.log if row.first_entry + row.count > from_entry]


class ClaimTable:
    """`clock` gives seconds. `running_max` are the bounds of tenants that have one of their own."""

    def __init__(
        self, clock: Callable[[], float], *, running_max: dict[TenantId, int] | None = None
    ) -> None:
        self._clock = clock
        self._running_max = running_max or {}
        self._served: dict[TenantId, float] = {}
        self._last = 0.0
        self._running: dict[UUID, Row] = {}
        self.rows: dict[UUID, Row] = {}

    def insert(self, tenant_id: TenantId, new: NewResponse) -> None:
        """`responses.insert`, but for queues and idempotency keys."""
        if new.uuid in self.rows:
            raise StoreConflict("pk_responses")
        now, claims = self._clock(), int(new.owner is not None)
        lease_until = None if new.lease_s is None else now + new.lease_s
        row = Row(tenant_id, new, new.status, new.owner, claims, lease_until, 0, claims, now)
        if new.entries is not None:
            row.add(claims, LogRow(0, *new.entries))
        self.rows[new.uuid] = self._running[new.uuid] = row

    def claim(
        self, owner: str, terms: ClaimTerms, *, limit: int, take_over: bool
    ) -> list[ClaimedRun]:
        """`claims.claim`."""
        chosen = sorted(self._claimable(terms, take_over=take_over), key=_place)[:limit]
        runs = [self._take(row, owner, terms.lease_s) for _, row in chosen]
        starts = [(rank, start, row.tenant_id) for (rank, start), row in chosen if rank]
        for _, start, tenant in starts:
            served = self._served.get(tenant, 0.0)
            self._served[tenant] = max(served, start + EXPECTED_AT_FIRST)
        self._last = max([self._last, *(start for rank, start, _ in starts if rank == IN_LINE)])
        return sorted(runs, key=lambda run: (run.was_queued, run.claim.uuid))

    def _claimable(
        self, terms: ClaimTerms, *, take_over: bool
    ) -> Iterable[tuple[tuple[int, float], Row]]:
        """With their places in line; every response has waited for long."""
        now = self._clock()
        queued: Counter[TenantId] = Counter()
        running = Counter(
            row.tenant_id
            for row in self._running.values()
            if row.new.background and row.status == "in_progress"
        )
        for row in sorted(self._running.values(), key=attrgetter("uuid")):
            if not row.new.durable or row.fold_version not in terms.fold_versions:
                continue
            if row.status == "queued":
                place = queued[row.tenant_id]
                queued[row.tenant_id] += 1
                bound = self._running_max.get(row.tenant_id, terms.tenant_running_max)
                if running[row.tenant_id] + place < bound:
                    served = self._served.get(row.tenant_id, self._last)
                    start = max(served, self._last - EXPECTED_AT_FIRST)
                    is_first = not place and not running[row.tenant_id]
                    rank = IN_LINE - is_first
                    yield (rank, start + place * EXPECTED_AT_FIRST), row
            elif row.attempts < terms.attempts_max and (
                row.owner is None or (take_over and _lapsed(row, now))
            ):
                yield (0, 0.0), row

    def _take(self, row: Row, owner: str, lease_s: float) -> ClaimedRun:
        was_queued = row.status == "queued"
        row.status, row.owner = "in_progress", owner
        row.epoch += 1
        row.attempts += 1
        row.lease_until = self._clock() + lease_s
        new = row.new
        return ClaimedRun(
            claim=Claim(row.tenant_id, new.uuid, row.epoch),
            next_entry=row.next_entry,
            attempts=row.attempts,
            was_queued=was_queued,
            key_id=new.key_id,
            project_id=new.project_id,
            tenant_name=f"tenant-{row.tenant_id}",
            model=new.model,
            created_at=new.created_at,
            root_created_at=new.root_created_at,
            parent=new.parent,
            background=new.background,
            streamed=new.streamed,
            request=new.request,
            plan=new.plan or b"",
            prompt_ids=array("I", new.prompt_ids or ()),
        )

    def heartbeat(self, owner: str, claims: Sequence[Claim], *, lease_s: float) -> frozenset[UUID]:
        """`claims.heartbeat`."""
        held = [row for row in self._held(claims) if row.owner == owner]
        for row in held:
            row.lease_until = self._clock() + lease_s
        return frozenset(row.uuid for row in held)

    def release(self, claims: Sequence[Claim]) -> None:
        """`claims.release`."""
        for row in self._held(claims):
            if row.owner is not None:
                row.owner, row.lease_until = None, self._clock()
                row.attempts -= 1

    def _held(self, claims: Iterable[WriteClaim]) -> list[Row]:
        """Rows in progress whose epoch is that of the claim."""
        found = [(claim, self._running.get(claim.uuid)) for claim in claims]
        return [
            row
            for claim, row in found
            if row is not None and row.status == "in_progress" and row.epoch == claim.epoch
        ]

    def abandoned(
        self,
        *,
        limit: int,
        attempts_max: int,
        orphan_s: float,
        fold_versions: tuple[int, ...] = FOLD_VERSIONS,
    ) -> list[tuple[TenantId, UUID]]:
        """`claims.abandoned`, where the time of insertion is what the gateway said it was."""
        now = self._clock()

        def is_abandoned(row: Row) -> bool:
            if not row.new.durable and row.lease_until is not None:
                return _lapsed(row, now)
            if not row.new.durable or row.fold_version not in fold_versions:
                left_at = row.inserted_at if row.lease_until is None else row.lease_until
                return left_at < now - orphan_s
            exhausted = row.status == "in_progress" and row.attempts >= attempts_max
            return exhausted and (row.owner is None or _lapsed(row, now))

        found = [row for row in self._running.values() if is_abandoned(row)]
        return [(row.tenant_id, row.uuid) for row in sorted(found, key=attrgetter("uuid"))[:limit]]

    def heads(self, responses: Collection[tuple[TenantId, UUID]]) -> dict[UUID, LogHead]:
        """`claims.heads`."""
        found = [self.rows[uuid] for _, uuid in responses if uuid in self.rows]
        return {row.uuid: LogHead(row.epoch, row.next_entry, row.status) for row in found}

    def append(self, parcels: Sequence[LogBatch]) -> frozenset[UUID]:
        """`events.append`."""
        return frozenset(parcel.claim.uuid for parcel in parcels if self._append(parcel))

    def _append(self, parcel: LogBatch) -> bool:
        for row in self._held([parcel.claim]):
            if row.next_entry == parcel.first_entry:
                assert parcel.day == day_of(row.new.created_at)
                row.add(
                    parcel.claim.epoch, LogRow(parcel.first_entry, parcel.count, parcel.entries)
                )
                return True
        return False

    def finish(self, finished: FinishedResponse) -> None:
        """`endings.finish`: what it does to claim and log."""
        row = self.rows.get(finished.uuid)
        if row is None or row.epoch != finished.epoch:
            raise ClaimLost
        if row.status in TERMINAL:
            if row.status != finished.status:
                raise ClaimLost
        elif not self._end(row, finished, row.epoch):
            raise ClaimLost

    def conclude(
        self, uuid: UUID, end: Callable[[Row, list[LogRow]], FinishedResponse | None]
    ) -> Row | None:
        """`endings.conclude`, likewise; `end` gets a row of the model."""
        row = self.rows.get(uuid)
        if row is None or row.status in TERMINAL:
            return row
        finished = end(row, list(row.log) if row.new.durable else [])
        if finished is not None and not self._end(row, finished, row.epoch + 1):
            raise ValueError("the end leaves a gap in the log")
        return row

    def _end(self, row: Row, finished: FinishedResponse, epoch: int) -> bool:
        if finished.status not in TERMINAL:
            raise ValueError(f"{finished.status} is no end")
        if finished.entries is not None:
            if finished.entries.first_entry != row.next_entry:
                return False
            row.add(epoch, finished.entries)
        row.status, row.epoch = finished.status, epoch
        row.owner = row.lease_until = None
        del self._running[row.uuid]
        return True


def _place(placed: tuple[tuple[int, float], Row]) -> tuple[tuple[int, float], UUID]:
    place, row = placed
    return place, row.uuid


def _lapsed(row: Row, now: float) -> bool:
    return row.lease_until is not None and row.lease_until <= now
