"""The boards for Grafana are what the script writes, and read metrics that exist."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from scripts.dashboards.boards import BOARDS
from scripts.dashboards.panels import COLUMNS, FOLDER, encoded
from tests.fakes.boards import asked, boards, panels, recorded
from tests.fakes.promql import unknown

if TYPE_CHECKING:
    from pathlib import Path

EXPRESSIONS = list(asked())


def test_the_files_are_what_the_script_writes() -> None:
    written = {f"{board.name.lower()}.json": encoded(board) for board in BOARDS}
    assert {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()} == written


def test_there_is_a_board_for_each_reader() -> None:
    assert set(boards()) == {"overview", "fleet", "tenants", "durability", "tools", "cost"}


@pytest.mark.slow
def test_every_expression_reads_metrics_and_labels_that_exist() -> None:
    missing = {one: unknown(one.over("5m"), recorded()) for one in EXPRESSIONS}
    assert {one: names for one, names in missing.items() if names} == {}


@pytest.mark.parametrize("name", boards())
def test_a_board_can_be_read(name: str) -> None:
    board = boards()[name]
    assert board["uid"] == f"harmony-gateway-{name}"
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "instance"]
    assert board["links"][0]["tags"] == board["tags"]
    assert {one["name"] for one in board["annotations"]["list"]} == {"Starts", "Alerts"}
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for panel in panels(board):
        assert "?" in panel["description"] or panel["type"] == "stat", panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(one["datasource"] == panel["datasource"] for one in panel["targets"])
        if panel["type"] != "stat":
            legends = [one["legendFormat"] for one in panel["targets"]]
            assert all(legends), panel["title"]
            assert len(set(legends)) == len(legends), panel["title"]


@pytest.mark.parametrize("name", boards())
def test_panels_of_a_board_do_not_lie_on_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in boards()[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_row_of_panels_fills_the_width() -> None:
    for board in boards().values():
        widths: dict[int, int] = {}
        for panel in board["panels"]:
            place: dict[str, Any] = panel["gridPos"]
            widths[place["y"]] = widths.get(place["y"], 0) + place["w"]
        assert set(widths.values()) == {COLUMNS}, board["title"]


@pytest.mark.slow
def test_prometheus_agrees(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    recordings = [
        {"record": f"board:{number}", "expr": one.over("5m")}
        for number, one in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "boards.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": recordings}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(recordings)} rules found" in done.stdout
