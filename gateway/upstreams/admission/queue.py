"""Who goes next: one queue for all that wait for a backend.

Classes go in order, and within a class who came first. Requests that not every backend can take, or
that are held back, must not keep others waiting: those with the same demand are a line of their
own, and a line of which none can go is passed over: not the first, which may be of a tenant that
has all its share, nor the first of other tenants. Time is given to everything as an argument.

How a line is ordered is a policy (`order.Order`): first come, first served, or fair among tenants
(`fair`). No tenant may have more than its share of the queue.
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
"""So many must have gone since somebody began to wait until it is known how fast they go."""
RATE_MIN_S: Final = 2.0
"""And so long ago that must be: the first to go are those that there was room for."""
SHARE_OF_FREE: Final = 4
"""A tenant may have so many times as many in the queue as there are places free, so that others
always find some: alone four fifths of all."""

HEADS_TRIED_MAX: Final = 16
"""Tenants of one line that are looked at, one after the other, for one that can go: of those that
have all their share there are fewer."""


class DrainRate:
    """How many requests a second go, while others wait."""

    __slots__ = ("_at", "_began", "since")

    def __init__(self) -> None:
        self.since = 0.0
        """Since when somebody waits."""
        self._at: deque[float] = deque(maxlen=GRANTS_KEPT)
        self._began = 0.0

    def begin(self, now: float) -> None:
        """Somebody waits, and nobody did before."""
        self._at.clear()
        self._began = self.since = now

    def count(self, now: float) -> None:
        """One goes."""
        if len(self._at) == GRANTS_KEPT:
            self._began = self._at[0]
        self._at.append(now)

    def per_s(self, now: float) -> float | None:
        """None while too little is known."""
        seconds = now - self._began
        if len(self._at) < GRANTS_MIN or seconds < RATE_MIN_S:
            return None
        return len(self._at) / seconds


class AdmissionQueue(Generic[T]):
    """All that wait, of all models."""

    def __init__(
        self, policy: AdmissionPolicy, new_order: Callable[[], Order[T]] | None = None
    ) -> None:
        """`new_order` makes the order of a line."""
        self._policy = policy
        self._new_order: Callable[[], Order[T]] = Fifo if new_order is None else new_order
        self._lines: dict[tuple[WorkClass, Demand], Order[T]] = {}
        self._rates: dict[str, DrainRate] = {}
        self._number = 0
        self.accepted = 0
        """How many wait that were promised to be done."""
        self._of_tenants: Counter[str] = Counter()
        self.lengths = dict.fromkeys(WorkClass, 0)
        """How many wait, by class."""

    def __len__(self) -> int:
        return sum(self.lengths.values())

    def queued(self, tenant: str) -> int:
        """How many of a tenant wait that were promised nothing."""
        return self._of_tenants[tenant]

    def refuses(
        self, work: WorkClass, model: str, now: float, tenant: str = ""
    ) -> RefusedFor | None:
        """Why one of this class that comes now must not wait; None if it may."""
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
        """How long one of this class that comes now would wait, if others go as fast as they do;
        None while that is not known.
        """
        return self.drain_s(self.ahead(work, model, tenant) + 1, model, now)

    def _patience_s(self, model: str, now: float) -> float:
        """How long one that comes now may wait. A burst is over soon: whoever waits has gone when
        `wait_max_s` have passed since the first did. A queue that was not empty for so long stays,
        and who has to wait in it gains nothing by its length.
        """
        policy = self._policy
        lasts_s = now - self._rates[model].since
        return max(policy.wait_max_s - lasts_s, policy.overload_wait_max_s)

    def ahead(self, work: WorkClass, model: str, tenant: str = "") -> int:
        """How many go before one of this class that comes now."""
        return sum(
            line.before(tenant) if one == work else len(line)
            for (one, demand), line in self._lines.items()
            if one <= work and demand.model == model
        )

    def drain_s(self, count: int, model: str, now: float) -> float | None:
        """In how many seconds so many more of the model go, at the rate that they go at now; None
        while that is not known.
        """
        if not self._waits(model):
            return None
        per_s = self._rates[model].per_s(now)
        return None if per_s is None else count / per_s

    def _waits(self, model: str) -> bool:
        return any(demand.model == model for _, demand in self._lines)

    def push(self, ticket: Ticket[T], now: float) -> None:
        """It waits from now on."""
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
        """It goes, or has left."""
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
        """Send all that can go now, in order. What has waited too long is refused instead."""
        self._refuse_late(now)
        lines = dict(self._lines)
        while lines:
            turns = {key: self._next(line, now) for key, line in lines.items()}
            key = min(turns, key=lambda key: turns[key][:2])
            if not self._start_any(lines[key], turns[key][2], now) or not lines[key]:
                del lines[key]

    def _start_any(self, line: Order[T], first: Ticket[T], now: float) -> bool:
        """Whether the first of a line goes, or else that of another tenant: the first one's may
        have all that it may have.
        """
        if self._start(first, now):
            return True
        others = islice(line.heads(), HEADS_TRIED_MAX)
        return any(self._start(one, now) for one in others if one.tenant != first.tenant)

    def _next(self, line: Order[T], now: float) -> tuple[int, int, Ticket[T]]:
        """Who goes next of a line, behind what says when: what goes first is the least. Who has
        waited too long goes before those of its line, with the class above.
        """
        oldest = line.oldest()
        if now - oldest.since >= self._policy.promotion_of(oldest.work):
            return oldest.work - 1, oldest.number, oldest
        head = line.head()
        return head.work, head.number, head

    def _start(self, ticket: Ticket[T], now: float) -> bool:
        """Whether it goes, or need not go any more."""
        try:
            ticket.result = ticket.start()
        except Exception as error:  # noqa: BLE001 - it belongs to who waits, not to who ended
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
