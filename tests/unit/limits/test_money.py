"""Prices are exact, and intervals are those of the calendar in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.limits.money import NANO, Price, Prices, SpendMeter, begins, dollars, ends
from gateway.limits.rules import Meter

EVERYONE, OURS, OTHERS = UUID(int=0), UUID(int=1), UUID(int=2)
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
MOMENTS = st.datetimes(timezones=st.just(UTC)).filter(lambda at: 1970 < at.year < 9_000)
COUNTS = st.integers(0, 10**7)


def price(number: int, tenant: UUID = EVERYONE, tier: str = "*", **more: object) -> Price:
    given_: dict[str, object] = {"nano": {"input": number}, "valid_from": NOW, **more}
    return Price(UUID(int=number), tenant, "m", tier, **given_)  # type: ignore[arg-type]


@given(COUNTS, COUNTS, COUNTS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_line_costs_the_sum_of_its_tokens(
    fresh: int, cached: int, output: int, of_input: int, of_output: int
) -> None:
    one = price(1, nano={"input": of_input, "output": of_output, "input_cached": 7})
    cost = one.tokens(input_tokens=fresh + cached, cached_tokens=cached, output_tokens=output)
    assert cost == fresh * of_input + cached * 7 + output * of_output


def test_what_has_no_price_of_its_own() -> None:
    one = price(1, nano={"input": 5, "tool_call": 11})
    assert one.tokens(input_tokens=10, cached_tokens=4, output_tokens=9) == 50
    assert one.calls(tool_calls=3, web_searches=2) == 33
    searching = price(1, nano={"tool_call": 11, "web_search": 100})
    assert searching.calls(tool_calls=3, web_searches=2) == 211
    assert searching.calls(tool_calls=1, web_searches=2) == 100


def test_the_nearest_price_counts() -> None:
    old, new = price(1), price(2, valid_from=NOW + timedelta(days=1))
    ended = price(3, valid_until=NOW + timedelta(hours=1), valid_from=NOW - timedelta(days=9))
    known = Prices([old, new, ended])
    assert known.of(OURS, "m", "default", NOW) is old
    assert known.of(OURS, "m", "default", NOW + timedelta(days=2)) is new
    assert known.of(OURS, "m", "default", NOW - timedelta(days=1)) is ended
    assert known.of(OURS, "another", "default", NOW) is None
    own, tier = price(4, OURS), price(5, tier="flex")
    known = Prices([old, own, tier, price(6, OTHERS)])
    assert known.of(OURS, "m", "default", NOW) is own
    assert known.of(OTHERS, "m", "flex", NOW) != tier
    assert known.of(UUID(int=9), "m", "flex", NOW) is tier


@pytest.mark.slow
@given(MOMENTS, st.sampled_from(["day", "month", "none"]))
def test_every_moment_is_in_one_interval(at: datetime, interval: str) -> None:
    begun, end = begins(interval, at), ends(interval, at)  # type: ignore[arg-type]
    assert begun <= at
    if end is None:
        assert interval == "none"
    else:
        assert at < end
        assert begins(interval, end) == end  # type: ignore[arg-type]
        assert begins(interval, end - timedelta(seconds=1)) == begun  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nano", "told"), [(0, "0.00"), (NANO, "1.00"), (50, "0.00000005"), (-1_500_000_000, "-1.50")]
)
def test_dollars_are_told_exactly(nano: int, told: str) -> None:
    assert dollars(nano) == told


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 7_200)), max_size=200))
def test_settlements_across_the_end_of_an_interval_are_each_in_one_row(
    spent: list[tuple[int, int]],
) -> None:
    midnight = datetime(2026, 11, 24, tzinfo=UTC)
    at = midnight - timedelta(hours=1)
    meter, wanted = SpendMeter(Meter("m", "usd", "day"), at), {at.date(): 0, midnight.date(): 0}
    meter.mark_written(meter.rows(at), others=0, others_reserved=0)
    rows = {}
    for amount, second in sorted(spent, key=lambda one: one[1]):
        now = at + timedelta(seconds=second)
        meter.spend(amount, now)
        wanted[now.date()] += amount
        told = meter.rows(now)
        for row in told:
            rows[row.starts_at.date()] = row.total
        meter.mark_written(told, others=3, others_reserved=4)
        assert meter.is_written
        assert meter.committed(now) == meter.spent(now) + 4
    assert {day: total for day, total in rows.items() if total} == {
        day: total for day, total in wanted.items() if total
    }


class Forgetful(RuleBasedStateMachine):
    """Replicas that forget meters at any time that they have told, and rows as the database has
    them (`counters._SPEND`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.at = datetime(2026, 11, 24, tzinfo=UTC)
        self.rows: dict[int, int] = {}
        self.meters: dict[int, SpendMeter] = {}
        self.spent = 0

    @rule(replica=st.integers(0, 2), amount=st.integers(0, 1_000))
    def spend(self, replica: int, amount: int) -> None:
        self.meter(replica).spend(amount, self.at)
        self.spent += amount

    @rule(replica=st.integers(0, 2), is_lost=st.booleans())
    def tell(self, replica: int, is_lost: bool) -> None:
        meter = self.meter(replica)
        rows = meter.rows(self.at)
        if not meter.is_written:
            self.rows[replica] = max(self.rows.get(replica, 0), rows[-1].total)
        if not is_lost:
            others = sum(amount for one, amount in self.rows.items() if one != replica)
            mine = self.rows.get(replica, 0)
            meter.mark_written(rows, others=others, others_reserved=0, mine=mine)

    @rule(replica=st.integers(0, 2))
    def forget(self, replica: int) -> None:
        if replica in self.meters and self.meters[replica].is_written:
            del self.meters[replica]

    @invariant()
    def nothing_is_lost(self) -> None:
        for replica in self.meters:
            self.tell(replica, is_lost=False)
            self.tell(replica, is_lost=False)
        assert sum(self.rows.values()) == self.spent
        for replica in self.meters:
            self.tell(replica, is_lost=False)
            assert self.meters[replica].spent(self.at) == self.spent

    def meter(self, replica: int) -> SpendMeter:
        new = SpendMeter(Meter("m", "usd", "month"), self.at)
        return self.meters.setdefault(replica, new)


TestForgetful = pytest.mark.slow(Forgetful.TestCase)
TestForgetful.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
