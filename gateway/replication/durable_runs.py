from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.engine.archive import FIRST_EPOCH
from gateway.engine.row_mapping import datetime_of, has_kept_secrets
from gateway.engine.run_spec import charged_of
from gateway.engine.runner import Run
from gateway.engine.supervisor import Durable
from gateway.entries import Queued
from gateway.errors import StoreUnavailable
from gateway.eventlog.fold_slices import check_complete, fold_rows
from gateway.eventlog.journal import DurableJournal
from gateway.eventlog.live_log import READER_EVENTS_MAX, LiveLog
from gateway.store.claim_order import EndedResponse
from gateway.store.events import day_of
from gateway.store.periodic import run_periodically
from gateway.store.schema import TERMINAL
from gateway.telemetry.logs import EventLog
from gateway.tenancy.policy import DEFAULT_POLICY
from gateway.upstreams.admission.queue import CLASS_WEIGHTS, OUTPUT_WEIGHT
from gateway.upstreams.admission.slots import class_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
    from uuid import UUID

    from gateway.constraints.output_rules import OutputRules
    from gateway.engine.archive import Archive
    from gateway.engine.engine import Engine
    from gateway.engine.run_spec import RunSpec
    from gateway.engine.supervisor import Supervisor
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.live_log import LiveLogRegistry
    from gateway.eventlog.log_writer import LogWriter
    from gateway.generation import TokenUsage
    from gateway.limits.accounting import Charge
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.store.claims import Claim, ClaimedRun, LogHead
    from gateway.store.events import LogRow
    from gateway.tenancy import TenantId

    ReadHeads = Callable[[Collection[tuple[TenantId, UUID]]], Awaitable[dict[UUID, LogHead]]]

ENDED_MAX: Final = 4_096
"""Ended responses kept for the next claim's report; tenants of older ones stay charged the expected
cost.
"""
LOOK_S: Final = 2.0
LOOKED_AT_MAX: Final = 1_000
UNSEEN_MAX_S: Final = 60.0
"""Budgets must not stay used up by responses of which nothing is known."""

_log = EventLog(__name__)


class _Kept(NamedTuple):
    charge: Charge
    until: float


