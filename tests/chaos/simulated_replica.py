"""A replica as a state machine: what the writer, the keeper, the scheduler and a run decide.

It asks the database by calls that take any time, may be carried out after it gave up waiting, and
may lose their answer. The way of entries into the log is the product's own `Outbox`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.entries import Entry, Finished, Status, pack, unpack
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.eventlog.log_writer import BatchOutcome, Outbox
from gateway.store.claims import Claim, ClaimTerms
from gateway.store.endings import FinishedResponse
from gateway.store.events import LogRow, day_of
from tests.chaos.log_audit import says
from tests.fakes.stored import COMPLETED, CREATED

if TYPE_CHECKING:
    import random
    from collections import Counter
    from uuid import UUID

    from gateway.store.claims import ClaimedRun, LogHead
    from gateway.store.events import LogBatch
    from gateway.tenancy import TenantId
    from tests.chaos.log_audit import Audit
    from tests.fakes.claim_table import ClaimTable, Row

TERMS: Final = ClaimTerms(lease_s=4.0, attempts_max=4, tenant_running_max=6)
ORPHAN_S: Final = 60.0
PENDING_BYTES_MAX: Final = 200
ENTRIES_MAX: Final = 30
DAY: Final = day_of(CREATED)

Answer = Callable[[Any], None]
"""Gets what the database returned, or a `StoreError`."""


class Surroundings(Protocol):
    """What a replica can reach."""

    table: ClaimTable
    audit: Audit
    chance: random.Random
    counts: Counter[str]

    def call(self, replica: Replica, perform: Callable[[], Any], answer: Answer) -> None: ...


@dataclass(eq=False)
class Run:
    """A response that is generated here. `outbox` is None for one without a durable log."""

    claim: Claim
    outbox: Outbox | None
    entries: list[Entry] = field(default_factory=list)
    is_open: bool = True
    is_ending: bool = False
    is_asking: bool = False

    @property
    def wants_to_end(self) -> bool:
        return len(self.entries) > self.claim.uuid.int % ENTRIES_MAX

    @property
    def shown(self) -> int:
        """How many entries readers here may see."""
        return self.outbox.next_entry if self.outbox is not None else 0


class Replica:
    """One process, from its start until it crashes or has drained."""

    def __init__(self, world: Surroundings, number: int) -> None:
        self._world = world
        self.number = number
        self.name = f"replica-{number}"
        self.runs: dict[UUID, Run] = {}
        self.is_frozen = False
        self.is_draining = False
        self._is_flushing = False

    # Generating.

    def say(self) -> None:
        """One run says something, or decides that it has said all."""
        run = self._some_run(lambda run: not run.is_ending)
        if run is None:
            return
        if run.wants_to_end:
            run.is_ending = True
            return
        entry = says(self.number, run.claim.epoch, len(run.entries))
        if run.outbox is None:
            run.entries.append(entry)
        elif run.outbox.pending_bytes < PENDING_BYTES_MAX:
            run.entries.append(entry)
            run.outbox.put(entry)

    def finish(self) -> None:
        """One run that has said all, and all of it durably, commits its end."""
        run = self._some_run(lambda run: run.is_ending and not run.is_asking)
        if run is None or (run.outbox is not None and run.outbox.pending_bytes):
            return
        run.is_asking = True
        claim, first = run.claim, None if run.outbox is None else run.outbox.next_entry
        end = ending(claim.uuid, claim.epoch, "completed", first)
        self._call(lambda: self._world.table.finish(end), lambda answer: self._ended(run, answer))

    def _ended(self, run: Run, answer: object) -> None:
        run.is_asking = False
        if isinstance(answer, ClaimLost):
            self._abandon(run)
        elif answer is None and run.is_open:
            self._world.counts["completed"] += 1
            if run.outbox is not None:
                self._world.audit.showed(run.claim.uuid, run.shown, [_finished("completed")])
            self._abandon(run)

    # The writer.

    def flush(self) -> None:
        """Send what waits, of all runs together."""
        outboxes = [(run, run.outbox) for run in self.runs.values() if run.outbox is not None]
        batch = [run for run, outbox in outboxes if outbox.has_waiting]
        if batch and not self._is_flushing:
            for _, outbox in outboxes:
                if outbox.has_waiting:
                    outbox.take()
            self._send(batch)

    def _send(self, batch: list[Run]) -> None:
        batch = [run for run in batch if run.is_open]
        self._is_flushing = bool(batch)
        if batch:
            parcels = [parcel_of(run) for run in batch]
            self._call(
                lambda: self._world.table.append(parcels), lambda answer: self._sent(batch, answer)
            )

    def _sent(self, batch: list[Run], answer: frozenset[UUID] | Exception) -> None:
        if isinstance(answer, frozenset):
            for run in batch:
                if run.claim.uuid in answer:
                    self._committed(run)
                else:
                    outbox_of(run).refused()
        self._ask(batch)

    def _ask(self, batch: list[Run]) -> None:
        unclear = [run for run in batch if run.is_open and outbox_of(run).batch is not None]
        self._is_flushing = bool(unclear)
        if unclear:
            asked = [(run.claim.tenant_id, run.claim.uuid) for run in unclear]
            self._call(
                lambda: self._world.table.heads(asked), lambda answer: self._learn(unclear, answer)
            )

    def _learn(self, unclear: list[Run], answer: dict[UUID, LogHead] | Exception) -> None:
        if isinstance(answer, Exception):
            self._ask(unclear)
            return
        again = []
        for run in unclear:
            outcome = outbox_of(run).learn(answer.get(run.claim.uuid))
            self._world.counts[f"parcel {outcome.value}"] += 1
            if outcome is BatchOutcome.COMMITTED:
                self._committed(run)
            elif outcome is BatchOutcome.ABSENT:
                again.append(run)
            else:
                self._abandon(run)
        self._send(again)

    def _committed(self, run: Run) -> None:
        before = run.shown
        outbox_of(run).committed()
        if run.is_open:
            self._world.audit.showed(run.claim.uuid, before, run.entries[before : run.shown])

    # Claims.

    def create(self, tenant_id: TenantId, row: Any) -> None:
        """Accept a response; one with an owner is generated here as soon as it is recorded."""
        claim = Claim(tenant_id, row.uuid, 1)
        outbox = Outbox(claim, DAY, 0) if row.durable else None

        def recorded(answer: object) -> None:
            if answer is None and row.owner is not None and not self.is_draining:
                self._start(Run(claim, outbox))

        self._call(lambda: self._world.table.insert(tenant_id, row), recorded)

    def claim(self) -> None:
        """Take work, lapsed leases included."""
        take_over = self._world.chance.random() < 0.8
        if not self.is_draining:
            self._call(
                lambda: self._world.table.claim(self.name, TERMS, limit=2, take_over=take_over),
                self._claimed,
            )

    def _claimed(self, answer: list[ClaimedRun] | Exception) -> None:
        if isinstance(answer, Exception):
            return
        for claimed in answer:
            self._world.counts["begun" if claimed.was_queued else "taken over"] += 1
            self._load(claimed)

    def _load(self, claimed: ClaimedRun) -> None:
        uuid, count = claimed.claim.uuid, claimed.next_entry

        def read() -> list[LogRow]:
            row = self._world.table.rows.get(uuid)
            return row.read() if row is not None else []

        def loaded(answer: list[LogRow] | Exception) -> None:
            if isinstance(answer, Exception):
                return
            entries = [entry for row in answer for entry in unpack(row.entries)][:count]
            if len(entries) < count or self.is_draining:
                return
            self._world.audit.showed(uuid, 0, entries)
            self._start(Run(claimed.claim, Outbox(claimed.claim, DAY, count), entries))

        self._call(read, loaded)

    def _start(self, run: Run) -> None:
        before = self.runs.get(run.claim.uuid)
        if before is not None:
            self._abandon(before)
        self.runs[run.claim.uuid] = run

    def beat(self) -> None:
        """Renew what is held, and look at what could not be renewed."""
        held = list(self.runs.values())
        claims = [run.claim for run in held]

        def renewed(answer: frozenset[UUID] | Exception) -> None:
            if isinstance(answer, frozenset):
                self._look([run for run in held if run.claim.uuid not in answer])

        self._call(
            lambda: self._world.table.heartbeat(self.name, claims, lease_s=TERMS.lease_s), renewed
        )

    def _look(self, suspects: list[Run]) -> None:
        asked = [(run.claim.tenant_id, run.claim.uuid) for run in suspects]

        def looked(answer: dict[UUID, LogHead] | Exception) -> None:
            if isinstance(answer, Exception):
                return
            for run in suspects:
                head = answer.get(run.claim.uuid)
                if head is None or head.epoch != run.claim.epoch:
                    self._abandon(run)

        if suspects:
            self._call(lambda: self._world.table.heads(asked), looked)

    def release(self) -> None:
        """Drain: give up durable runs, most often once what they said is committed."""
        patience = self._world.chance.random() < 0.8
        given_up = [
            run
            for run in self.runs.values()
            if not run.is_asking
            and run.outbox is not None
            and not (patience and run.outbox.pending_bytes)
        ]
        claims = [run.claim for run in given_up]
        for run in given_up:
            self._world.counts["released"] += 1
            self._abandon(run)
        self._call(lambda: self._world.table.release(claims), lambda _: None)

    def reaper(self) -> None:
        """End what nobody goes on with."""

        def found(answer: list[tuple[TenantId, UUID]] | Exception) -> None:
            if not isinstance(answer, Exception):
                for _, uuid in answer:
                    self.conclude(uuid, "failed")

        self._call(
            lambda: self._world.table.abandoned(
                limit=4, attempts_max=TERMS.attempts_max, orphan_s=ORPHAN_S
            ),
            found,
        )

    def conclude(self, uuid: UUID, status: Status) -> None:
        """End a response whoever owns it."""

        def end(row: Row, _: list[LogRow]) -> FinishedResponse:
            self._world.counts[status] += 1
            first = row.next_entry if row.new.durable else None
            return ending(uuid, row.epoch, status, first)

        self._call(lambda: self._world.table.conclude(uuid, end), lambda _: None)

    def _abandon(self, run: Run) -> None:
        run.is_open = False
        if self.runs.get(run.claim.uuid) is run:
            del self.runs[run.claim.uuid]

    def _some_run(self, wanted: Callable[[Run], bool]) -> Run | None:
        runs = [run for run in self.runs.values() if wanted(run)]
        return self._world.chance.choice(runs) if runs else None

    def _call(self, perform: Callable[[], Any], answer: Answer) -> None:
        self._world.call(self, perform, answer)


def outbox_of(run: Run) -> Outbox:
    assert run.outbox is not None
    return run.outbox


def parcel_of(run: Run) -> LogBatch:
    parcel = outbox_of(run).batch
    assert parcel is not None
    return parcel


def ending(uuid: UUID, epoch: int, status: Status, first_entry: int | None) -> FinishedResponse:
    """The end of a response, with the last row of its log if it has a durable one."""
    row = None if first_entry is None else LogRow(first_entry, 1, pack([_finished(status)]))
    return FinishedResponse(
        uuid=uuid, epoch=epoch, status=status, completed_at=COMPLETED, body=b"{}", entries=row
    )


def _finished(status: Status) -> Finished:
    return Finished(status, 1_795_000_009, code="server_error", message="It broke off.")


UNAVAILABLE: Final = StoreUnavailable("the database is away")
