"""Buckets of one process: never more than they hold and what comes back, and never a false no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RateLimited
from gateway.limits import buckets
from gateway.limits.buckets import WINDOW_S, Paces, ReadPace

STEPS = st.lists(st.floats(0, 5), min_size=1, max_size=200)


@pytest.mark.slow
@given(STEPS, st.integers(1, 50))
def test_no_more_pass_than_the_bucket_holds_and_what_comes_back(
    steps: list[float], capacity: int
) -> None:
    paces: Paces[str] = Paces()
    now, passed = 0.0, 0
    for step in steps:
        now += step
        passed += not paces.take("key", capacity, now)
    assert passed <= capacity + now * capacity / WINDOW_S + 1e-6


@pytest.mark.slow
@given(STEPS, st.integers(1, 50))
def test_after_the_wait_that_was_told_one_passes(steps: list[float], capacity: int) -> None:
    paces: Paces[str] = Paces()
    now = 0.0
    for step in steps:
        now += step
        wait_s = paces.take("key", capacity, now)
        if wait_s:
            now += wait_s + 1e-6
            assert not paces.take("key", capacity, now)


@pytest.mark.slow
@given(st.integers(1, 100), st.integers(1, 500))
def test_however_often_it_was_refused_it_passes_after_a_window(capacity: int, times: int) -> None:
    paces: Paces[str] = Paces()
    for _ in range(times):
        paces.spend("key", capacity, 0.0)
    assert bool(paces.wait_s("key", capacity, 0.0)) == (times >= capacity)
    assert not paces.wait_s("key", capacity, 2 * WINDOW_S / capacity + 1e-6)


def test_those_that_are_forgotten_used_nothing_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "KEPT", 2)
    paces: Paces[str] = Paces()
    for key in "abac":
        paces.spend(key, 2, 0.0)
    assert paces.wait_s("a", 2, 0.0)
    paces.spend("b", 2, 0.0)
    assert not paces.wait_s("b", 2, 0.0)


def test_each_key_reads_at_its_own_pace_and_is_told_when_it_may_again() -> None:
    reads = ReadPace(60)
    for _ in range(60):
        reads.take("a", 5.0)
    with pytest.raises(RateLimited, match=r"Please try again in 1s\.") as refused:
        reads.take("a", 5.0)
    assert refused.value.retry_after_s == pytest.approx(1.0)
    assert (refused.value.code, refused.value.kind) == ("rate_limit_exceeded", "requests")
    reads.take("b", 5.0)
    reads.take("a", 6.0)


def test_without_a_number_reads_have_no_limit() -> None:
    reads = ReadPace(0)
    for _ in range(1_000):
        reads.take("a", 0.0)
