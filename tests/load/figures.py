"""Figures of several repetitions → medians, comparisons, and whether targets are met.

What is compared is compared within a repetition first, so that a machine that is slow for a while
is slow for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Figures = Mapping[str, float]
"""What one measurement of one row found, by the name of the figure."""
Samples = Mapping[str, Sequence[Figures]]
"""By row, one for each repetition; empty for a row that failed."""
How = Literal["itself", "times", "above"]
"""A figure itself, as a multiple of the same of another row, or what it has more than that."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. `base` is the row that `times` and `above` compare with."""

    title: str
    figure: str
    digits: int = 0
    how: How = "itself"
    base: str = ""

    def value(self, samples: Samples, row: str) -> float | None:
        """The median of the repetitions; None where this row, or the base, does not have it."""
        return compared(samples, row, self.figure, self.how, self.base)


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure of a row has to be: at most `limit`, or at least with `is_floor`."""

    row: str
    title: str
    figure: str
    limit: float
    how: How = "itself"
    base: str = ""
    is_floor: bool = False

    def value(self, samples: Samples) -> float | None:
        """What it is; None where it was not measured."""
        return compared(samples, self.row, self.figure, self.how, self.base)

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.is_floor else value <= self.limit


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some repetitions, and between which values they were."""

    median: float
    low: float
    high: float


def compared(samples: Samples, row: str, figure: str, how: How, base: str) -> float | None:
    """The median over the repetitions; None without any."""
    rows = samples.get(row, ())
    if how == "itself":
        values = [one[figure] for one in rows if figure in one]
    else:
        values = [
            one[figure] - other[figure] if how == "above" else _ratio(one[figure], other[figure])
            for one, other in zip(rows, samples.get(base, ()), strict=False)  # one may have failed
            if figure in one and figure in other
        ]
    return median(values) if values else None


def spreads(samples: Sequence[Figures]) -> dict[str, Spread]:
    """The spread of every figure that all repetitions of a row have."""
    if not samples:
        return {}
    names = set.intersection(*(set(one) for one in samples))
    return {
        name: Spread(median(values), min(values), max(values))
        for name in samples[0]
        if name in names and (values := [one[name] for one in samples])
    }


def _ratio(one: float, other: float) -> float:
    return one / other if other else float("inf")
