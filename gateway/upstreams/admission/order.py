"""A waiting request is a `Ticket`; an `Order` decides which ticket of a line is served next."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.upstreams.admission.policy import WorkClass

T = TypeVar("T")

RefusedFor = Literal["full", "tenant", "wait", "deadline"]
"""Why a request is refused: the queue is full (`full`), its tenant has used up its share of the
queue (`tenant`), it would wait too long (`wait`), or it has waited too long (`deadline`)."""


class Demand(NamedTuple):
    """Requirements of a request on a backend. Requests with equal demands can go to the same
    backends: while the first of them finds no room, the others need not be tried.
    """

    model: str
    wants_logprobs: bool = False
    is_bound: bool = False
    is_new: bool = False
    """It begins a session; new sessions are held back first when caches are full."""


class Ticket(Generic[T]):
    """One waiting request.

    `tenant` is an opaque name of its tenant, `tokens` the length of its prompt. `is_accepted`: its
    client was promised that it will run (background), so it is never refused. `was_recalled`: it
    ran before and was called back, so it goes before the others of its tenant.

    `start` sends the request if a backend has room and returns the outcome, else None. The outcome
    is kept in `result`, what `start` raised in `error`. `on_settled` is called after either, and
    after a refusal. `since` and `deadline` are in seconds of the caller's clock.
    """

    __slots__ = (
        "deadline", "demand", "error", "is_accepted", "number", "on_settled", "refused_for",
        "result", "since", "start", "tenant", "tokens", "was_recalled", "work",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - all that is known of a request
        self,
        work: WorkClass,
        demand: Demand,
        start: Callable[[], T | None],
        *,
        since: float,
        deadline: float,
        on_settled: Callable[[], None],
        tenant: str = "",
        tokens: int = 0,
        is_accepted: bool = False,
        was_recalled: bool = False,
    ) -> None:
        self.work = work
        self.demand = demand
        self.start = start
        self.since = since
        self.deadline = deadline
        self.on_settled = on_settled
        self.tenant = tenant
        self.tokens = tokens
        self.is_accepted = is_accepted
        self.was_recalled = was_recalled
        self.number = 0
        self.result: T | None = None
        self.error: Exception | None = None
        self.refused_for: RefusedFor | None = None


class Order(Protocol[T]):
    """The order in which one line of tickets is served."""

    def push(self, ticket: Ticket[T]) -> None: ...

    def remove(self, ticket: Ticket[T]) -> None:
        """Remove a ticket, at any position, because it was started or given up."""
        ...

    def head(self) -> Ticket[T]:
        """Return the ticket that is served next. The line must not be empty."""
        ...

    def heads(self) -> Iterator[Ticket[T]]:
        """Yield the next ticket of each tenant, in the order in which the tenants are served."""
        ...

    def oldest(self) -> Ticket[T]:
        """Return the ticket that was pushed first. The line must not be empty."""
        ...

    def before(self, tenant: str) -> int:
        """Return about how many tickets would be served before a new one of `tenant`."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Ticket[T]]: ...


class Fifo(Generic[T]):
    """First come, first served."""

    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: OrderedDict[int, Ticket[T]] = OrderedDict()

    def push(self, ticket: Ticket[T]) -> None:
        self._tickets[ticket.number] = ticket

    def remove(self, ticket: Ticket[T]) -> None:
        del self._tickets[ticket.number]

    def head(self) -> Ticket[T]:
        return next(iter(self._tickets.values()))

    def heads(self) -> Iterator[Ticket[T]]:
        # Fifo ignores tenants: only the oldest ticket is a candidate.
        return iter([self.head()])

    oldest = head

    def before(self, tenant: str) -> int:
        del tenant
        return len(self._tickets)

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket[T]]:
        return iter(tuple(self._tickets.values()))
