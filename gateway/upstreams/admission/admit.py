"""Admission for the pool: send a request now, or wait until it may go; and call running ones back.

For a second tenant without a free slot, requests of the first are recalled down to its share: first
those without a token, which lose nothing, then the latest that can be continued. They go back into
the queue, before the others of their tenant.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, get_args

from gateway.concurrency import OnceEvent
from gateway.errors import Overloaded, RateLimited
from gateway.upstreams.admission.queue import (
    SHARE_OF_FREE_SLOTS,
    AdmissionQueue,
    Demand,
    FairShares,
    RefusedFor,
    Ticket,
)
from gateway.upstreams.admission.slots import MemberSlots, WorkClass, class_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gateway.generation import TokenRequest
    from gateway.telemetry.metrics import Metrics
    from gateway.upstreams.admission.slots import AdmissionPolicy


class Recallable(Protocol):
    """Request that runs at a backend; `share` is the weight of its tenant."""

    @property
    def upstream(self) -> str: ...

    @property
    def share(self) -> float: ...

    @property
    def has_begun(self) -> bool: ...

    @property
    def can_go_on(self) -> bool: ...

    def recall(self) -> None: ...


def excess(running: int, free: int) -> int:
    """Return how many requests must end to bring a tenant down to its share.

    `free` is negative if more slots are taken than exist.
    """
    more = running - SHARE_OF_FREE_SLOTS * free
    return max(0, -(-more // (SHARE_OF_FREE_SLOTS + 1)))


class Running:
    """In the order of sending, by tenant."""

    def __init__(self) -> None:
        self.tenants: dict[str, dict[Recallable, None]] = {}
        self._leaving: dict[Recallable, None] = {}

    def add(self, tenant: str, one: Recallable) -> None:
        self.tenants.setdefault(tenant, {})[one] = None

    def discard(self, tenant: str, one: Recallable) -> None:
        self._leaving.pop(one, None)
        own = self.tenants.get(tenant)
        if own is not None and own.pop(one, self) is None and not own:
            del self.tenants[tenant]

    def make_room(
        self, tenant: str, at: Collection[str], *, bound: int, free: int, share: float = 1.0
    ) -> int:
        """Recall requests of the tenant that exceeds its share most, for a slot at one of `at`."""
        free += sum(one.upstream in at for one in self._leaving)
        hogs = {name: own for name in self.tenants if (own := self._beyond(name, at, bound, share))}
        hogs.pop(tenant, None)
        if not hogs:
            return 0
        hog = max(hogs, key=lambda name: len(hogs[name]) / hogs[name][-1].share)
        own = hogs[hog]
        # The tenant keeps its share even if far more run than `bound` says: `bound` may be wrong.
        count = min(excess(len(own), free), int(len(own) * share / (own[-1].share + share)))
        waiting = [one for one in own if not one.has_begun]
        begun = [one for one in own if one.has_begun and one.can_go_on]
        chosen = [*reversed(waiting), *reversed(begun)][:count]
        for one in chosen:
            del self.tenants[hog][one]
            self._leaving[one] = None
            one.recall()
        return len(chosen)

    def _beyond(
        self, tenant: str, at: Collection[str], bound: int, share: float
    ) -> Sequence[Recallable]:
        # The tenant's weight is that of its latest request.
        own = self.tenants[tenant]
        latest = next(reversed(own)).share
        part = bound * latest / (latest + share)
        if len(own) <= part:
            return ()
        here = [one for one in own if one.upstream in at]
        return here if len(here) > part else ()


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

PUMP_INTERVAL_S: Final = 0.1
"""While requests wait: by mere time delays get shorter and backends come back."""
CLAIMED_AHEAD: Final = 4
"""Background requests beyond the free slots, for those that become free."""
REFUSED_APART_S: Final = 0.004
"""Between two requests of a tenant that waited in vain."""
RETRY_AFTER_MIN_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60.0
"""openai-python does not wait longer, and tries again at once instead."""

_CAUSES: Final[dict[RefusedFor, str]] = {
    "full": "as many requests wait as may",
    "tenant": "as many of its tenant wait as may",
    "wait": "it would wait too long for a backend",
    "deadline": "it waited too long for a backend",
}


@dataclass(frozen=True, slots=True)
class AdmissionState:
    queued: dict[str, int]
    slots: dict[str, int]
    taken: dict[str, int]
    saturation: float


class Admission:
    def __init__(
        self,
        policy: AdmissionPolicy,
        *,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self._metrics = metrics
        self._clock = clock
        self._members: dict[str, MemberSlots] = {}
        self._serving: Callable[[], Iterable[str]] = self._members.keys
        self.shares = FairShares()
        self.running = Running()
        self._queue: AdmissionQueue[Any] = AdmissionQueue(policy, self.shares)
        self._timer: asyncio.TimerHandle | None = None
        self.waiting = 0
        """While it is 0, a request that finds room may take it."""
        metrics.admission_reads(
            queued={
                work.label: partial(self._queue.lengths.__getitem__, work) for work in WorkClass
            },
            saturation=lambda: self.saturation,
            reasons=get_args(RefusedFor),
        )

    def follow(self, policy: AdmissionPolicy) -> None:
        self.policy = self._queue.policy = policy
        for member in self._members.values():
            member.follow(policy)
        if self.waiting:
            self.pump()

    def forget(self, name: str) -> None:
        self._members.pop(name, None)

    def serves(self, serving: Callable[[], Iterable[str]]) -> None:
        # `serving` names the backends that take requests; only their slots can be used.
        self._serving = serving

    def slots(self, name: str) -> MemberSlots:
        slots = self._members.get(name)
        if slots is None:
            slots = self._members[name] = MemberSlots(name, self.policy)
            self._metrics.admission_slots(name, lambda: slots.bound)
        return slots

    @property
    def saturation(self) -> float:
        """Return requests in flight and waiting for each slot; at least one slot counts."""
        members = [self.slots(name) for name in self._serving()]
        requests = self.waiting + sum(one.in_flight for one in members)
        return requests / max(1, sum(one.bound for one in members))

    @property
    def claimable(self) -> int:
        """Return how many more queued responses can start here soon; may be negative."""
        free = sum(self.slots(name).background_room for name in self._serving())
        return free + CLAIMED_AHEAD - self._queue.accepted

    def state(self) -> AdmissionState:
        return AdmissionState(
            {work.label: count for work, count in self._queue.lengths.items()},
            {name: one.bound for name, one in self._members.items()},
            {name: one.in_flight for name, one in self._members.items()},
            self.saturation,
        )

    def require_room(self, model: str, priority: int, tenant: str = "") -> None:
        """Raise `Overloaded` or `RateLimited` for a request that would be refused when sent."""
        work = class_of(priority, is_background=False)
        if not self.waiting or (tenant and self.shares.is_idle(tenant)):
            return
        if (cause := self._cause(work, model, tenant)) is not None:
            raise self._refusal(work, model, cause, tenant)

    def make_room(self, tenant: str, names: Collection[str], share: float = 1.0) -> None:
        """Recall requests for `tenant`, which has nothing running and finds no slot."""
        slots = [self.slots(name) for name in names]
        bound, taken = sum(one.bound for one in slots), sum(one.in_flight for one in slots)
        recalled = self.running.make_room(
            tenant, names, bound=bound, free=bound - taken, share=share
        )
        if recalled:
            self._metrics.admission_recalled(recalled)

    async def wait(
        self, request: TokenRequest, start: Callable[[], T | None], *, is_new: bool
    ) -> T:
        """Wait for the turn of the request, and return the result of `start`.

        Raises as `require_room` does, at once if its turn cannot come in time; and what `start`
        raises.
        """
        work, model = class_of(request.priority, is_background=request.background), request.model
        tenant = request.tenant
        # A request in the middle of its answer is not refused: its client has the beginning.
        is_accepted = request.background or (request.was_recalled and request.has_begun)
        if not is_accepted and (cause := self._cause(work, model, tenant)) is not None:
            raise self._refusal(work, model, cause, tenant)
        policy, now, settled = self.policy, self._clock(), OnceEvent()
        wait_s = policy.background_wait_max_s
        if not is_accepted:
            # Requests that arrived together must not be refused together, which takes as long.
            wait_s = policy.wait_max_s + REFUSED_APART_S * self._queue.queued(tenant)
        ticket: Ticket[T] = Ticket(
            work,
            _demand(request, is_new=is_new),
            start,
            since=now,
            deadline=now + wait_s,
            on_settled=settled.set,
            tenant=tenant,
            is_accepted=is_accepted,
            was_recalled=request.was_recalled,
        )
        self._queue.push(ticket, now)
        try:
            self.pump()
            await settled.within(wait_s)
        except BaseException:
            if ticket.result is not None:
                ticket.result.close()
            raise
        finally:
            if not settled.is_set():
                self._queue.remove(ticket)
                self.waiting = len(self._queue)
        return self._outcome(ticket)

    def pump(self) -> None:
        """Start all requests that can start now; call this after every change."""
        queue = self._queue
        if self._queue:
            queue.pump(self._clock())
        self.waiting = len(queue)
        if self.waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PUMP_INTERVAL_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _outcome(self, ticket: Ticket[T]) -> T:
        if ticket.error is not None:
            raise ticket.error
        work = ticket.work
        if ticket.result is None:
            cause = ticket.refused_for or "deadline"
            raise self._refusal(work, ticket.demand.model, cause, ticket.tenant)
        self._metrics.admission_waited(work.label, self._clock() - ticket.since, ticket.tenant)
        return ticket.result

    def _cause(self, work: WorkClass, model: str, tenant: str) -> RefusedFor | None:
        return self._queue.refuses(work, model, self._clock(), tenant)

    def _refusal(
        self, work: WorkClass, model: str, cause: RefusedFor, tenant: str
    ) -> Overloaded | RateLimited:
        self._metrics.admission_refused(work.label, cause)
        seconds = self._queue.until_its_turn_s(work, model, self._clock(), tenant)
        if seconds is None:
            seconds = self.policy.wait_max_s
        retry_after_s = min(max(seconds, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
        if cause == "tenant":
            return RateLimited(
                "As many of your requests wait for a model server as may. Please wait until some "
                "of them have been answered.",
                code="rate_limit_exceeded",
                retry_after_s=retry_after_s,
            )
        return Overloaded(model, _CAUSES[cause], retry_after_s=retry_after_s)


def _demand(request: TokenRequest, *, is_new: bool) -> Demand:
    return Demand(
        request.model,
        wants_logprobs=request.sampling.logprobs is not None,
        is_bound=request.constraint is not None,
        is_new=is_new,
    )
