"""Counters and histograms that cost next to nothing where something is counted.

prometheus_client takes a lock for each count, and five calls to get there. These are plain numbers
of one thread, the event loop's; what Prometheus is told is made of them when it asks.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Labels = tuple[str, ...]


class Count:
    """A number that only grows, since `created` (unix seconds)."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created = time.time()


class Counter(dict["Labels", Count], Collector):
    """Counts by the values of their labels, each of which is there once it was asked for."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        """`name` with `_total` at its end. Without labels there is one count from the start."""
        super().__init__()
        self._described = name, text, labels
        if not labels:
            self[()] = Count()

    __hash__ = object.__hash__  # type: ignore[assignment]
    """A registry keeps it among its keys; a dictionary would be none."""

    def __missing__(self, labels: Labels) -> Count:
        count = self[labels] = Count()
        return count

    def describe(self) -> list[CounterMetricFamily]:
        """Its name, for the registry."""
        name, text, labels = self._described
        return [CounterMetricFamily(name, text, labels=labels)]

    @override
    def collect(self) -> Iterator[CounterMetricFamily]:
        for family in self.describe():
            for labels, count in self.items():
                family.add_metric(labels, count.value, created=count.created)
            yield family


class Spread:
    """How often something was how large, since `created` (unix seconds)."""

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascending: a value counts below the first that it does not exceed."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of what lies between two bounds; the last one is of what lies above all."""
        self.total = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        """Once more."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histogram(dict["Labels", Spread], Collector):
    """Spreads by the values of their labels, each of which is there once it was asked for."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: Sequence[float]) -> None:
        super().__init__()
        self._described = name, text, labels
        self._bounds = tuple(bounds)
        if not labels:
            self[()] = Spread(self._bounds)

    __hash__ = object.__hash__  # type: ignore[assignment]
    """A registry keeps it among its keys; a dictionary would be none."""

    def __missing__(self, labels: Labels) -> Spread:
        spread = self[labels] = Spread(self._bounds)
        return spread

    def describe(self) -> list[HistogramMetricFamily]:
        """Its name, for the registry."""
        name, text, labels = self._described
        return [HistogramMetricFamily(name, text, labels=labels)]

    @override
    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for family in self.describe():
            for labels, spread in self.items():
                buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
                family.add_metric(labels, buckets, spread.total)
                named = dict(zip(self._described[2], labels, strict=True))
                family.add_sample(f"{family.name}_created", named, spread.created)
            yield family
