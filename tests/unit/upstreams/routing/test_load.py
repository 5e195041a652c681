from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.routing.costs import (
    LOSSES_MAX,
    RATE_LIFETIME_S,
    RATES_MIN,
    LoadAverage,
    MemberLoad,
    PeerLoad,
    RoutingPolicy,
)

POLICY = RoutingPolicy()
RATE = 10_000.0


def member() -> MemberLoad:
    return MemberLoad("gpu-1", 1, 77, POLICY)


def test_a_delay_has_what_this_replica_sent_and_what_others_told() -> None:
    one = member()
    one.owed, one.in_flight = 5_000, 2
    one.peers = {"b": PeerLoad(1, 10_000, at=100.0), "old": PeerLoad(9, 99_999, at=80.0)}
    assert one.delay_s(RATE, 101.0) == pytest.approx((5_000 + 10_000) / RATE + 3 * 0.004)
    assert one.delay_s(RATE, 200.0) == pytest.approx(0.5 + 2 * 0.004)


def test_what_is_told_is_an_average_of_the_last_seconds() -> None:
    one = member()
    one.add(0.0, 1, 1_000)
    assert one.averages(0.0) == (0, 0)
    assert one.averages(30.0) == (1, 632)
    one.add(30.0, -1, -1_000)
    assert one.averages(30.0) == (1, 632)
    assert one.averages(1_000.0) == (0, 0)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9), st.integers(0, 10**6))))
def test_an_average_is_never_more_than_what_there_was(passed: list[tuple[float, int, int]]) -> None:
    average, now, most = LoadAverage(10.0), 0.0, (0, 0)
    for seconds, in_flight, owed in passed:
        now += seconds
        most = max(most[0], in_flight), max(most[1], owed)
        average.advance(now, in_flight, owed)
        told = average.rounded()
        assert 0 <= told[0] <= most[0]
        assert 0 <= told[1] <= most[1]


def test_requests_that_wait_there_count_until_they_must_be_done() -> None:
    one = member()
    one.note_waiting(4, 100.0)
    assert one.delay_s(RATE, 100.0) == pytest.approx(0.4)
    assert one.delay_s(RATE, 100.2) == pytest.approx(0.4 - 0.14)
    assert one.delay_s(RATE, 110.0) == 0


def test_a_prompt_that_is_being_read_counts_less_and_less_and_those_behind_it_stay() -> None:
    one = member()
    one.add(10.0, 1, 6_000)
    one.add(10.1, 1, 4_000)
    assert one.delay_s(RATE, 10.0) == pytest.approx(1.0 + 2 * 0.004)
    assert one.delay_s(RATE, 10.5) == pytest.approx(1.0 - 0.7 * 0.5 + 2 * 0.004)
    assert one.delay_s(RATE, 99.0) == pytest.approx(0.5 + 2 * 0.004)
    one.add(99.0, 0, -6_000)
    assert one.delay_s(RATE, 99.0) == pytest.approx(0.4 + 2 * 0.004)
    one.add(99.1, -1, -4_000)
    one.add(200.0, 0, 1_000)
    assert one.delay_s(RATE, 200.0) == pytest.approx(0.1 + 0.004)


def test_a_rate_is_known_after_some_prompts_and_is_one_of_the_best() -> None:
    one = member()
    for rate in (3_000, 9_000, 12_000, 10_000, 2_500, 3_000, 2_500, 3_000)[:RATES_MIN]:
        assert one.rate_at(0.0) is None
        one.note_prefill(rate, 1.0, 0.0)
    assert one.rate_at(0.0) == 10_000


@pytest.mark.slow
@given(st.lists(st.floats(1, 1e9), max_size=50))
def test_a_rate_stays_within_its_bounds(rates: list[float]) -> None:
    one = member()
    for rate in rates:
        one.note_prefill(int(rate), 1.0, 0.0)
    assert 2_000 <= (one.rate_at(0.0) or 2_000) <= 200_000


@pytest.mark.parametrize(("reports", "least", "most"), [(True, 18, 20), (False, 16, 18.5)])
def test_a_rate_settles_near_the_best_and_less_so_where_hits_are_not_told(
    *, reports: bool, least: float, most: float
) -> None:
    one = member()
    one.reports = reports
    for n in range(4_000):
        one.note_prefill(10_000 + 100 * (n * 37 % 100), 1.0, 0.0)
    assert 1_000 * least < (one.rate_at(0.0) or 0) < 1_000 * most


