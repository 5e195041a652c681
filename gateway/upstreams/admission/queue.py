"""The admission queue: all requests that wait until a backend has room.

Work classes are served in order of priority. Within a class, requests with the same demand form a
line, so that a request that only some backends can take does not block those that others could
serve: a line in which neither the head nor the next ticket of any other tenant can start is
skipped. How a line is ordered is a policy (`order.Order`): first come, first served, or fair among
tenants (`fair`). No tenant may fill more than its share of the queue.

There is no clock in here: every method that needs the time takes it as an argument.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.upstreams.admission.order import Demand, Fifo, Order, RefusedFor, Ticket
from gateway.upstreams.admission.policy import WorkClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.upstreams.admission.policy import AdmissionPolicy

__all__ = ("AdmissionQueue", "Demand", "DrainRate", "Fifo", "Order", "RefusedFor", "Ticket")

T = TypeVar("T")

GRANTS_KEPT: Final = 256
GRANTS_MIN: Final = 4
"""Requests that must have left the queue before a drain rate is derived from them."""
RATE_MIN_S: Final = 2.0
"""Seconds that the queue must have existed before that: the first to leave it go to slots that were
free anyway, which says nothing about the rate."""
SHARE_OF_FREE: Final = 4
"""A tenant may hold at most this many times the free places of the queue, so that others always
find some. A tenant that is alone can fill four fifths of it."""

HEADS_TRIED_MAX: Final = 16
"""Tenants of one line that are tried, one after the other, when the head cannot start. Fewer than
that have used up their share at any time."""


class DrainRate:
    """The rate at which requests leave the queue, measured while it is not empty."""

    __slots__ = ("_at", "_began", "since")

    def __init__(self) -> None:
        self.since = 0.0
        """When the queue last became non-empty."""
        self._at: deque[float] = deque(maxlen=GRANTS_KEPT)
        self._began = 0.0

    def begin(self, now: float) -> None:
        """Start observing: the queue has just become non-empty."""
        self._at.clear()
        self._began = self.since = now

    def count(self, now: float) -> None:
        """Count a request that has left the queue."""
        if len(self._at) == GRANTS_KEPT:
            self._began = self._at[0]
        self._at.append(now)

    def per_s(self, now: float) -> float | None:
        """Return requests per second; None until there are enough observations."""
        seconds = now - self._began
        if len(self._at) < GRANTS_MIN or seconds < RATE_MIN_S:
            return None
        return len(self._at) / seconds


class AdmissionQueue(Generic[T]):
    """The waiting requests of all models."""

    def __init__(
        self, policy: AdmissionPolicy, new_order: Callable[[], Order[T]] | None = None
    ) -> None:
        # `new_order` makes the order of a line.
        self._policy = policy
        self._new_order: Callable[[], Order[T]] = Fifo if new_order is None else new_order
        self._lines: dict[tuple[WorkClass, Demand], Order[T]] = {}
        self._rates: dict[str, DrainRate] = {}
        self._number = 0
        self.accepted = 0
        """How many of those were accepted for certain (background): no bound holds for them."""
        self._of_tenants: Counter[str] = Counter()
        self.lengths = dict.fromkeys(WorkClass, 0)
        """How many wait, by work class."""

    def __len__(self) -> int:
        return sum(self.lengths.values())

    def queued(self, tenant: str) -> int:
        # Does not count requests that were accepted for certain.
        return self._of_tenants[tenant]

    def refuses(
        self, work: WorkClass, model: str, now: float, tenant: str = ""
    ) -> RefusedFor | None:
        """Return why a new request of this class must not wait; None if it may."""
        free = self._policy.queue_length_max - (len(self) - self.accepted)
        if free <= 0:
            return "full"
        if tenant and self._of_tenants[tenant] >= SHARE_OF_FREE * free:
            return "tenant"
        seconds = self.until_its_turn_s(work, model, now, tenant)
        return "wait" if seconds is not None and seconds > self._patience_s(model, now) else None

    def until_its_turn_s(
        self, work: WorkClass, model: str, now: float, tenant: str = ""
    ) -> float | None:
        # None while the drain rate is unknown.
        return self.drain_s(self.ahead(work, model, tenant) + 1, model, now)

    def _patience_s(self, model: str, now: float) -> float:
        # A short burst may use all of `wait_max_s`. The longer the queue has not been empty, the
        # more it is overload: the allowance shrinks to `overload_wait_max_s`, since a longer queue
        # only adds delay.
        policy = self._policy
        lasts_s = now - self._rates[model].since
        return max(policy.wait_max_s - lasts_s, policy.overload_wait_max_s)

    def ahead(self, work: WorkClass, model: str, tenant: str = "") -> int:
        return sum(
            line.before(tenant) if one == work else len(line)
            for (one, demand), line in self._lines.items()
            if one <= work and demand.model == model
        )

    def drain_s(self, count: int, model: str, now: float) -> float | None:
        """Return the seconds until `count` more requests of the model leave the queue.

        None while the drain rate is unknown.
        """
        if not self._waits(model):
            return None
        per_s = self._rates[model].per_s(now)
        return None if per_s is None else count / per_s

    def _waits(self, model: str) -> bool:
        return any(demand.model == model for _, demand in self._lines)

    def push(self, ticket: Ticket[T], now: float) -> None:
        self._number += 1
        ticket.number = self._number
        model = ticket.demand.model
        if not self._waits(model):
            self._rates.setdefault(model, DrainRate()).begin(now)
        key = (ticket.work, ticket.demand)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._new_order()
        line.push(ticket)
        self.lengths[ticket.work] += 1
        self.accepted += ticket.is_accepted
        if not ticket.is_accepted:
            self._of_tenants[ticket.tenant] += 1

    def remove(self, ticket: Ticket[T]) -> None:
        key = (ticket.work, ticket.demand)
        line = self._lines[key]
        line.remove(ticket)
        self.lengths[ticket.work] -= 1
        self.accepted -= ticket.is_accepted
        if not ticket.is_accepted:
            self._of_tenants[ticket.tenant] -= 1
            if not self._of_tenants[ticket.tenant]:
                del self._of_tenants[ticket.tenant]
        if not line:
            del self._lines[key]

    def pump(self, now: float) -> None:
        """Start every ticket that finds room now, in order; refuse those past their deadline."""
        self._refuse_late(now)
        lines = dict(self._lines)
        while lines:
            turns = {key: self._next(line, now) for key, line in lines.items()}
            key = min(turns, key=lambda key: turns[key][:2])
            if not self._start_any(lines[key], turns[key][2], now) or not lines[key]:
                del lines[key]

    def _start_any(self, line: Order[T], first: Ticket[T], now: float) -> bool:
        # If the first ticket's tenant has used up its share of slots, the next ticket of another
        # tenant may still start.
        if self._start(first, now):
            return True
        others = islice(line.heads(), HEADS_TRIED_MAX)
        return any(self._start(one, now) for one in others if one.tenant != first.tenant)

    def _next(self, line: Order[T], now: float) -> tuple[int, int, Ticket[T]]:
        # The smallest sort key goes first. A ticket that has waited longer than `promotion_of` its
        # class counts as one class higher.
        oldest = line.oldest()
        if now - oldest.since >= self._policy.promotion_of(oldest.work):
            return oldest.work - 1, oldest.number, oldest
        head = line.head()
        return head.work, head.number, head

    def _start(self, ticket: Ticket[T], now: float) -> bool:
        # True also if `start` raised: the ticket has then left the queue.
        try:
            ticket.result = ticket.start()
        except Exception as error:  # noqa: BLE001 - whoever waits gets it, not the caller of `pump`
            ticket.error = error
        else:
            if ticket.result is None:
                return False
            self._rates[ticket.demand.model].count(now)
        self.remove(ticket)
        ticket.on_settled()
        return True

    def _refuse_late(self, now: float) -> None:
        for line in list(self._lines.values()):
            while line and (head := line.oldest()).deadline <= now:
                head.refused_for = "deadline"
                self.remove(head)
                head.on_settled()
