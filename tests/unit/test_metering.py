from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.metering import CounterReading


def test_of_the_time_before_the_first_reading_nothing_is_known() -> None:
    first = CounterReading(500, 10)
    assert first.follow(None) == (0, first)


def test_a_counter_that_grows_has_generated_the_difference() -> None:
    later = CounterReading(700, 10)
    assert later.follow(CounterReading(500, 10)) == (200, later)
    assert CounterReading(700).follow(CounterReading(500, 10))[0] == 200


def test_a_process_that_began_anew_has_generated_all_that_it_counts() -> None:
    restarted = CounterReading(900, 11)
    assert restarted.follow(CounterReading(500, 10)) == (900, restarted)
    unknown = CounterReading(7)
    assert unknown.follow(CounterReading(500)) == (7, unknown)


def test_what_another_replica_read_before_adds_nothing() -> None:
    newer = CounterReading(500, 10)
    assert CounterReading(490, 10).follow(newer) == (0, newer)
    assert CounterReading(900, 9).follow(newer) == (0, newer)
    assert CounterReading(490).follow(CounterReading(500)) == (0, CounterReading(500))


@given(steps=st.lists(st.integers(0, 10**6), min_size=1), epoch=st.none() | st.integers(0, 9))
def test_differences_come_to_what_was_generated(steps: list[int], epoch: int | None) -> None:
    before = CounterReading(10**6, epoch)
    tokens, total = before.tokens, 0
    for step in steps:
        tokens += step
        more, before = CounterReading(tokens, epoch).follow(before)
        total += more
    assert total == sum(steps)
