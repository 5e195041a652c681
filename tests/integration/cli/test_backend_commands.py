"""`backends`: which inference servers there are, and which get nothing new."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.errors import StartupError
from tests.fakes.simulator import simulator
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.integration.cli.test_access_commands import environment, printed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.simulator import RunningSimulator

__all__ = ["environment"]

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSimulator]:
    with simulator(WaywardOptions(models=("gpt-oss-20b",))) as running:
        yield running


@pytest.fixture(autouse=True)
def _backends(server: RunningSimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.yaml"
    path.write_text(f"backends:\n  - {{name: gpu-2, url: '{server.url}'}}\n")
    given = [{"name": "gpu-1", "url": "http://127.0.0.1:1"}]
    found = [{"name": "file", "kind": "file", "path": str(path)}]
    monkeypatch.setenv("GATEWAY_BACKENDS", json.dumps(given))
    monkeypatch.setenv("GATEWAY_DISCOVERY", json.dumps(found))
    monkeypatch.setattr("gateway.cli.backends.DRAIN_POLL_S", 0.01)


def listed() -> dict[str, dict[str, Any]]:
    body = json.loads(printed("backends", "list", "--json"))
    return {one["name"]: one for one in body["backends"]}


@pytest.mark.slow
def test_backends_are_listed_with_what_they_say_of_themselves(server: RunningSimulator) -> None:
    rows = listed()
    assert rows["gpu-1"]["state"] == "unreachable"
    assert rows["gpu-1"]["problem"]
    assert rows["gpu-2"] == {
        "name": "gpu-2",
        "state": "healthy",
        "models": ["gpt-oss-20b"],
        "engine": "vLLM 0.32.0",
        "in_flight": None,
        "source": "file",
        "url": server.url,
        "problem": None,
    }
    table = printed("backends", "list").splitlines()
    assert " ".join(table[0].split()) == "NAME STATE MODELS ENGINE IN FLIGHT SOURCE URL"
    assert table[2].split()[:3] == ["gpu-2", "healthy", "gpt-oss-20b"]


@pytest.mark.slow
def test_one_that_no_gateway_uses_is_not_called_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulator(WaywardOptions(models=("gpt-oss-20b",), version="0.9.0")) as old:
        given = [{"name": "old", "url": old.url}]
        monkeypatch.setenv("GATEWAY_BACKENDS", json.dumps(given))
        row = listed()["old"]
    assert (row["state"], row["engine"]) == ("unusable", "vLLM 0.9.0")
    assert "Upgrade it to 0.10.2 or newer" in row["problem"]


@pytest.mark.slow
def test_a_backend_is_drained_until_it_is_not() -> None:
    assert "gpu-2 gets nothing new" in printed("backends", "drain", "gpu-2")
    assert listed()["gpu-2"]["state"] == "draining"
    assert "nothing of gpu-2 is in flight" in printed("backends", "drain", "gpu-2", "--wait")
    assert "gets requests again" in printed("backends", "undrain", "gpu-2")
    assert listed()["gpu-2"]["state"] == "healthy"
    assert CliRunner().invoke(commands, ["backends", "undrain", "gpu-2"]).exit_code == 1


def test_a_name_that_nobody_has_is_not_drained() -> None:
    with pytest.raises(StartupError, match="there is no backend 'gpu-22'") as raised:
        printed("backends", "drain", "gpu-22")
    assert "'gpu-2'" in raised.value.remedy


@pytest.mark.slow
def test_a_source_that_fails_is_told_and_any_name_may_be_drained(tmp_path: Path) -> None:
    (tmp_path / "found.yaml").unlink()
    answer = CliRunner().invoke(commands, ["backends", "list", "--json"])
    assert answer.exit_code == 1
    body = json.loads(answer.stdout)
    assert [one["name"] for one in body["backends"]] == ["gpu-1"]
    assert "cannot read it" in body["faults"][0]
    assert "gets nothing new" in printed("backends", "drain", "gpu-9")
    printed("backends", "undrain", "gpu-9")


@pytest.mark.slow
def test_doctor_shows_the_sources(tmp_path: Path) -> None:
    answer = CliRunner().invoke(commands, ["doctor", "--json"])
    findings = {one["name"]: one for one in json.loads(answer.stdout)["findings"]}
    assert findings["source file"]["detail"] == "1 backends: gpu-2"
    assert findings["backend gpu-2"]["ok"]
    (tmp_path / "found.yaml").write_text("")
    answer = CliRunner().invoke(commands, ["doctor", "--json"])
    findings = {one["name"]: one for one in json.loads(answer.stdout)["findings"]}
    assert not findings["source file"]["ok"]
    assert "docs/backends.md" in findings["source file"]["remedy"]
