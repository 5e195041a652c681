"""Repricing: what is booked makes responses cost what prices say, and no more the second time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.money import COMPONENTS, Price, Prices
from gateway.limits.repricing import NOTHING, REASON, Costs, PricedLine, difference

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
NOBODY, TENANT, OLD, NEW = (UUID(int=number) for number in range(4))
NANO = st.dictionaries(st.sampled_from(COMPONENTS), st.integers(0, 10**6), min_size=1)
LINES = st.lists(
    st.builds(
        PricedLine,
        model=st.just("m"),
        tier=st.sampled_from(("default", "flex")),
        at=st.just(NOON),
        input_tokens=st.integers(-50, 5000),
        cached_tokens=st.integers(0, 40),
        output_tokens=st.integers(-50, 5000),
        tool_calls=st.integers(0, 9),
        web_searches=st.integers(0, 9),
        price_id=st.sampled_from((None, OLD)),
        costs=st.none() | st.builds(Costs, *[st.integers(-(10**9), 10**9)] * 4),
        reason=st.sampled_from((None, "disputed", REASON)),
    ),
    max_size=4,
)


def prices(nano: dict[str, int]) -> Prices:
    return Prices([Price(NEW, NOBODY, "m", "*", nano, NOON)])  # type: ignore[arg-type] # names of components


def cost_of(line: PricedLine, nano: dict[str, int]) -> int:
    of_input = nano.get("input", 0)
    searches = min(line.web_searches, line.tool_calls)
    return (
        of_input * (line.input_tokens - line.cached_tokens)
        + nano.get("input_cached", of_input) * line.cached_tokens
        + nano.get("output", 0) * line.output_tokens
        + nano.get("tool_call", 0) * (line.tool_calls - searches)
        + nano.get("web_search", nano.get("tool_call", 0)) * searches
    )


@given(LINES, NANO)
def test_afterwards_it_costs_what_the_prices_say_and_what_somebody_booked(
    lines: list[PricedLine], nano: dict[str, int]
) -> None:
    by_price = [one for one in lines if one.reason != REASON and one.is_by_price]
    by_hand = [one for one in lines if one.reason != REASON and not one.is_by_price]
    found = difference(lines, prices(nano), TENANT, NOBODY)
    booked = NOTHING if found is None else found.costs
    if by_price:
        total = sum((one.costs or NOTHING).total for one in lines) + booked.total
        expected = sum(cost_of(one, nano) for one in by_price)
        assert total == expected + sum((one.costs or NOTHING).total for one in by_hand)
    else:
        assert found is None
    if found is not None:
        assert found.price_id == NEW
        again = PricedLine(
            model="m", tier="default", at=NOON, price_id=NEW, costs=booked, reason=REASON
        )
        assert difference([*lines, again], prices(nano), TENANT, NOBODY) is None


def test_what_has_no_price_now_keeps_what_it_cost() -> None:
    line = PricedLine(
        model="m", tier="default", at=NOON, output_tokens=5, price_id=OLD, costs=Costs(output=5)
    )
    assert difference([line], Prices(), TENANT, NOBODY) is None
    assert difference([replace(line, model="n")], prices({"output": 9}), TENANT, NOBODY) is None