def test_what_others_sent_does_not_make_a_member_slow() -> None:
    """Two of three prompts were behind those of other replicas."""
    one = member()
    one.reports = True
    for n in range(600):
        one.note_prefill(6_000, 0.6 if n % 3 == 0 else 2.5, 0.0)
    assert (one.rate_at(0.0) or 0) > 9_000


def test_a_rate_that_nothing_confirms_is_learned_anew() -> None:
    one = member()
    for _ in range(RATES_MIN):
        one.note_prefill(2_500, 1.0, 0.0)
    assert one.rate_at(RATE_LIFETIME_S) == 2_500
    later = RATE_LIFETIME_S + 1
    for _ in range(RATES_MIN):
        assert one.rate_at(later) is None
        one.note_prefill(10_000, 1.0, later)
    assert one.rate_at(later) == 10_000


def test_short_prompts_say_nothing_of_the_rate() -> None:
    one = member()
    for _ in range(10):
        one.note_prefill(100, 1.0, 0.0)
        one.note_prefill(10_000, 0.0, 0.0)
    assert one.rate_at(0.0) is None


def test_a_process_that_began_later_has_another_cache() -> None:
    one = member()
    assert not one.note_start(1_000, age_s=50.0, now=100.0)
    assert one.since == 50.0
    assert not one.note_start(1_001, age_s=49.0, now=100.0)
    assert one.note_start(2_000, age_s=3.0, now=110.0)
    assert one.since == 107.0


def test_a_member_whose_clock_is_ahead_holds_what_it_is_sent_from_now_on() -> None:
    one = member()
    one.note_start(1_000, age_s=-3_600.0, now=100.0)
    assert one.since == 100.0


def test_until_it_reported_a_hit_it_reports_nothing() -> None:
    one = member()
    for _ in range(10):
        assert not one.note_cached(5_000, 0, 1.0, 100.0)
    assert one.since == -math.inf
    assert not one.reports


def test_hits_that_cannot_be_missing_mean_that_it_restarted() -> None:
    one = member()
    one.note_cached(5_000, 4_000, 1.0, 90.0)
    lost = [one.note_cached(5_000, 0, 1.0, 100.0) for _ in range(LOSSES_MAX)]
    assert lost == [False] * (LOSSES_MAX - 1) + [True]
    assert one.since == 100.0


@pytest.mark.parametrize(("expected", "age_s"), [(2_000, 1.0), (5_000, 61.0)])
def test_a_small_or_an_old_prefix_may_be_missing(expected: int, age_s: float) -> None:
    one = member()
    one.note_cached(5_000, 4_000, 1.0, 90.0)
    for _ in range(10):
        assert not one.note_cached(expected, 0, age_s, 100.0)


def test_a_hit_in_between_shows_that_it_is_the_same() -> None:
    one = member()
    for cached in (5_000, 0, 5_000, 0, 5_000, 0):
        assert not one.note_cached(5_000, cached, 1.0, 100.0)


def test_the_horizon_shrinks_to_the_age_of_what_is_missing_and_grows_with_what_is_not() -> None:
    one = member()
    for _ in range(30):
        one.note_cached(5_000, 100, 60.0, 100.0)
    assert one.horizon_s == pytest.approx(60, rel=0.02)
    one.note_cached(5_000, 5_000, 30.0, 100.0)
    one.note_cached(5_000, 100, 90.0, 100.0)
    one.note_cached(5_000, 4_000, 30.0, 100.0)
    assert one.horizon_s == pytest.approx(60, rel=0.02)
    for _ in range(30):
        one.note_cached(5_000, 5_000, 600.0, 100.0)
    assert one.horizon_s == pytest.approx(600, rel=0.02)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 9_000), st.integers(0, 9_000), st.floats(0, 1e9)), max_size=60
    )
)
def test_a_horizon_stays_within_its_bounds(reports: list[tuple[int, int, float]]) -> None:
    one = member()
    for expected, cached, age_s in reports:
        one.note_cached(expected, cached, age_s, 1.0)
    assert 5 <= one.horizon_s <= 86_400
