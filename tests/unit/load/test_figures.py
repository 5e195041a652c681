"""Medians, comparisons and targets."""

from __future__ import annotations

import pytest

from tests.load.figures import Column, Samples, Spread, Target, compared, spreads

SAMPLES: Samples = {
    "nginx": [{"cpu_us": 2.0}, {"cpu_us": 4.0}, {"cpu_us": 10.0}],
    "gateway": [{"cpu_us": 3.0}, {"cpu_us": 4.0}, {"cpu_us": 30.0}],
    "broken": [],
}


def test_a_figure_is_the_median_of_its_repetitions() -> None:
    assert compared(SAMPLES, "gateway", "cpu_us", "itself", "") == 4.0


def test_rows_are_compared_within_a_repetition_before_the_median_is_taken() -> None:
    assert compared(SAMPLES, "gateway", "cpu_us", "times", "nginx") == 1.5
    assert compared(SAMPLES, "gateway", "cpu_us", "above", "nginx") == 1.0


@pytest.mark.parametrize(
    ("row", "figure", "base"),
    [
        ("gateway", "memory", "nginx"),
        ("broken", "cpu_us", "nginx"),
        ("gateway", "cpu_us", "broken"),
        ("nobody", "cpu_us", "nginx"),
    ],
)
def test_what_was_not_measured_has_no_value(row: str, figure: str, base: str) -> None:
    assert Column("", figure, how="times", base=base).value(SAMPLES, row) is None


def test_a_multiple_of_nothing_is_infinite() -> None:
    samples = {"one": [{"cpu_us": 1.0}], "none": [{"cpu_us": 0.0}]}
    assert compared(samples, "one", "cpu_us", "times", "none") == float("inf")


def test_a_target_is_a_ceiling_or_a_floor() -> None:
    ceiling = Target("gateway", "CPU", "cpu_us", 1.5, "times", "nginx")
    floor = Target("gateway", "CPU", "cpu_us", 1.5, is_floor=True)
    assert ceiling.value(SAMPLES) == 1.5
    assert [ceiling.is_met_by(value) for value in (1.5, 1.6)] == [True, False]
    assert [floor.is_met_by(value) for value in (1.5, 1.4)] == [True, False]


def test_a_spread_has_the_figures_that_all_repetitions_have() -> None:
    samples = [{"a": 3.0, "b": 1.0}, {"a": 1.0}, {"a": 2.0, "b": 5.0}]
    assert spreads(samples) == {"a": Spread(median=2.0, low=1.0, high=3.0)}
    assert spreads([]) == {}
