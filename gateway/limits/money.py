"""Prices, intervals, and spending in an interval. Money is integer nano-dollars: 10^9 are a dollar.

A response costs the price at its end. The trigger `price_line` prices usage lines
(`store.migration.functions`), `Price` what budgets count.

Each process has a row for each interval with the running total of its spending, so a write whose
outcome was lost can be repeated. A meter that was forgotten continues from its row: nothing is
written before that was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, get_args
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.limits.rules import Interval, Meter

NANO: Final = 10**9
CENT: Final = NANO // 100
ANY_TIER: Final = "*"
PriceTier = Literal["*", "default", "flex", "priority"]
"""`*`: each tier that has no price of its own."""
Component = Literal["input", "input_cached", "output", "tool_call", "web_search"]
COMPONENTS: Final[tuple[Component, ...]] = get_args(Component)
_EVERYONE: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a model in a tier, for one tenant or all (nil): nano-dollars for one unit of each
    component.

    What has none is free, except cached input, which costs as much as input.
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
        """Return the cost. `input_tokens` includes the cached ones."""
        nano = self.nano
        of_input = nano.get("input", 0)
        return (
            of_input * (input_tokens - cached_tokens)
            + nano.get("input_cached", of_input) * cached_tokens
            + nano.get("output", 0) * output_tokens
        )

    def calls(self, *, tool_calls: int, web_searches: int) -> int:
        """Return the cost of hosted calls. `tool_calls` includes the searches."""
        nano = self.nano
        of_call = nano.get("tool_call", 0)
        searches = min(web_searches, tool_calls)
        return of_call * (tool_calls - searches) + nano.get("web_search", of_call) * searches


class Prices:
    def __init__(self, prices: Iterable[Price] = ()) -> None:
        self._by_model: dict[str, list[Price]] = {}
        for one in sorted(prices, key=lambda one: (one.valid_from, one.id), reverse=True):
            self._by_model.setdefault(one.model, []).append(one)

    def of(self, tenant_id: UUID, model: str, tier: str, at: datetime) -> Price | None:
        """Return the price of a response.

        The tenant's own precedes that of all, one for the tier one for any tier, the newest older
        ones.
        """
        prices = self._by_model.get(model, ())
        for owner in (tenant_id, _EVERYONE):
            for of_tier in (tier, ANY_TIER):
                for one in prices:  # the newest first
                    if one.tier == of_tier and one.tenant_id == owner and one.is_valid(at):
                        return one
        return None


def begins(interval: Interval, at: datetime) -> datetime:
    at = at.astimezone(UTC)
    if interval == "none":
        return datetime.fromtimestamp(0, UTC)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return day if interval == "day" else day.replace(day=1)


def ends(interval: Interval, at: datetime) -> datetime | None:
    begun = begins(interval, at)
    if interval == "none":
        return None
    if interval == "day":
        return begun + timedelta(days=1)
    return begins("month", begun + timedelta(days=31))


def dollars(nano: int) -> str:
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, rest = divmod(nano, NANO)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"


@dataclass(frozen=True, slots=True)
class Spent:
    starts_at: datetime
    total: int


class SpendMeter:
    """Spending in nano-dollars or tokens. `reserved` is for this process's requests in progress."""

    __slots__ = (
        "_closed", "_is_written", "_others", "_others_reserved", "ends_at", "meter", "own",
        "reserved", "starts_at", "used_at",
    )  # fmt: skip

    def __init__(self, meter: Meter, now: datetime) -> None:
        self.meter = meter
        self.reserved = 0
        self.used_at = 0.0
        self._closed: list[Spent] = []
        self._others: int | None = None
        self._is_written = True
        self._begin(now)

    @property
    def is_loaded(self) -> bool:
        # True once the database has reported the spending of all processes in this interval.
        return self._others is not None

    def spent(self, now: datetime) -> int:
        self._turn(now)
        return self.own + (self._others or 0)

    def own_spent(self, now: datetime) -> int:
        self._turn(now)
        return self.own

    def committed(self, now: datetime) -> int:
        return self.spent(now) + self.reserved + self._others_reserved

    def spend(self, amount: int, now: datetime) -> None:
        self._turn(now)
        self.own += amount
        self._is_written = self._is_written and not amount

    def rows(self, now: datetime) -> list[Spent]:
        """Return the totals to write.

        The current one is 0 until the meter is loaded: the row may have spending from before it was
        made.
        """
        self._turn(now)
        return [*self._closed, Spent(self.starts_at, self.own if self.is_loaded else 0)]

    def mark_written(
        self, rows: list[Spent], *, others: int, others_reserved: int, mine: int = 0
    ) -> None:
        """Record that `rows` are written.

        In the last one's interval, other processes spent `others`, and this one's row had `mine`
        before.
        """
        written = set(rows)
        self._closed = [one for one in self._closed if one not in written]
        if rows[-1].starts_at == self.starts_at:
            self._is_written = rows[-1].total == self.own
            if not self.is_loaded:
                self.own += mine
            self._others, self._others_reserved = others, others_reserved

    @property
    def is_written(self) -> bool:
        return self._is_written and not self._closed

    def _begin(self, now: datetime) -> None:
        interval = self.meter.interval
        self.starts_at, self.ends_at = begins(interval, now), ends(interval, now)
        self.own = 0
        self._others = None
        self._others_reserved = 0
        self._is_written = True

    def _turn(self, now: datetime) -> None:
        if self.ends_at is not None and now >= self.ends_at:
            if self.own:
                self._closed.append(Spent(self.starts_at, self.own))
            self._begin(now)
            self._others = 0  # nobody has spent anything of a new interval yet