class QueuedCharges:
    """Spending reserved for background responses that wait in the database.

    The accepting process keeps each reservation until the response has ended anywhere; otherwise
    queued responses would pass every budget.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[TenantId, UUID], _Kept] = {}
        """The least recently checked first."""

    def leave(self, spec: RunSpec) -> None:
        # Whoever generates the response settles its charge.
        if spec.charge is not None and spec.charge.leave():
            key = spec.principal.tenant_id, spec.head.uuid
            self._kept[key] = _Kept(spec.charge, self._clock() + UNSEEN_MAX_S)

    def end(self, tenant_id: TenantId, uuid: UUID) -> None:
        # The response has ended here.
        kept = self._kept.pop((tenant_id, uuid), None)
        if kept is not None:
            kept.charge.give_back_spending()

    async def run(self, heads: ReadHeads) -> None:
        failure = "queued responses were not looked at"
        await run_periodically(partial(self.look, heads), LOOK_S, _log.debug, failure)

    async def look(self, heads: ReadHeads) -> None:
        some = list(islice(self._kept, LOOKED_AT_MAX))
        for key in some:
            if self._kept[key].until < self._clock():
                self.end(*key)
        head_of = await heads(some) if some else {}
        until = self._clock() + UNSEEN_MAX_S
        for key in some:
            head = head_of.get(key[1])
            if head is None or head.status in TERMINAL:
                self.end(*key)
            elif (kept := self._kept.pop(key, None)) is not None:
                self._kept[key] = kept._replace(until=until)


@dataclass(frozen=True, slots=True)
class RunDependencies:
    """Dependencies of all runs; `replays` lets one log at a time be replayed."""

    engine: Engine
    archive: Archive
    supervisor: Supervisor
    writer: LogWriter
    live_logs: LiveLogRegistry
    new_fold_for: Callable[[ResponseHead, OutputRules], Callable[[], Fold]]
    reader_events_max: int = READER_EVENTS_MAX
    replays: asyncio.Lock = field(default_factory=asyncio.Lock)
    adopt_charge: Callable[[TenantId, str, dict[str, Any]], Charge] | None = None


class DurableRuns:
    def __init__(
        self,
        dependencies: RunDependencies,
        *,
        claimed_max: int = 0,
        claimable: Callable[[], int] | None = None,
    ) -> None:
        # `claimed_max` bounds the background responses that run here at once. `claimable` returns
        # for how many more the backends have room: others wait in the database, for any replica.
        self._dependencies = dependencies
        self.end_defective = dependencies.archive.end_defective
        self.claimed_max = claimed_max
        self._claimable = claimable
        self._reserved = 0
        self.ended: deque[EndedResponse] = deque(maxlen=ENDED_MAX)
        """Background responses whose cost the next claim reports."""
        self.charges = QueuedCharges()
        self.when_one_ends: Callable[[], None] = lambda: None
        """Set by the scheduler, which is built from this object."""

    @property
    def room(self) -> int:
        claimed = self._dependencies.supervisor.claimed
        room = self.claimed_max - claimed
        if self._claimable is not None:
            room = min(room, self._claimable())
        return room - self._reserved

    @contextmanager
    def reserving(self, count: int) -> Iterator[None]:
        # Keep room for runs that are being claimed, and for those that were until they begin.
        self._reserved += count
        try:
            yield
        finally:
            self._reserved -= count

    @property
    def is_draining(self) -> bool:
        return self._dependencies.supervisor.is_draining

    def begin(self, spec: RunSpec, claim: Claim, *, requested_at: float) -> Run:
        """Start a response accepted here; `requested_at` is of `time.perf_counter`."""
        return self._start(spec, claim, self._new_live(spec), requested_at=requested_at)

    async def queue(self, spec: RunSpec) -> None:
        """Accept a background response; start it here if there is room and none waits before it."""
        archive = self._dependencies.archive
        if self.room <= 0 or self.is_draining:
            await archive.accept(spec, None, owned=False)
            self.charges.leave(spec)
            return
        fence = self._dependencies.writer.fence(spec.principal.tenant_id)
        since = time.perf_counter()
        with self.reserving(1):
            claim = await archive.queue(spec)
        if claim is not None:
            live = self._new_live(spec)
            live.append(Queued())
            live.show(1)
            self._start(spec, claim, live, requested_at=since, counted=0.0, fence=fence)
        else:
            self.charges.leave(spec)

    def _new_live(self, spec: RunSpec) -> LiveLog:
        return LiveLog(
            self._dependencies.new_fold_for(spec.head, spec.rules),
            reader_events_max=self._dependencies.reader_events_max,
            held=True,
            turn=self._dependencies.replays,
        )

    async def go_on(self, spec: RunSpec, claimed: ClaimedRun, rows: Sequence[LogRow]) -> bool:
        """Continue behind the last of the log's committed rows; False: this process drains.

        Damaged content raises `ValueError`, `TypeError` or `LookupError`, what cannot be read here
        now `StoreUnavailable`.
        """
        shared, charged = self._dependencies, charged_of(claimed.plan)
        if charged is not None and (adopt := shared.adopt_charge) is not None:
            spec = replace(spec, charge=adopt(spec.principal.tenant_id, spec.model, charged))
        if has_kept_secrets(spec):
            spec = replace(spec, secrets=await shared.archive.secrets(claimed.claim))
        if not spec.head.is_logged_in(shared.engine.format_of(spec.model).name):
            # Another process may know the model, or this one soon; otherwise attempts run out.
            raise StoreUnavailable(f"the model has another format than {spec.head.format} here")
        new_fold = shared.new_fold_for(spec.head, spec.rules)
        fold = new_fold()
        entries = await fold_rows(fold, rows)
        check_complete(len(entries), claimed.next_entry)
        if self.is_draining:
            return False
        live = LiveLog.restored(
            new_fold,
            entries,
            fold=fold,
            reader_events_max=shared.reader_events_max,
            turn=shared.replays,
        )
        self._start(spec, claimed.claim, live, counted=claimed.counted)
        return True

    def _start(
        self,
        spec: RunSpec,
        claim: Claim,
        live: LiveLog,
        *,
        requested_at: float | None = None,
        counted: float | None = None,
        fence: int | None = None,
    ) -> Run:
        # `counted`: the share cost charged to the tenant when the response was claimed; None: not
        # claimed.
        shared, head = self._dependencies, spec.head
        if spec.added:
            # These were stored with the response, and would take memory until the run ends.
            spec = replace(spec, added=())

        def lose() -> None:
            run.abandon()

        def release() -> None:
            channel.close()
            # No effect if the log has its end.
            live.hand_over()
            shared.live_logs.discard(head.uuid, live)
            if counted is not None:
                if head.background and not live.handed_over:
                    tenant_id, cost = spec.principal.tenant_id, cost_of(spec, live.fold.usage)
                    self.ended.append(EndedResponse(tenant_id, cost, counted))
                    self.charges.end(tenant_id, head.uuid)
                self.when_one_ends()
            if span is not None:
                span.end()

        channel = shared.writer.open(
            claim,
            day_of(datetime_of(spec.head.created_at)),
            live.next_entry,
            durable=live.show,
            lost=lose,
            fence=fence,
        )
        journal = DurableJournal(live, channel)
        run = Run(spec, journal, shared.engine, claim=claim, requested_at=requested_at)
        shared.live_logs.add(head.uuid, live)
        durable = Durable(claim, channel, is_claimed=counted is not None)
        span = None
        if counted is not None:
            name = "takeover" if claim.epoch > FIRST_EPOCH else "background"
            span = shared.engine.observer.begin_detached(name, spec)
        shared.supervisor.start(run, durable=durable, on_end=release)
        if span is not None:
            span.leave()
        return run


def cost_of(spec: RunSpec, usage: TokenUsage) -> float:
    """Return the cost by which tenants are compared, weighted as in admission.

    It is at least that of one token, because the mean of costs is used as a divisor.
    """
    share = spec.share_weight / DEFAULT_POLICY.share_weight
    weight = CLASS_WEIGHTS[class_of(spec.priority, is_background=True)] * share
    return max(1, usage.input_tokens + OUTPUT_WEIGHT * usage.output_tokens) / weight
