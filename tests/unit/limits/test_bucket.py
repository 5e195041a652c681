"""Slices of a bucket: what all take together is never more than the bucket gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.limits.buckets import IDLE_S, SPACING_S, Bucket

if TYPE_CHECKING:
    from gateway.limits.buckets import Ask

RATE, CAPACITY, REPLICAS = 10.0, 600.0, 3


class Row:
    """The row of a bucket, as the statement of `store.limits.counters` has it."""

    def __init__(self, level: float = CAPACITY) -> None:
        self.level, self.at = level, 0.0

    def filled(self, ask: Ask, now: float) -> float:
        most = max(ask.capacity, self.level)
        return min(most, min(most, self.level + ask.rate * (now - self.at)) + ask.change)

    def resize(self, before: float, capacity: float, now: float) -> None:
        level = min(before, self.level + RATE * (now - self.at))
        self.level, self.at = min(capacity, level + max(0.0, capacity - before)), now

    def answer(self, ask: Ask, now: float) -> tuple[float, float]:
        level = max(-ask.capacity, self.filled(ask, now))
        granted = max(0.0, min(ask.want, level))
        self.level, self.at = level - granted, now
        return granted, self.level


class Slices(RuleBasedStateMachine):
    """Replicas that take, give back, use more than they took, and ask in any order; meanwhile the
    limit changes, and each learns it when it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now, self.row, self.forgiven = 0.0, Row(), 0.0
        self.capacity, self.raised = CAPACITY, 0.0
        self.buckets = [Bucket(RATE, CAPACITY, 0.0) for _ in range(REPLICAS)]
        self.used = self.held_most = 0.0

    @rule(number=st.integers(0, REPLICAS - 1), cost=st.floats(1, 200))
    def take(self, number: int, cost: float) -> None:
        bucket = self.buckets[number]
        bucket.demand(cost, self.now)
        if bucket.held >= cost:
            bucket.take(cost)
            self.used += cost
        elif bucket.is_worth_asking(cost, self.now):
            bucket.need(cost)

    @rule(number=st.integers(0, REPLICAS - 1), amount=st.floats(-100, 100))
    def settle(self, number: int, amount: float) -> None:
        """More was used than was taken, or less (never less than nothing in all)."""
        amount = min(amount, self.used)
        self.buckets[number].give_back(amount, self.now)
        self.used -= amount

    @rule(capacity=st.floats(1, 2 * CAPACITY))
    def change_limit(self, capacity: float) -> None:
        self.row.resize(self.capacity, capacity, self.now)
        self.raised += max(0.0, capacity - self.capacity)
        self.capacity = capacity

    @rule(number=st.integers(0, REPLICAS - 1))
    def hear_of_limit(self, number: int) -> None:
        self.buckets[number].resize(RATE, self.capacity)

    @rule(number=st.integers(0, REPLICAS - 1), seconds=st.floats(0, 5), is_lost=st.booleans())
    def sync(self, number: int, seconds: float, is_lost: bool) -> None:
        self.now += seconds
        bucket = self.buckets[number]
        if (ask := bucket.ask(self.now)) is None:
            return
        if is_lost:
            bucket.held += ask.change
            bucket.is_pending = False
            return
        self.forgiven += max(0.0, -ask.capacity - self.row.filled(ask, self.now))
        bucket.answered(*self.row.answer(ask, self.now), self.now)

    @invariant()
    def nobody_made_any(self) -> None:
        held = sum(bucket.held for bucket in self.buckets)
        made = CAPACITY + self.raised + RATE * self.now + self.forgiven
        assert self.used + held + self.row.level <= made + 1e-6 * max(1.0, made, self.used)


