"""`helm template`, `helm lint` and `helm package` by Helm's own code, where no helm is installed.

Its Go code comes from PyPI as `helm-python-sdk`, in an environment of its own (`make helm`). A
program `helm` takes the same arguments.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml


def _merged(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    both = {**lower, **upper}
    for key in lower.keys() & upper.keys():
        if isinstance(lower[key], dict) and isinstance(upper[key], dict):
            both[key] = _merged(lower[key], upper[key])
    return both


def _values(given: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for file in given.values:
        values = _merged(values, yaml.safe_load(file.read_text("utf-8")) or {})
    for setting in given.set:
        values = _merged(values, helm_python.parse_set_string(setting))
    return values


def _template(given: argparse.Namespace) -> None:
    with helm_python.Chart.load(given.chart) as chart:
        made = chart.render(_values(given), name=given.name, namespace=given.namespace)
    for path, text in sorted(made.items()):
        if path.endswith(".yaml") and text.strip():
            print(f"---\n# Source: {path}\n{text}")


def _lint(given: argparse.Namespace) -> None:
    report = helm_python.lint(given.chart, _values(given), strict=given.strict)
    for message in report["messages"]:
        print(f"[{message['severity']}] {message['path']}: {message['error']}")
    if report["errors"]:
        raise SystemExit("\n".join(report["errors"]))


def _package(given: argparse.Namespace) -> None:
    print(helm_python.package(given.chart, destination=given.destination))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="helm")
    commands = parser.add_subparsers(required=True)
    template = commands.add_parser("template")
    template.add_argument("name")
    lint = commands.add_parser("lint")
    lint.add_argument("--strict", action="store_true")
    package = commands.add_parser("package")
    package.add_argument("--destination", default=".")
    for command, run in ((template, _template), (lint, _lint), (package, _package)):
        command.set_defaults(run=run)
        command.add_argument("chart")
    for command in (template, lint):
        command.add_argument("--values", "-f", type=Path, action="append", default=[])
        command.add_argument("--set", action="append", default=[])
        command.add_argument("--namespace", "-n", default="default")
    template.add_argument("--kube-version", help="nothing in the chart depends on it")
    return parser


given = _arguments().parse_args()
try:
    given.run(given)
except helm_python.HelmError as error:
    sys.exit(f"Error: {error}")
