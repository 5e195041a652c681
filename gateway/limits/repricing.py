"""What recorded usage costs too little or too much by the prices that are valid now for its time.

A line is never changed: what differs becomes a line of its own. It has the reason `REASON`, by
which the next repricing knows what was booked already, so that doing it again books nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.limits.money import Prices

REASON: Final = "repricing"


class Costs(NamedTuple):
    """Nano-dollars by what they are for."""

    input: int = 0
    cached: int = 0
    output: int = 0
    tools: int = 0

    @property
    def total(self) -> int:
        """Nano-dollars of all four parts together."""
        return sum(self)

    def plus(self, other: Costs, sign: int = 1) -> Costs:
        """The sum, or with -1 the difference, of each part."""
        return Costs(*(one + sign * two for one, two in zip(self, other, strict=True)))


NOTHING: Final = Costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLine:
    """A line of usage, as far as it is about money. `costs` None: nothing was known of them."""

    model: str
    tier: str
    at: datetime
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    web_searches: int = 0
    price_id: UUID | None = None
    costs: Costs | None = None
    reason: str | None = None

    @property
    def is_by_price(self) -> bool:
        """Its costs came from a price, or would have: amounts that somebody booked stay."""
        return self.price_id is not None or self.costs is None


class Difference(NamedTuple):
    """What the lines of one response cost too little, and at which price that was found."""

    costs: Costs
    price_id: UUID


def difference(
    lines: Sequence[PricedLine], prices: Prices, tenant_id: UUID, nobody: UUID
) -> Difference | None:
    """Of the lines of one response; None where nothing is to be booked. What has no price now keeps
    what it costs.
    """
    booked = _total(one for one in lines if one.reason == REASON)
    change, price_id = NOTHING, None
    for line in lines:
        if line.reason == REASON or not line.is_by_price:
            continue
        price = prices.of(tenant_id, nobody, line.model, line.tier, line.at)
        if price is None:
            return None
        price_id = price_id or price.id
        parts = Costs(
            *price.parts(
                input_tokens=line.input_tokens,
                cached_tokens=line.cached_tokens,
                output_tokens=line.output_tokens,
                tool_calls=line.tool_calls,
                web_searches=line.web_searches,
            )
        )
        change = change.plus(parts).plus(line.costs or NOTHING, -1)
    change = change.plus(booked, -1)
    return Difference(change, price_id) if price_id is not None and any(change) else None


def _total(lines: Iterable[PricedLine]) -> Costs:
    found = NOTHING
    for line in lines:
        found = found.plus(line.costs or NOTHING)
    return found
