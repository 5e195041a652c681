"""What waits, and in which order: a request that waits is a `Ticket`, a line of them an `Order`."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.upstreams.admission.policy import WorkClass

T = TypeVar("T")

RefusedFor = Literal["full", "tenant", "wait", "deadline"]
"""Why a request is refused: the queue is full; its tenant has more than its share of it; it would
have to wait too long; it has."""


class Demand(NamedTuple):
    """What a request needs of a backend. Of those with the same one, none can go before the first
    of them can.
    """

    model: str
    wants_logprobs: bool = False
    is_bound: bool = False
    is_new: bool = False
    """It begins a session, and may be held back."""


class Ticket(Generic[T]):
    """One request that waits. `tenant` is whose it is, by a name that tells nothing, `tokens` are
    those of its prompt, `is_accepted` one that was promised to be done, `was_recalled` one that ran
    before: it goes before the others of its tenant. `start` sends it to a
    backend if there is room, and returns what came of that, else None; `result` is that, or `error`
    what it raised. `on_settled` is called after that, or once it is refused.
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
    """The order of one line."""

    def push(self, ticket: Ticket[T]) -> None: ...

    def remove(self, ticket: Ticket[T]) -> None:
        """It goes, or has left."""
        ...

    def head(self) -> Ticket[T]:
        """Who goes next; there must be one."""
        ...

    def heads(self) -> Iterator[Ticket[T]]:
        """Who goes next of each tenant, in the order in which these go."""
        ...

    def oldest(self) -> Ticket[T]:
        """Who came first; there must be one."""
        ...

    def before(self, tenant: str) -> int:
        """About how many go before one of that tenant that comes now."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Ticket[T]]: ...


class Fifo(Generic[T]):
    """First come, first served."""

    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: OrderedDict[int, Ticket[T]] = OrderedDict()

    def push(self, ticket: Ticket[T]) -> None:
        """The last one."""
        self._tickets[ticket.number] = ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """It goes, or has left."""
        del self._tickets[ticket.number]

    def head(self) -> Ticket[T]:
        """Who came first."""
        return next(iter(self._tickets.values()))

    def heads(self) -> Iterator[Ticket[T]]:
        """Who came first: no tenant is looked at."""
        return iter([self.head()])

    oldest = head

    def before(self, tenant: str) -> int:
        """All of them."""
        del tenant
        return len(self._tickets)

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket[T]]:
        return iter(tuple(self._tickets.values()))
