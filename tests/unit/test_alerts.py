"""The rules for Prometheus: expressions that parse, of metrics that exist, with a runbook each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml

from gateway.telemetry.metrics import Metrics

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "observability" / "rules.yaml"
RUNBOOKS: Final = ROOT / "docs" / "runbooks.md"
TRIED: Final = ("rules.test.yaml", "week.test.yaml")
OF_PROMETHEUS: Final = {"up"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def selected(expression: str) -> set[str]:
    """The metrics that an expression reads. Raises `ValueError` if it is no PromQL."""
    promql_parser.parse(expression)
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"|\b(by|without) \([^)]*\)", " ", expression)
    return set(re.findall(r"\b(?:job:)?[a-z]+_[a-z0-9_:]+\b|\bup\b", bare))


def exposed() -> set[str]:
    names: set[str] = set()
    for metric in Metrics().registry.collect():
        if metric.type == "counter":
            names.add(f"{metric.name}_total")
        elif metric.type == "histogram":
            names |= {f"{metric.name}_{part}" for part in ("bucket", "count", "sum")}
        else:
            names.add(metric.name)
    return names


def test_every_expression_reads_metrics_that_exist() -> None:
    known = exposed() | OF_PROMETHEUS | {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        names = selected(rule["expr"])
        assert names, rule
        assert names <= known, rule


def test_an_expression_that_is_not_whole_is_noticed() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        selected("sum(rate(gateway_requests_total[5m])")


def test_every_alert_leads_to_its_runbook() -> None:
    headings = set(re.findall(r"^## (\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE))
    named = set()
    for alert in alerts():
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert ROOT / page == RUNBOOKS, alert
        assert alert["labels"]["severity"] in {"page", "ticket"}, alert
        named |= {heading for heading in headings if heading.lower() == anchor}
        assert anchor in {heading.lower() for heading in headings}, alert
    assert named == headings, "a runbook of no alert"


def test_every_runbook_says_what_is_seen_and_when_it_is_over() -> None:
    _, *sections = re.split(r"^## ", RUNBOOKS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for section in sections:
        parts = re.findall(r"^\*\*(.*?)\*\*", section, re.MULTILINE)
        assert parts == ["You see", "Look at", "Do", "It is over when"], section


def test_every_alert_is_tried() -> None:
    fired = set()
    for file in TRIED:
        for case in yaml.safe_load((RULES.parent / file).read_text(encoding="utf-8"))["tests"]:
            fired |= {one["alertname"] for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {alert["alert"] for alert in alerts()}


@pytest.mark.slow
@pytest.mark.parametrize("command", [("check", ("rules.yaml",)), ("test", TRIED)])
def test_prometheus_agrees(command: tuple[str, tuple[str, ...]]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    verb, files = command
    done = subprocess.run(
        [promtool, verb, "rules", *files],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
