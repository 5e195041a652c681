"""What expressions for Prometheus read, and what a gateway exposes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import promql_parser

from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

SCRAPED: Final = frozenset({"job", "instance"})
"""Labels that Prometheus adds to what it scrapes."""
OF_PROMETHEUS: Final = {"up": SCRAPED, "ALERTS": SCRAPED | {"alertname", "alertstate", "severity"}}
_CHILDREN: Final = ("expr", "lhs", "rhs", "param", "vector_selector")


def read(expression: str) -> dict[str, set[str]]:
    """The metrics that an expression reads, and the labels it names of each: those of its matchers,
    and those that it sums by. Raises `ValueError` if it is no PromQL.
    """
    names: dict[str, set[str]] = {}
    for selector, grouped in _selectors(promql_parser.parse(expression), frozenset()):
        named = {matcher.name for matcher in selector.matchers.matchers}
        names.setdefault(selector.name, set()).update(named, grouped)
    return names


def _selectors(node: Any, grouped: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node, grouped
        return
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        grouped |= set(node.modifier.labels)
    children = [getattr(node, name, None) for name in _CHILDREN]
    for child in [*children, *(getattr(node, "args", None) or ())]:
        if child is not None:
            yield from _selectors(child, grouped)


def described() -> list[tuple[Metric, tuple[str, ...]]]:
    """Each metric of a process with its labels, in the order of the registry."""
    return [
        (metric, tuple(getattr(collector, "_labelnames", ())))
        for collector in Metrics().registry._collector_to_names
        for metric in collector.collect()
    ]


@cache
def sampled() -> dict[str, tuple[str, ...]]:
    """The labels of each metric, by the names that its samples have."""
    names: dict[str, tuple[str, ...]] = {}
    for metric, labels in described():
        if metric.type == "histogram":
            names[f"{metric.name}_bucket"] = (*labels, "le")
            names |= {f"{metric.name}_{part}": labels for part in ("count", "sum")}
        else:
            names[f"{metric.name}_total" if metric.type == "counter" else metric.name] = labels
    return names


def unknown(expression: str, recorded: frozenset[str] = frozenset()) -> set[str]:
    """The metrics and labels that an expression reads and nothing exposes; `recorded` are made by
    rules, without labels.
    """
    known = {name: {*own, *SCRAPED} for name, own in sampled().items()}
    known |= {name: set(own) for name, own in OF_PROMETHEUS.items()}
    known |= {name: set() for name in recorded}
    missing = set()
    for name, named in read(expression).items():
        if name not in known:
            missing.add(name)
        else:
            missing |= {f"{name}{{{label}}}" for label in named - known[name]}
    return missing
