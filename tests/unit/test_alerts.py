"""The rules for Prometheus: expressions that parse, of metrics that exist, with a runbook each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.fakes.boards import RULES, recorded, rules
from tests.fakes.promql import read, unknown

ROOT: Final = Path(__file__).parents[2]
RUNBOOKS: Final = ROOT / "docs" / "runbooks.md"
TRIED: Final = ("rules.test.yaml", "week.test.yaml")


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@pytest.mark.slow
def test_every_expression_reads_metrics_that_exist() -> None:
    for rule in rules():
        assert read(rule["expr"]), rule
        assert unknown(rule["expr"], recorded()) == set(), rule


def test_an_expression_that_is_not_whole_is_noticed() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        read("sum(rate(gateway_requests_total[5m])")


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("sum(rate(gateway_requests[5m]))", {"gateway_requests"}),
        ("sum by (model) (gateway_hops_total)", {"gateway_hops_total{model}"}),
        ('up * rate(gateway_hops_total{kind="x"}[5m])', {"gateway_hops_total{kind}"}),
    ],
)
def test_a_metric_or_a_label_that_nothing_exposes_is_noticed(
    expression: str, missing: set[str]
) -> None:
    assert unknown(expression) == missing


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
