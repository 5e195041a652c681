"""`limits`, `budgets` and `prices` against a real database."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from gateway import ids
from gateway.cli.commands import commands
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.limits.stored_bytes import WHOLE_TENANT
from gateway.replication import storage_meter
from gateway.store import usage_lines
from gateway.store.postgres.database import Database
from gateway.store.tenants import tenant_named
from tests.fakes.usage_lines import line

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", "a pepper of more than sixteen characters")
    said("tenants create acme")


def said(line: str) -> str:
    result = CliRunner().invoke(commands, line.split())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def rows(line: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said(f"{line} --json"))
    return found


def new_project(tenant: str = "acme") -> str:
    return said(f"projects create {tenant} p").strip()


def new_key(tenant: str = "acme") -> str:
    made: str = json.loads(said(f"keys create {tenant} --json"))["id"]
    return made


@pytest.mark.slow
def test_the_fullest_limits_of_storage_are_listed_first(database_url: str) -> None:
    said("tenants create globex")
    said("limits set acme --stored-bytes 1000")
    said("limits set globex --stored-bytes 100")
    assert [one["stored"] for one in rows("limits storage")] == [None, None]
    asyncio.run(measured(database_url, {"acme": 200, "globex": 90}))
    found = [(one["tenant"], one["stored"], one["limit"]) for one in rows("limits storage")]
    assert found == [("globex", 90, 100), ("acme", 200, 1000)]


async def measured(database_url: str, stored_bytes: dict[str, int]) -> None:
    """Write measurements of these tenants, as the meter does."""
    database = Database(
        database_url, pool_size_max=1, command_timeout_s=10.0, connect_timeout_s=10.0
    )
    try:
        tenants = {(await tenant_named(database, name)).id: name for name in stored_bytes}
        while (turn := await storage_meter.take_turn(database)) is not None:
            sizes = {WHOLE_TENANT: stored_bytes[tenants[turn.tenant_id]]}
            await storage_meter.write(database, turn, sizes, interval_s=60)
    finally:
        await database.close()


@pytest.mark.slow
def test_limits_are_set_changed_and_taken_away() -> None:
    project = new_project()
    said("limits set acme --requests-per-minute 60 --tokens-per-day 1000000")
    said(f"limits set acme --project {project} --model m --requests-per-minute 10 --observe")
    said("limits set acme --requests-per-minute 90 --concurrent-responses 4")
    said("limits set acme --tokens-per-day none")
    found = {(one["scope"], one["what"]): one for one in rows("limits list acme")}
    assert found["tenant", "requests"]["value"] == 90
    assert found["tenant", "responses"]["window_s"] == 0
    assert found["project", "requests"]["mode"] == "observe"
    assert len(found) == 3
    assert "requests" in said("limits list acme")
    with pytest.raises(InvalidRequest, match="90 at most"):
        said(f"limits set acme --project {project} --requests-per-minute 91")
    with pytest.raises(InvalidRequest, match="nothing to change"):
        said("limits set acme")
    with pytest.raises(InvalidRequest, match="nothing to change"):
        said("limits set acme --model other --observe")
    with pytest.raises(ResourceNotFound):
        said("limits list nobody")


@pytest.mark.slow
def test_what_is_observed_stays_so_until_it_is_to_be_enforced() -> None:
    def modes() -> list[str]:
        limits = [one["mode"] for one in rows("limits list acme")]
        return limits + [one["mode"] for one in rows("budgets list acme")]

    said("limits set acme --requests-per-minute 60 --observe")
    said("budgets set acme --tokens 5 --observe")
    said("limits set acme --requests-per-minute 90 --tokens-per-day 9")
    said("budgets set acme --tokens 6")
    assert modes() == ["observe", "observe", "observe"]
    said("limits set acme --enforce")
    said("budgets set acme --tokens 6 --enforce")
    assert modes() == ["enforce", "enforce", "enforce"]
    said("limits set acme --requests-per-minute 91 --observe")
    said("limits set acme --concurrent-responses 1")
    found = {one["what"]: one["mode"] for one in rows("limits list acme")}
    assert found == {"requests": "observe", "tokens": "enforce", "responses": "enforce"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "limits set acme --requests-per-minute 1",
        "budgets set acme --tokens 1",
        "budgets remove acme --unit tokens",
    ],
)
def test_projects_and_keys_are_those_of_the_tenant(command: str) -> None:
    said("tenants create other")
    project, key = new_project("other"), new_key("other")
    for place in (f"--project {project}", f"--key {key}", f"--key {ids.api_key_id(UUID(key))}"):
        with pytest.raises(ResourceNotFound, match=r"No (project|API key) with id"):
            said(f"{command} {place}")
        said(f"budgets set other --tokens 2 {place}")
        said(f"{command} {place}".replace("acme", "other"))
    assert rows("limits list acme") == rows("budgets list acme") == []


@pytest.mark.slow
def test_what_stands_in_the_place_of_a_key_has_limits_and_budgets() -> None:
    said("tenants create other")
    made = said("issuers create acme https://idp.example aud --jwks-url https://idp.example/keys")
    allowed = f"issuers allow acme {made.strip()} {new_project()} --match repository=a"
    rule = json.loads(said(f"{allowed} --json"))["harmony"]["api_key_id"]
    operators = "operator-issuers create https://op.example aud --tenant-claim assertion.org"
    issuer = json.loads(said(f"{operators} --tenant * --json"))["harmony"]["api_key_id"]
    for key in (rule, issuer):
        said(f"limits set acme --key {key} --requests-per-minute 1")
    with pytest.raises(ResourceNotFound):
        said(f"limits set other --key {rule} --requests-per-minute 1")
    assert len(rows("limits list acme")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "limits set acme --requests-per-minute many",
        f"limits set acme --requests-per-minute {'9' * 5_000}",
        "limits set acme --project x --requests-per-minute 1",
        "budgets set acme",
        "budgets set acme --usd 1 --tokens 1",
        "budgets set acme --tokens 1 --interval week",
        "budgets remove acme --interval week",
        "budgets remove acme --unit token",
        "budgets set acme --tokens 1 --alert-at x",
        "budgets set acme --tokens 1 --alert-at ²",
        "prices set m --input 0.0001",
        "prices set m --input dollars",
        "prices set m --input -1",
        "prices set m --input 1e999999",
        "prices set m --input 1e900000",
        "budgets set acme --usd nan",
    ],
)
def test_what_makes_no_sense_is_a_usage_error(line: str) -> None:
    assert CliRunner().invoke(commands, line.split()).exit_code == 2


@pytest.mark.slow
def test_a_budget_that_is_too_large_is_told_so() -> None:
    with pytest.raises(InvalidRequest, match=f"from 0 to {2**63 - 1}"):
        said(f"budgets set acme --tokens {2**63}")
    with pytest.raises(InvalidRequest, match=f"at {2**63 - 1} at most"):
        said(f"budgets set acme --tokens {2**62} --alert-at 100,200")
    assert rows("budgets list acme") == []


@pytest.mark.slow
def test_prices_and_budgets() -> None:
    with pytest.raises(InvalidRequest, match="No model has a price"):
        said("budgets set acme --usd 10")
    said("prices set m --input 0.05 --cached 0.005 --output 0.2 --tool-call 0.001")
    said("prices set m --output 0.1 --tenant acme --tier flex")
    ours, ofall = sorted(rows("prices list"), key=lambda one: one["tenant_id"] or "~")
    assert ofall["nano_per_unit"] == {
        "input": 50, "input_cached": 5, "output": 200, "tool_call": 1_000_000,
    }  # fmt: skip
    assert (ours["tier"], ours["nano_per_unit"]) == ("flex", {"output": 100})
    assert "ended" in said("prices end m --tenant acme --tier flex")
    with pytest.raises(ResourceNotFound, match="'other' has no such price"):
        said("prices end other")
    for typo in ("prices set m --output 0.1 --tier priorty", "prices end m --tier priorty"):
        with pytest.raises(InvalidRequest, match="'\\*', 'default', 'flex', and 'priority'"):
            said(typo)
    assert "output 200" in said("prices list")
    said("budgets set acme --usd 12.5 --alert-at 50,100")
    said(f"budgets set acme --tokens 1000 --interval day --key {new_key()} --observe")
    found = {one["scope"]: one for one in rows("budgets list acme")}
    assert (found["tenant"]["cap"], found["tenant"]["spent"]) == ("12.50", "0.00")
    assert (found["key"]["cap"], found["key"]["mode"]) == ("1000", "observe")
    assert "12.50" in said("budgets list acme")
    assert "removed" in said("budgets remove acme")
    with pytest.raises(ResourceNotFound, match="no budget of usd with interval month"):
        said("budgets remove acme")


@pytest.mark.slow
def test_an_alias_stands_for_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are counted by the id of their model, whichever name they have it under."""
    monkeypatch.setenv("GATEWAY_MODELS", '[{"id": "gpt-oss-20b", "aliases": ["small"]}]')
    said("limits set acme --model small --requests-per-minute 5")
    said("prices set small --output 1")
    assert [one["model"] for one in rows("limits list acme")] == ["gpt-oss-20b"]
    assert "ended" in said("prices end small")
    assert [one["model"] for one in rows("prices list")] == ["gpt-oss-20b"]
    said("limits set acme --model small --requests-per-minute none")
    assert rows("limits list acme") == []


