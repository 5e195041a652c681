"""Tables, verdicts, files and the plot of what was measured."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.fakes.cases import each
from tests.load import plot, registry, results, table
from tests.load.figures import Column, Target
from tests.load.machine import Machine
from tests.load.results import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.load.figures import Figures
    from tests.load.registry import Workload
    from tests.load.stack import Stack


@dataclass(frozen=True, slots=True)
class Shown:
    """A workload that is only shown."""

    letter: str = "x"
    title: str = "two rows"
    is_quick: bool = True
    columns: Sequence[Column] = (
        Column("CPU", "cpu_us", 1),
        Column("x nginx", "cpu_us", 2, "times", "nginx"),
    )
    targets: Sequence[Target] = (
        Target("gateway", "CPU", "cpu_us", 2, "times", "nginx"),
        Target("gateway", "tokens/s", "tokens", 100, is_floor=True),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return ["nginx", "gateway"]

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        yield lambda row: {"cpu_us": 1.0}


def measured() -> Measured:
    samples: dict[str, list[Figures]] = {
        "nginx": [{"cpu_us": 2.0}, {"cpu_us": 4.0}],
        "gateway": [{"cpu_us": 3000.0}, {"cpu_us": 8.0}],
        "peer": [],
    }
    return Measured(Shown(), samples, {"peer": "it fell behind"}, seconds=3.4)


def test_a_table_has_a_line_for_each_row_with_a_dash_for_what_it_lacks() -> None:
    assert table.grid(measured()).splitlines() == [
        "             CPU  x nginx",
        "nginx        3.0     1.00",
        "gateway  1,504.0   751.00",
        "peer           -        -",
    ]


def test_below_the_table_are_failures_and_targets() -> None:
    head, *_, failure, cpu, tokens = table.render(measured()).splitlines()
    assert head == "(x) two rows   [3 s]"
    assert failure == "peer failed: it fell behind"
    assert cpu == "  target gateway: CPU at most 2 x nginx: 751.00, NOT met"
    assert tokens == "  target gateway: tokens/s at least 100: not measured"


def test_a_target_that_is_met_says_so() -> None:
    target = Target("gateway", "first token", "first_us", 600, "above", "nginx")
    assert table.verdict(target, 599.0).endswith("at most 600 above nginx: 599.00, met")


def test_every_row_comes_first_in_its_turn() -> None:
    rows = ["a", "b", "c"]
    assert [table.rotated(rows, turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert table.rotated([], 1) == []


def test_the_document_has_medians_and_spreads_and_no_samples() -> None:
    document = results.as_document(
        Machine.current(), 2, [measured()], at=datetime(2026, 1, 2, tzinfo=UTC)
    )
    (workload,) = json.loads(json.dumps(document))["workloads"]
    assert workload["rows"] == {
        "nginx": {"cpu_us": [3.0, 2.0, 4.0]},
        "gateway": {"cpu_us": [1504.0, 8.0, 3000.0]},
        "peer": {},
    }
    assert workload["failures"] == {"peer": "it fell behind"}
    assert [target["met"] for target in workload["targets"]] == [False, None]


def test_files_are_written_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    said = results.save(Machine.current(), 2, [measured()])
    names = sorted(path.suffix for path in (tmp_path / "results").iterdir())
    assert ".json" in names
    assert ".txt" in names
    assert ("no plot" in said) == (".png" not in names)


def test_without_cpu_per_token_there_is_nothing_to_plot(tmp_path: Path) -> None:
    assert "no plot" in plot.save(tmp_path / "none.png", [Measured(Shown(), {"nginx": []})])


def test_workloads_are_chosen_by_letter_and_come_in_their_order() -> None:
    letters = [workload.letter for workload in registry.chosen(None, quick=False)]
    assert letters == sorted(set(letters))
    assert [one.letter for one in registry.chosen(["b", "a"], quick=False)] == ["a", "b"]
    assert {one.letter for one in registry.chosen(None, quick=True)} < set(letters)
    with pytest.raises(ValueError, match="no workload z"):
        registry.chosen(["a", "z"], quick=False)


@each("workload", registry.workloads())
def test_a_workload_shows_what_its_targets_are_about(workload: Workload) -> None:
    assert workload.title
    assert {target.figure for target in workload.targets} <= {
        column.figure for column in workload.columns
    }
