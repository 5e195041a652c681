"""The boards as they are committed, and their expressions as Prometheus is asked them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from scripts.dashboards.panels import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES: Final = FOLDER.parent / "rules.yaml"
_INTERVAL: Final = re.compile(r"\$__(rate_interval|range)")


class Asked(NamedTuple):
    """An expression of a panel, with the variables of Grafana in it."""

    board: str
    title: str
    expression: str

    def over(self, interval: str) -> str:
        """The same for all replicas, with rates over `interval`."""
        return _INTERVAL.sub(interval, self.expression).replace("$instance", ".*")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def recorded() -> frozenset[str]:
    """The names that recording rules make."""
    return frozenset(rule["record"] for rule in rules() if "record" in rule)


def boards() -> dict[str, dict[str, Any]]:
    """Each board by the name of its file."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.iterdir())}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def asked() -> Iterator[Asked]:
    """Every expression of the boards."""
    for name, board in boards().items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield Asked(name, panel["title"], target["expr"])
        for annotation in board["annotations"]["list"]:
            yield Asked(name, annotation["name"], annotation["expr"])
