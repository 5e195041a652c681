"""`plan`: its figures are those of docs/sizing.md, and what it prints is a configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.cli.plan import BUSY, FIGURES, Load, planned
from gateway.settings import load_settings

SIZING = (Path(__file__).parents[3] / "docs" / "sizing.md").read_text(encoding="utf-8")
LOAD = Load(
    streams=1_000,
    tokens_per_s=20_000,
    retention_days=30,
    log_days=1,
    durable=0.5,
    prompt_tokens=2_000,
    output_tokens=500,
)


def test_the_table_of_the_documentation_has_these_figures() -> None:
    rows = [
        f"| {one.what} | {one.value:,} {one.unit}".rstrip() + f" | {one.source} |"
        for one in FIGURES
    ]
    table = SIZING[SIZING.index(f"| {FIGURES[0].what} | ") :].partition("\n\n")[0]
    assert table.splitlines() == rows


def test_a_load_is_added_up() -> None:
    plan = planned(LOAD)
    # 10,000 tokens of each kind, and 40 requests a second.
    assert plan.cores == 1.66
    assert plan.replicas == 4
    assert plan.replica_memory_mib == 320
    # Responses of 30 days, lines of 400, logs of one; and a third.
    gib = (40 * 86_400 * (19_500 * 30 + 520 * 400) + 10_000 * 86_400 * 25) * 1.3 / 2**30
    assert abs(plan.postgres_disk_gib - gib) <= 1
    assert plan.max_connections == 4 * 17 + 10


def test_more_of_anything_never_takes_less() -> None:
    base = planned(LOAD)
    for more in (
        {"streams": 50_000},
        {"tokens_per_s": 500_000.0},
        {"retention_days": 300.0},
        {"durable": 1.0},
        {"prompt_tokens": 20_000},
    ):
        plan = planned(replace(LOAD, **more))
        assert plan.replicas >= base.replicas
        assert plan.postgres_disk_gib >= base.postgres_disk_gib
        assert plan.max_connections >= base.max_connections
        assert plan.cores / (plan.replicas - 1) <= BUSY.value


def test_the_smallest_load_has_a_spare_replica() -> None:
    plan = planned(replace(LOAD, streams=1, tokens_per_s=1.0))
    assert (plan.replicas, plan.postgres_cores) == (3, 2)


def test_its_settings_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["plan", "--streams", "9000", "--tokens-per-s", "90000", "--retention-days", "7"]
    printed = CliRunner().invoke(commands, asked)
    assert printed.exit_code == 0, printed.output
    path = tmp_path / "gateway.yaml"
    path.write_text(printed.stdout.partition("# gateway.yaml\n")[2], encoding="utf-8")
    settings = load_settings(path, environ={})
    assert settings.retention.response_s == 7 * 86_400
    told = json.loads(CliRunner().invoke(commands, [*asked, "--json"]).stdout)
    assert told["settings"]["limits"]["responses_in_flight_max"] == (
        settings.limits.responses_in_flight_max
    )
    assert settings.limits.responses_in_flight_max * (told["replicas"] - 1) >= 9_000


@pytest.mark.parametrize("wrong", ["--tokens-per-s=inf", "--retention-days=1e308"])
def test_what_is_beyond_all_sizes_is_refused(wrong: str) -> None:
    asked = CliRunner().invoke(
        commands, ["plan", "--streams=5", "--tokens-per-s=10", wrong], catch_exceptions=False
    )
    assert asked.exit_code == 2
    assert wrong.partition("=")[0] in asked.output
