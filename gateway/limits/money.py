"""Prices and intervals. Money is integer nano-dollars: a dollar is 1,000,000,000 of them.

A price is a set of components with one id. What it was when a response ended is what it costs; a
new price changes no line that there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from gateway.limits.terms import Interval

NANO: Final = 10**9
CENT: Final = NANO // 100
ANY_TIER: Final = "*"
PriceTier = Literal["*", "default", "flex", "priority"]
"""Of which service tier a price is; `*`: of each that has none of its own."""
PRICE_TIERS: Final[tuple[PriceTier, ...]] = get_args(PriceTier)
Component = Literal["input", "input_cached", "output", "tool_call", "web_search"]
COMPONENTS: Final[tuple[Component, ...]] = get_args(Component)


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one model in one tier: `nano` has the nano-dollars for one unit of each component.

    It holds for one tenant, or for all (`tenant_id` is nil). What has no component of its own is
    free, except cached input, which costs as much as input. `tier` `*`: every tier without a price
    of its own.
    """

    id: UUID
    tenant_id: UUID
    model: str
    tier: str
    nano: Mapping[Component, int]
    valid_from: datetime
    valid_until: datetime | None = None

    def is_valid(self, at: datetime) -> bool:
        return self.valid_from <= at and (self.valid_until is None or at < self.valid_until)

    def tokens(self, *, input_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Return the cost of tokens. `input_tokens` includes the cached ones."""
        nano = self.nano
        of_input = nano.get("input", 0)
        return (
            of_input * (input_tokens - cached_tokens)
            + nano.get("input_cached", of_input) * cached_tokens
            + nano.get("output", 0) * output_tokens
        )

    def parts(
        self,
        *,
        input_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        tool_calls: int,
        web_searches: int,
    ) -> tuple[int, int, int, int]:
        """Return the costs of uncached input, cached input, output, and tools."""
        nano = self.nano
        of_input = nano.get("input", 0)
        return (
            of_input * (input_tokens - cached_tokens),
            nano.get("input_cached", of_input) * cached_tokens,
            nano.get("output", 0) * output_tokens,
            self.calls(tool_calls=tool_calls, web_searches=web_searches),
        )

    def calls(self, *, tool_calls: int, web_searches: int) -> int:
        """Return the cost of hosted tool calls. `tool_calls` includes the searches."""
        nano = self.nano
        of_call = nano.get("tool_call", 0)
        searches = min(web_searches, tool_calls)
        return of_call * (tool_calls - searches) + nano.get("web_search", of_call) * searches


class Prices:
    """Every price that is known, to be looked up by what a response is."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        self._by_model: dict[str, list[Price]] = {}
        for one in sorted(prices, key=lambda one: (one.valid_from, one.id), reverse=True):
            self._by_model.setdefault(one.model, []).append(one)

    def of(
        self, tenant_id: UUID, nobody: UUID, model: str, tier: str, at: datetime
    ) -> Price | None:
        """Return the price of a response; None where there is none.

        The tenant's own price precedes that of all (`nobody`), one for the tier precedes one for
        any tier, and the newest precedes older ones.
        """
        prices = self._by_model.get(model, ())
        for owner in (tenant_id, nobody):
            for of_tier in (tier, ANY_TIER):
                for one in prices:  # the newest first
                    if one.tier == of_tier and one.tenant_id == owner and one.is_valid(at):
                        return one
        return None


def begins(interval: Interval, at: datetime) -> datetime:
    """Return the start (UTC) of the interval that contains `at`.

    An interval without an end began at unix time 0.
    """
    at = at.astimezone(UTC)
    if interval == "none":
        return datetime.fromtimestamp(0, UTC)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return day if interval == "day" else day.replace(day=1)


def ends(interval: Interval, at: datetime) -> datetime | None:
    """Return the end of the interval that contains `at`; None: it has no end."""
    begun = begins(interval, at)
    if interval == "none":
        return None
    if interval == "day":
        return begun + timedelta(days=1)
    return begins("month", begun + timedelta(days=31))


def dollars(nano: int) -> str:
    """Format nano-dollars with at least two decimals, and as many as needed."""
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, rest = divmod(nano, NANO)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"