@pytest.mark.slow
def test_a_price_for_a_time_that_is_over_ends_where_the_next_one_began() -> None:
    said("prices set m --output 2 --from 2026-11-10")
    said("prices end m")
    said("prices set m --output 1 --from 2026-11-01")
    first, second = rows("prices list")
    begin = int(datetime(2026, 11, 10, tzinfo=UTC).timestamp())
    assert first["valid_until"] == second["valid_from"] == begin
    assert "2026-11-10T00:00:00+00:00" in said("prices list")
    assert second["valid_until"] is not None, "nothing has a price by now"
    with pytest.raises(InvalidRequest, match="No model has a price"):
        said("budgets set acme --usd 10")


@pytest.mark.slow
def test_alerts_of_a_budget_are_those_that_were_set_last() -> None:
    def alerts() -> list[dict[str, Any]]:
        (found,) = rows("budgets list acme")
        shown: list[dict[str, Any]] = found["alerts"]
        return shown

    said("budgets set acme --tokens 1000 --alert-at 50,80,80")
    said("budgets set acme --tokens 1000 --alert-at 80,100,50")
    half, most, whole = [{"percent": n, "threshold": str(10 * n)} for n in (50, 80, 100)]
    assert alerts() == [half, most, whole]
    created = "harmony.spend_alert.created"
    entries = json.loads(said("audit list --tenant acme --json"))
    assert [one["type"] for one in entries].count(created) == 3, "none is made anew"
    said("budgets set acme --tokens 2000")
    assert alerts() == [half, most, whole], "they stay where nothing is said of them"
    said("budgets set acme --tokens 2000 --alert-at 50")
    assert alerts() == [{"percent": 50, "threshold": "1000"}]
    said("budgets set acme --tokens 2000 --interval day --alert-at 10")
    said("budgets remove acme --unit tokens --interval day")
    assert alerts() == [{"percent": 50, "threshold": "1000"}]
    assert "1000" in said("budgets list acme")
    said("budgets remove acme --unit tokens")
    said("budgets set acme --tokens 2000")
    assert alerts() == []
    said("budgets set acme --tokens 2000 --alert-at 50")
    said("budgets set acme --tokens 2000 --alert-at none")
    assert alerts() == []
    too_many = ",".join(map(str, range(1, 102)))
    before = rows("budgets list acme"), said("audit list --tenant acme --json")
    with pytest.raises(InvalidRequest, match="100 spend alerts at most"):
        said(f"budgets set acme --tokens 3000 --alert-at {too_many}")
    assert (rows("budgets list acme"), said("audit list --tenant acme --json")) == before


async def add_lines(database_url: str) -> None:
    """Three of `acme`, with 10 tokens in and 5 out each, from before there was a price."""
    database = Database(
        database_url, pool_size_max=1, command_timeout_s=10.0, connect_timeout_s=10.0
    )
    try:
        tenant = await tenant_named(database, "acme")
        await usage_lines.record_all(database, [(tenant.id, line()) for _ in range(3)])
    finally:
        await database.close()


@pytest.mark.slow
def test_usage_is_reconciled_and_sums_are_made_again(database_url: str) -> None:
    asyncio.run(add_lines(database_url))
    assert "0 have no usage line" in said("usage reconcile")
    found = json.loads(said("usage reconcile --json"))
    assert found["wrong_hours"] == []
    with pytest.raises(ResourceNotFound):
        said("usage resume nothing")
