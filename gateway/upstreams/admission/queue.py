"""The admission queue: requests that wait until a backend has room, fair among tenants.

Requests with the same demand form a line, so that its head does not block requests that other
backends could serve. The next request is that of the tenant that was served least, in tokens with
the expected output. This is the virtual token counter (Sheng et al., arXiv 2401.00588) with
prediction, with the start of start-time fair queueing (Goyal et al. 1996): unused time is not saved
up. Counters are of one process.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

from gateway.held_bytes import SHARE_OF_FREE
from gateway.upstreams.admission.slots import WorkClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.upstreams.admission.slots import AdmissionPolicy


T = TypeVar("T")

RefusedFor = Literal["full", "tenant", "wait", "deadline"]


class Demand(NamedTuple):
    """Requests with equal demands can go to the same backends."""

    model: str
    wants_logprobs: bool = False
    is_bound: bool = False
    is_new: bool = False
    """True if it begins a session; these are held back first when caches are full."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """Request that waits for a backend. Times are seconds of the caller's clock.

    `start` sends it if a backend has room, else returns None. `is_accepted` ones (background) fill
    no part of the queue. `was_recalled`: it goes before the others of its tenant.
    """

    work: WorkClass
    demand: Demand
    start: Callable[[], T | None]
    since: float
    deadline: float
    on_settled: Callable[[], None]
    tenant: str = ""
    is_accepted: bool = False
    was_recalled: bool = False
    number: int = field(default=0, init=False)
    result: T | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    refused_for: RefusedFor | None = field(default=None, init=False)


OUTPUT_WEIGHT: Final = 4
"""Cost of a generated token, in tokens of a prompt."""
CLASS_WEIGHTS: Final[dict[WorkClass, float]] = {
    WorkClass.PRIORITY: 4.0,
    WorkClass.DEFAULT: 1.0,
    WorkClass.BACKGROUND: 0.5,
}
"""Divisors of tokens."""
EXPECTED_AT_FIRST: Final = 256.0
ALPHA: Final = 0.1
"""Weight of the latest output in the average that predicts the next."""
SHARE_OF_FREE_SLOTS: Final = 19
"""Multiple of the free slots that a tenant may hold: alone, 95 of 100."""
TENANTS_MAX: Final = 4_096


@dataclass(slots=True, eq=False)
class TenantAccount:
    """Tokens `served` to a tenant, and output `expected` of its next request."""

    served: float
    expected: float = EXPECTED_AT_FIRST
    queued: int = 0
    running: int = 0


@dataclass(slots=True, eq=False)
class CountedRequest:
    """Running request, which counts with its `expected` output until `end`, called once."""

    account: TenantAccount
    expected: float
    weight: float

    def end(self, output: int | None) -> None:
        """Replace the expected output; negative counts are 0, whatever a backend reports."""
        account = self.account
        account.running -= 1
        if output is not None:
            output = max(0, output)
            account.served += OUTPUT_WEIGHT * (output - self.expected) / self.weight
            account.expected += ALPHA * (output - account.expected)


class FairShares:
    def __init__(self) -> None:
        self._accounts: OrderedDict[str, TenantAccount] = OrderedDict()
        self._now = 0.0
        """Virtual time: the highest counter of a tenant when it was served."""

    def account(self, tenant: str) -> TenantAccount:
        # A new account starts at the present virtual time.
        account = self._accounts.get(tenant)
        if account is None:
            self._forget()
            account = self._accounts[tenant] = TenantAccount(self._now)
        return account

    def arrive(self, tenant: str) -> None:
        account = self.account(tenant)
        if not account.queued:
            account.served = max(account.served, self._now)
        account.queued += 1

    def leave(self, tenant: str) -> None:
        self._accounts[tenant].queued -= 1

    def serve(
        self, tenant: str, prompt: int, work: WorkClass, share: float = 1.0
    ) -> CountedRequest:
        account = self._accounts.get(tenant) or self.account(tenant)
        self._accounts.move_to_end(tenant)
        if not account.queued:
            account.served = max(account.served, self._now)
        self._now = max(self._now, account.served)
        counted = CountedRequest(account, account.expected, CLASS_WEIGHTS[work] * share)
        account.running += 1
        account.served += (prompt + OUTPUT_WEIGHT * counted.expected) / counted.weight
        return counted

    def is_idle(self, tenant: str) -> bool:
        # Idle: no request of the tenant is running.
        account = self._accounts.get(tenant)
        return account is None or not account.running

    def has_share(self, tenant: str, free: int) -> bool:
        """Return True if a tenant may take one of `free` slots; others may come."""
        account = self._accounts.get(tenant)
        return account is None or account.running < SHARE_OF_FREE_SLOTS * free

    def _forget(self) -> None:
        # Makes room for one. Busy tenants are skipped: a request may run for hours.
        while len(self._accounts) >= TENANTS_MAX:
            rows = self._accounts.items()
            idle = (tenant for tenant, one in rows if not (one.queued or one.running))
            if (tenant := next(idle, None)) is None:
                return
            del self._accounts[tenant]


class FairOrder(Generic[T]):
    """Line of one work class and demand. `head`, `oldest` and `heads` need a ticket in it."""

    __slots__ = ("_count", "_shares", "_tenants")

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._tenants: dict[str, OrderedDict[int, Ticket[T]]] = {}
        self._count = 0

    def push(self, ticket: Ticket[T]) -> None:
        own = self._tenants.setdefault(ticket.tenant, OrderedDict())
        own[ticket.number] = ticket
        if ticket.was_recalled:
            own.move_to_end(ticket.number, last=False)
        self._count += 1
        self._shares.arrive(ticket.tenant)

    def remove(self, ticket: Ticket[T]) -> None:
        own = self._tenants[ticket.tenant]
        del own[ticket.number]
        if not own:
            del self._tenants[ticket.tenant]
        self._count -= 1
        self._shares.leave(ticket.tenant)

    def head(self) -> Ticket[T]:
        account = self._shares.account
        if len(self._tenants) == 1:
            return self._first(next(iter(self._tenants)))
        heads = map(self._first, self._tenants)
        return min(heads, key=lambda one: (account(one.tenant).served, one.number))

    def heads(self) -> Iterator[Ticket[T]]:
        account = self._shares.account
        heads = map(self._first, self._tenants)
        return iter(sorted(heads, key=lambda one: (account(one.tenant).served, one.number)))

    def oldest(self) -> Ticket[T]:
        return min(map(self._first, self._tenants), key=lambda one: one.number)

    def before(self, tenant: str) -> int:
        """Return about how many tickets would be served before a new one."""
        # All requests count as if they cost the same (round robin).
        own = len(self._tenants.get(tenant, ()))
        return own + sum(
            min(len(waiting), own + 1) for name, waiting in self._tenants.items() if name != tenant
        )

    def _first(self, tenant: str) -> Ticket[T]:
        return next(iter(self._tenants[tenant].values()))

    def __len__(self) -> int:
        return self._count


GRANTS_KEPT: Final = 256
GRANTS_MIN: Final = 4
"""Requests that leave before a drain rate is derived."""
RATE_MIN_S: Final = 2.0
"""The first to leave the queue go to slots that were free anyway."""

HEADS_TRIED_MAX: Final = 16
"""Fewer tenants have used up their share at any time."""


class DrainRate:
    """Rate of requests that leave the queue while it is not empty."""

    __slots__ = ("_at", "_began", "since")

    def __init__(self) -> None:
        self.since = 0.0
        self._at: deque[float] = deque(maxlen=GRANTS_KEPT)
        self._began = 0.0

    def begin(self, now: float) -> None:
        self._at.clear()
        self._began = self.since = now

    def count(self, now: float) -> None:
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
    def __init__(self, policy: AdmissionPolicy, shares: FairShares | None = None) -> None:
        # Without counts in `shares`, tickets are served in the order of their arrival.
        self.policy = policy
        self._shares = FairShares() if shares is None else shares
        self._lines: dict[tuple[WorkClass, Demand], FairOrder[T]] = {}
        self._rates: dict[str, DrainRate] = {}
        self._number = 0
        self.accepted = 0
        """Waiting background requests, for which no bound holds."""
        self._of_tenants: Counter[str] = Counter()
        self.lengths = dict.fromkeys(WorkClass, 0)

    def __len__(self) -> int:
        return sum(self.lengths.values())

    def queued(self, tenant: str) -> int:
        # Does not count requests that were accepted for certain.
        return self._of_tenants[tenant]

    def refuses(
        self, work: WorkClass, model: str, now: float, tenant: str = ""
    ) -> RefusedFor | None:
        free = self.policy.queue_length_max - (len(self) - self.accepted)
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
        policy = self.policy
        lasts_s = now - self._rates[model].since
        return max(policy.wait_max_s - lasts_s, policy.overload_wait_max_s)

    def ahead(self, work: WorkClass, model: str, tenant: str = "") -> int:
        return sum(
            line.before(tenant) if one == work else len(line)
            for (one, demand), line in self._lines.items()
            if one <= work and demand.model == model
        )

    def drain_s(self, count: int, model: str, now: float) -> float | None:
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
            line = self._lines[key] = FairOrder(self._shares)
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
        """Start every ticket that finds room, in order; refuse late ones."""
        self._refuse_late(now)
        lines = dict(self._lines)
        while lines:
            turns = {key: self._next(line, now) for key, line in lines.items()}
            key = min(turns, key=lambda key: turns[key][:2])
            if not self._start_any(lines[key], turns[key][2], now) or not lines[key]:
                del lines[key]

    def _start_any(self, line: FairOrder[T], first: Ticket[T], now: float) -> bool:
        # If the first ticket's tenant has used up its share of slots, the next ticket of another
        # tenant may still start.
        if self._start(first, now):
            return True
        others = islice(line.heads(), HEADS_TRIED_MAX)
        return any(self._start(one, now) for one in others if one.tenant != first.tenant)

    def _next(self, line: FairOrder[T], now: float) -> tuple[int, int, Ticket[T]]:
        # The smallest sort key goes first. A ticket that has waited longer than `promotion_of` its
        # class counts as one class higher.
        oldest = line.oldest()
        if now - oldest.since >= self.policy.promotion_of(oldest.work):
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
