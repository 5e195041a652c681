"""docs/metrics.md lists every metric, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.promql import described

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def rows() -> list[str]:
    """A line of the table for each metric of a process, in the order of the registry."""
    return [row(*one) for one in described() if "process_" not in one[0].name]


def row(metric: Metric, labels: tuple[str, ...]) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    return f"| `{name}` | {metric.type} | {', '.join(labels)} | {metric.documentation} |"


def test_the_page_lists_what_a_process_measures() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `g")] == rows()


def test_the_alerts_use_metrics_that_exist() -> None:
    used = set(re.findall(r"\b(g(?:en_ai|ateway)_[a-z_]+)", PAGE.read_text(encoding="utf-8")))
    known = {re.sub(r"(_bucket|_count|_sum)$", "", name) for name in used}
    assert known - {"gen_ai_"} <= {re.findall(r"`(\w+)`", line)[0] for line in rows()}