TestSlices = pytest.mark.slow(Slices.TestCase)
TestSlices.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_what_is_idle_goes_back() -> None:
    bucket = Bucket(RATE, CAPACITY, 0.0)
    bucket.demand(5, 0.0)
    bucket.need(5)
    ask = bucket.ask(0.0)
    assert ask is not None
    bucket.answered(ask.want, 100.0, 0.0)
    bucket.take(5)
    assert bucket.ask(IDLE_S - 0.1) is not None or bucket.held >= 0
    held = bucket.held
    ask = bucket.ask(IDLE_S + 1)
    assert ask is not None
    assert (ask.change, ask.want, bucket.held) == (held, 0.0, 0.0)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0.001, 5), st.sampled_from(["use", "ask", "hear"])), max_size=30)
)
def test_who_is_alone_may_use_what_is_left_while_an_answer_is_under_way(
    steps: list[tuple[float, str]],
) -> None:
    """What goes back to the row counts as left from the moment that it goes: a request that comes
    before the answer of a slow database waits for the next one, and is not refused.
    """
    bucket, row, now, used = Bucket(2 / 60, 2.0, 0.0), Row(2.0), 0.0, 0.0
    under_way: tuple[float, float] | None = None
    for seconds, step in steps:
        now += seconds
        if step == "hear" and under_way is not None:
            bucket.answered(*under_way, now)
            under_way = None
        elif step == "ask" and under_way is None and (ask := bucket.ask(now)) is not None:
            under_way = row.answer(ask, now)
        elif step == "use":
            bucket.demand(1, now)
            if used + 1 <= 2:
                assert bucket.held >= 1 or bucket.is_worth_asking(1, now)
            if bucket.held >= 1:
                bucket.take(1)
                used += 1
            elif bucket.is_worth_asking(1, now):
                bucket.need(1)


def test_what_was_refused_is_not_asked_for_before_it_can_be_there() -> None:
    bucket = Bucket(RATE, CAPACITY, 0.0)
    assert bucket.is_worth_asking(50, 0.0)
    bucket.need(50)
    ask = bucket.ask(0.0)
    assert ask is not None
    bucket.answered(0.0, 10.0, 0.0)
    assert not bucket.is_worth_asking(50, SPACING_S / 2)
    assert not bucket.is_worth_asking(50, 3.9)
    assert bucket.until_fits_s(50, 0.0) == pytest.approx(4.0)
    assert bucket.is_worth_asking(50, 4.1)
    assert not bucket.is_worth_asking(CAPACITY + 1, 10_000.0)
    assert ask.want >= 50


def test_a_raised_limit_is_asked_for_at_once() -> None:
    bucket = Bucket(RATE, CAPACITY, 0.0)
    bucket.need(50)
    assert bucket.ask(0.0) is not None
    bucket.answered(0.0, 10.0, 0.0)
    assert not bucket.is_worth_asking(50, 0.0)
    bucket.resize(2 * RATE, CAPACITY + 40)
    assert bucket.available(0.0) == pytest.approx(50)
    assert bucket.is_worth_asking(50, 0.0)


def test_a_limit_that_changes_without_a_database_fills_at_its_own_rate() -> None:
    bucket = Bucket(RATE, CAPACITY, 0.0)
    bucket.need(50)
    ask = bucket.ask(0.0)
    assert ask is not None
    bucket.failed(ask, 0.0, replicas=2, until=400.0)
    bucket.resize(RATE / 10, CAPACITY / 10)
    assert bucket.held == 0
    bucket.demand(1, 10.0)
    assert bucket.held == pytest.approx(RATE / 10 / 2 * 10)
    bucket.demand(1, 390.0)
    assert bucket.held == pytest.approx(CAPACITY / 10 / 2)


@given(st.integers(1, 8), st.floats(1, 500))
def test_without_a_database_all_together_have_no_more_than_the_limit(
    replicas: int, seconds: float
) -> None:
    taken = 0.0
    for _ in range(replicas):
        bucket = Bucket(RATE, CAPACITY, 0.0)
        bucket.demand(1, 0.0)
        bucket.need(1)
        ask = bucket.ask(0.0)
        assert ask is not None
        bucket.failed(ask, 0.0, replicas=replicas, until=400.0)
        for now in (0.0, seconds / 2, seconds, seconds):
            bucket.demand(1, now)
            taken += bucket.held
            bucket.take(bucket.held)
            assert bucket.until_full_s(bucket.available(now)) >= 0
        assert bucket.is_detached
        assert not bucket.is_worth_asking(1, seconds)
        assert bucket.until_fits_s(1, seconds) > 0
        bucket.resize(RATE, CAPACITY)
    assert taken <= CAPACITY + RATE * min(seconds, 400.0) + 1e-6
