"""Operators' commands against a real database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.errors import InvalidRequest, ResourceNotFound, StartupError
from gateway.store.migrate import head_revision

if TYPE_CHECKING:
    from pathlib import Path

PEPPER = "a pepper of more than sixteen characters"


@pytest.fixture
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", PEPPER)


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.usefixtures("environment")
def test_a_tenant_gets_a_key_that_is_shown_once_and_can_be_disabled() -> None:
    assert "acme" in printed("tenants", "create", "acme")
    secret = printed("keys", "create", "acme", "--name", "laptop").strip()
    assert secret.startswith("sk-")
    assert "\n" not in secret

    (listed,) = json.loads(printed("keys", "list", "--json"))
    assert (listed["tenant"], listed["name"], listed["hint"]) == ("acme", "laptop", secret[-4:])
    table = printed("keys", "list", "acme")
    assert secret[-4:] in table
    assert "active" in table
    assert secret not in table

    assert "disabled" in printed("keys", "disable", listed["id"])
    assert "disabled" in printed("keys", "list")
    created = json.loads(printed("keys", "create", "acme", "--json"))
    assert created["key"].startswith("sk-")


@pytest.mark.usefixtures("environment")
def test_tenants_are_listed_and_disabled() -> None:
    printed("tenants", "create", "acme")
    assert "active" in printed("tenants", "list")
    printed("tenants", "disable", "acme")
    (listed,) = json.loads(printed("tenants", "list", "--json"))
    assert listed["name"] == "acme"
    assert listed["disabled_at"] is not None


@pytest.mark.usefixtures("environment")
def test_what_cannot_be_done_is_told() -> None:
    printed("tenants", "create", "acme")
    with pytest.raises(InvalidRequest):
        printed("tenants", "create", "acme")
    with pytest.raises(ResourceNotFound):
        printed("keys", "create", "globex")


@pytest.mark.usefixtures("environment")
def test_the_revision_is_shown(monkeypatch: pytest.MonkeyPatch, empty_database_url: str) -> None:
    assert head_revision() in printed("db", "current")
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    behind = CliRunner().invoke(commands, ["db", "current"])
    assert behind.exit_code == 1
    assert "never migrated" in behind.stdout
    with pytest.raises(StartupError) as caught:
        printed("tenants", "list")
    assert caught.value.remedy == "Run: harmony-gateway db upgrade"
    assert head_revision() in printed("db", "upgrade")
    assert head_revision() in printed("db", "current")
