"""Fairness among tenants: the next request is of the tenant that was served least, in tokens.

Each tenant has a counter of the tokens that it was served. Of the tenants that wait, the one with
the lowest counter is next; its own requests are served in the order of their arrival. A request is
counted when it starts, with the output that is expected of it, and corrected when it has ended. A
tenant that begins to wait is lifted to the counters of those being served: unused time is not
saved up.

This is the virtual token counter (Sheng et al., arXiv 2401.00588) with prediction, with the start
of start-time fair queueing (Goyal et al. 1996). Counters are of one process.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from typing_extensions import override

from gateway.upstreams.admission.order import Order
from gateway.upstreams.admission.policy import WorkClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.upstreams.admission.order import Ticket

T = TypeVar("T")

OUTPUT_WEIGHT: Final = 4
"""A generated token costs a backend as much as this many tokens of a prompt."""
CLASS_WEIGHTS: Final[dict[WorkClass, float]] = {
    WorkClass.PRIORITY: 4.0,
    WorkClass.DEFAULT: 1.0,
    WorkClass.BACKGROUND: 0.5,
}
"""The tokens of a request are divided by the weight of its class before they are counted."""
EXPECTED_AT_FIRST: Final = 256.0
ALPHA: Final = 0.1
"""Weight of the latest output in the moving average that predicts the next one."""
SHARE_OF_FREE_SLOTS: Final = 19
"""A tenant may hold at most this many times the free slots: alone, 95 of 100."""
TENANTS_MAX: Final = 4_096
"""Counters that are kept. The least recently used ones of tenants without requests are dropped."""


class TenantAccount:
    """One tenant: `served` is its counter, `expected` the output of its next request, `queued` how
    many of its requests wait, `running` how many are at backends.
    """

    __slots__ = ("expected", "queued", "running", "served")

    def __init__(self, served: float) -> None:
        self.served = served
        self.expected = EXPECTED_AT_FIRST
        self.queued = 0
        self.running = 0


class CountedRequest:
    """A running request, counted with its expected output until `end` is called, once."""

    __slots__ = ("_account", "_counted", "_weight")

    def __init__(self, account: TenantAccount, prompt: int, weight: float) -> None:
        self._account = account
        self._counted = account.expected
        self._weight = weight
        account.running += 1
        account.served += (prompt + OUTPUT_WEIGHT * account.expected) / weight

    def end(self, output: int | None) -> None:
        """Replace the expected output by `output` tokens; None: unknown, so the expectation stays.

        Negative counts are taken as 0: whatever a backend reports, a request never lowers its
        tenant's counter below what it was before.
        """
        account = self._account
        account.running -= 1
        if output is not None:
            output = max(0, output)
            account.served += OUTPUT_WEIGHT * (output - self._counted) / self._weight
            account.expected += ALPHA * (output - account.expected)


class FairShares:
    """The counters of all tenants."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, TenantAccount] = OrderedDict()
        self._now = 0.0
        """The highest counter that a served tenant had when it was chosen (virtual time)."""

    def account(self, tenant: str) -> TenantAccount:
        # A new account starts at the present virtual time.
        found = self._accounts.get(tenant)
        if found is None:
            found = self._accounts[tenant] = TenantAccount(self._now)
            self._forget()
        return found

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
        """Count a request with `prompt` tokens that starts now.

        `share` is its tenant's weight; the usual one is 1.
        """
        account = self.account(tenant)
        self._accounts.move_to_end(tenant)
        if not account.queued:
            account.served = max(account.served, self._now)
        self._now = max(self._now, account.served)
        return CountedRequest(account, prompt, CLASS_WEIGHTS[work] * share)

    def is_idle(self, tenant: str) -> bool:
        # Idle: no request of the tenant is running.
        account = self._accounts.get(tenant)
        return account is None or not account.running

    def has_share(self, tenant: str, free: int) -> bool:
        """Return True if a tenant may take one of `free` free slots.

        A tenant that holds nearly all slots may not take the last ones: its streams may be long,
        and other tenants may come.
        """
        account = self._accounts.get(tenant)
        return account is None or account.running < SHARE_OF_FREE_SLOTS * free

    def _forget(self) -> None:
        while len(self._accounts) > TENANTS_MAX:
            tenant, account = next(iter(self._accounts.items()))
            if account.queued or account.running:
                return
            del self._accounts[tenant]


class FairOrder(Order[T], Generic[T]):
    """A line in which tenants are served by their counters, and each tenant's requests in order."""

    __slots__ = ("_count", "_shares", "_tenants")

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._tenants: dict[str, OrderedDict[int, Ticket[T]]] = {}
        self._count = 0

    @override
    def push(self, ticket: Ticket[T]) -> None:
        own = self._tenants.setdefault(ticket.tenant, OrderedDict())
        own[ticket.number] = ticket
        if ticket.was_recalled:
            own.move_to_end(ticket.number, last=False)
        self._count += 1
        self._shares.arrive(ticket.tenant)

    @override
    def remove(self, ticket: Ticket[T]) -> None:
        own = self._tenants[ticket.tenant]
        del own[ticket.number]
        if not own:
            del self._tenants[ticket.tenant]
        self._count -= 1
        self._shares.leave(ticket.tenant)

    @override
    def head(self) -> Ticket[T]:
        account = self._shares.account
        if len(self._tenants) == 1:
            return self._first(next(iter(self._tenants)))
        heads = map(self._first, self._tenants)
        return min(heads, key=lambda one: (account(one.tenant).served, one.number))

    @override
    def heads(self) -> Iterator[Ticket[T]]:
        account = self._shares.account
        heads = map(self._first, self._tenants)
        return iter(sorted(heads, key=lambda one: (account(one.tenant).served, one.number)))

    @override
    def oldest(self) -> Ticket[T]:
        return min(map(self._first, self._tenants), key=lambda one: one.number)

    @override
    def before(self, tenant: str) -> int:
        # As if all requests cost the same (round robin).
        own = len(self._tenants.get(tenant, ()))
        return own + sum(
            min(len(waiting), own + 1) for name, waiting in self._tenants.items() if name != tenant
        )

    def _first(self, tenant: str) -> Ticket[T]:
        return next(iter(self._tenants[tenant].values()))

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def __iter__(self) -> Iterator[Ticket[T]]:
        return iter([one for waiting in self._tenants.values() for one in waiting.values()])
