"""What is counted here is what prometheus_client would have counted, and is told in its words."""

from __future__ import annotations

import prometheus_client as plain
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from gateway.tallies import Counter, Histogram

LABELS = st.sampled_from(["a", 'b"\n\\', ""])
BOUNDS = (0.1, 1.0, 2.5)


def told(registry: plain.CollectorRegistry) -> list[str]:
    """The exposition, but for when each of it began to be counted."""
    lines = generate_latest(registry).decode().splitlines()
    return [line if "_created{" not in line else line.rsplit(" ", 1)[0] for line in lines]


@given(st.lists(st.tuples(LABELS, LABELS, st.floats(0, 1e9))))
def test_counts_are_told_as_prometheus_tells_its_own(
    counted: list[tuple[str, str, float]],
) -> None:
    ours, theirs = plain.CollectorRegistry(), plain.CollectorRegistry()
    counter = Counter("things_total", "Things.", ("one", "other"))
    ours.register(counter)
    expected = plain.Counter("things_total", "Things.", ["one", "other"], registry=theirs)
    for one, other, amount in counted:
        counter[one, other].value += amount
        expected.labels(one, other).inc(amount)
    assert told(ours) == told(theirs)


@given(st.lists(st.tuples(LABELS, st.floats(0, 4) | st.sampled_from(BOUNDS))))
def test_spreads_are_told_as_prometheus_tells_its_own(observed: list[tuple[str, float]]) -> None:
    ours, theirs = plain.CollectorRegistry(), plain.CollectorRegistry()
    histogram = Histogram("seconds", "How long.", ("what",), BOUNDS)
    ours.register(histogram)
    expected = plain.Histogram("seconds", "How long.", ["what"], registry=theirs, buckets=BOUNDS)
    for what, value in observed:
        histogram[(what,)].observe(value)
        expected.labels(what).observe(value)
    assert told(ours) == told(theirs)


def test_what_has_no_labels_is_told_from_the_start() -> None:
    registry = plain.CollectorRegistry()
    registry.register(Counter("a_total", "A.", ()))
    registry.register(Histogram("b", "B.", (), BOUNDS))
    assert registry.get_sample_value("a_total") == 0
    assert registry.get_sample_value("b_count") == 0


def test_a_name_is_taken_once() -> None:
    registry = plain.CollectorRegistry()
    registry.register(Counter("a_total", "A.", ()))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Counter("a_total", "Another.", ()))
