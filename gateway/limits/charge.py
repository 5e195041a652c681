"""Charges of requests in advance: each is settled once, however its request ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.limits.bucket import Bucket
    from gateway.limits.money import Price
    from gateway.limits.refusal import Headers
    from gateway.limits.spend import SpendMeter
    from gateway.limits.storage import StoredCharge
    from gateway.limits.terms import What


class Used(NamedTuple):
    """Amounts that a response used. `is_whole`: it was answered to its end."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    web_searches: int = 0
    is_whole: bool = False


NOTHING_USED = Used()


class TokenCharge(NamedTuple):
    """Tokens that were taken from one bucket."""

    name: str
    what: What
    bucket: Bucket
    reserved: float


class SpendCharge(NamedTuple):
    """Amount that was reserved on one meter."""

    meter: SpendMeter
    reserved: int


class Settlement(Protocol):
    """Bookkeeper of charges (`gates.Gates`)."""

    def settle(self, charge: Charge, used: Used) -> None: ...

    def hand_over(self, charge: Charge) -> None: ...


class Charge:
    """The charge of one request. Not more than one of `settle` and `hand_over` counts."""

    __slots__ = (
        "_books", "headers", "is_open", "model", "places", "price", "project", "spend", "stored",
        "tenant_id", "tier", "tokens",
    )  # fmt: skip

    def __init__(
        self, books: Settlement, tenant_id: UUID, project: UUID, model: str, tier: str
    ) -> None:
        self._books = books
        self.tenant_id = tenant_id
        self.project = project
        self.model = model
        self.tier = tier
        self.places: tuple[str, ...] = ()
        self.tokens: tuple[TokenCharge, ...] = ()
        self.spend: tuple[SpendCharge, ...] = ()
        self.price: Price | None = None
        self.stored: StoredCharge | None = None
        self.headers: Headers = ()
        """Those of the answer, as it was admitted."""
        self.is_open = True

    def settle(self, used: Used) -> None:
        # A second call changes nothing.
        if self.is_open:
            self.is_open = False
            self._books.settle(self, used)
            if self.stored is not None:
                self.stored.end(used.input_tokens, used.output_tokens)

    def hand_over(self) -> None:
        # Another process settles the charge; this one only releases its reservations.
        if self.is_open:
            self.is_open = False
            self._books.hand_over(self)

    def packed(self) -> dict[str, Any] | None:
        """Return as JSON what another process needs to settle the charge; None if that is
        nothing.
        """
        if not self.tokens and not self.spend:
            return None
        return {
            "project": str(self.project),
            "tier": self.tier,
            "tokens": [
                [one.name, one.what, one.bucket.rate, one.bucket.capacity, one.reserved]
                for one in self.tokens
            ],
            "meters": [list(one.meter.meter) for one in self.spend],
        }
