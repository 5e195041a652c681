"""The README's figures are those of the last run of `make bench`, and not old."""

from __future__ import annotations

import json

import pytest

from tests.load import readme_figures
from tests.load.processes import ROOT

RUN = ROOT / "tests" / "load" / "results" / "20261123-065947-5b58c2d.json"


def test_the_readme_has_the_figures_of_the_data_file() -> None:
    assert readme_figures.in_readme() == readme_figures.section(readme_figures.read())


def test_a_run_brings_figures_and_its_commit() -> None:
    document = json.loads(RUN.read_text("utf-8"))
    known = readme_figures.read()
    only_b = {
        **document,
        "workloads": [one for one in document["workloads"] if one["letter"] == "b"],
    }
    first = readme_figures.updated(known, only_b)
    assert (first["h"], first["e"]) == (known["h"], known["e"])
    assert first["b"]["commit"] == "5b58c2d"
    shown = readme_figures.section(readme_figures.updated(known, document))
    assert "| 44 μs | nginx 7 | `make bench ONLY=b` |" in shown
    assert "| 283,229 | | `make bench ONLY=h` |" in shown
    assert shown.endswith("Measured on 2 cores at `5b58c2d`")


def test_the_figures_are_not_old() -> None:
    # Of figures without a commit the README says that they were measured before.
    commits = {one["commit"] for one in readme_figures.read().values()} - {None}
    assert commits
    ages = {commit: readme_figures.commits_since(commit) for commit in commits}
    if None in ages.values():
        pytest.skip(f"this checkout does not have the history since {ages}")
    too_old = {
        commit: age for commit, age in ages.items() if (age or 0) > readme_figures.COMMITS_MAX
    }
    assert too_old == {}, "measure again, on a machine that is idle: make bench ONLY=b,e,h"
