"""Commands for projects and operators, against a real database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.errors import InvalidRequest, ResourceNotFound

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", "a pepper of more than sixteen characters")


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_project_gets_a_key_and_is_archived() -> None:
    printed("tenants", "create", "acme")
    project = printed("projects", "create", "acme", "Support bot").strip()
    assert project.startswith("proj_")
    listed = json.loads(printed("projects", "list", "acme", "--json"))
    assert [one["name"] for one in listed] == ["Default project", "Support bot"]
    assert "Support bot" in printed("projects", "list", "acme")
    options = ("--scope", "api.all.read", "--cidr", "10.0.0.0/8", "--model", "gpt-oss-*")
    made = json.loads(printed("projects", "key", "acme", project, *options, "--json"))
    assert made["api_key"]["value"].startswith("sk-proj-")
    assert made["api_key"]["harmony"] == {
        "scopes": ["api.all.read"],
        "allowed_cidrs": ["10.0.0.0/8"],
        "allowed_models": ["gpt-oss-*"],
        "replaced_by": None,
    }
    assert printed("projects", "key", "acme", project).startswith("sk-proj-")
    assert project in printed("projects", "archive", "acme", project)
    states = {
        one["id"]: one["status"]
        for one in json.loads(printed("projects", "list", "acme", "--json"))
    }
    assert states[project] == "archived"
    with pytest.raises(InvalidRequest, match="archived"):
        printed("projects", "key", "acme", project)


@pytest.mark.slow
def test_an_admin_key_is_told_by_its_beginning() -> None:
    printed("tenants", "create", "acme")
    assert printed("keys", "create", "acme", "--admin").startswith("sk-admin-")
    assert printed("keys", "create", "acme").startswith("sk-proj-")


@pytest.mark.slow
def test_unknown_tenants_and_projects_are_refused() -> None:
    with pytest.raises(ResourceNotFound, match="no tenant"):
        printed("projects", "list", "nobody")
    printed("tenants", "create", "acme")
    with pytest.raises(ResourceNotFound, match="No project"):
        printed("projects", "archive", "acme", "proj_nonsense")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[31mred", "x" * 257])
def test_names_are_those_that_the_admin_api_takes(name: str) -> None:
    printed("tenants", "create", "acme")
    project = printed("projects", "create", "acme", "Bot").strip()
    for words in (
        ("projects", "create", "acme", name),
        ("projects", "key", "acme", project, "--name", name),
        ("operators", "create", name),
    ):
        with pytest.raises(InvalidRequest, match="Invalid 'name'"):
            printed(*words)


@pytest.mark.slow
def test_a_key_lives_no_longer_than_the_admin_api_allows() -> None:
    printed("tenants", "create", "acme")
    project = printed("projects", "create", "acme", "Bot").strip()
    too_long = ("--expires-in-s", str(10**17))
    for words in (("projects", "key", "acme", project), ("operators", "create", "anna")):
        with pytest.raises(InvalidRequest, match="Invalid 'expires_in_seconds'"):
            printed(*words, *too_long)


@pytest.mark.slow
def test_an_operator_gets_a_key_that_can_be_disabled() -> None:
    assert printed("operators", "create", "anna").startswith("sk-op-")
    made = json.loads(printed("operators", "create", "ben", "--expires-in-s", "60", "--json"))
    assert made["expires_at"] is not None
    assert "disabled" in printed("operators", "disable", made["id"])
    listed = json.loads(printed("operators", "list", "--json"))
    assert [(one["name"], one["disabled_at"] is None) for one in listed] == [
        ("anna", True), ("ben", False),
    ]  # fmt: skip
    assert "disabled" in printed("operators", "list")
    for unknown in ("00000000-0000-7000-8000-000000000000", "nonsense"):
        with pytest.raises(ResourceNotFound):
            printed("operators", "disable", unknown)


@pytest.mark.slow
def test_an_issuer_is_trusted_and_its_tokens_are_let_in() -> None:
    printed("tenants", "create", "acme")
    project = printed("projects", "create", "acme", "Bot").strip()
    issuer, audience = "https://token.example.com", "https://gateway.example.com"
    options = ("--bearer", "--algorithm", "ES256", "--attribute", "team=assertion.org.team")
    made = json.loads(printed("issuers", "create", "acme", issuer, audience, *options, "--json"))
    assert made["verification"]["discovery_url"] == f"{issuer}/.well-known/openid-configuration"
    assert made["harmony"]["bearer"] is True
    assert made["harmony"]["algorithms"] == ["ES256"]
    words = ("issuers", "allow", "acme", made["id"], project)
    matches = ("--match", "team=ml", "--match", "email_verified=true")
    rule = json.loads(printed(*words, *matches, "--scope", "responses.write", "--json"))
    assert rule["attribute_matchers"] == {"team": "ml", "email_verified": True}
    assert rule["permissions"] == {"type": "restricted", "scopes": ["responses.write"]}
    more = ("--match", "team=hr", "--account", rule["service_account_id"])
    again = printed(*words, *more).strip()
    listed = json.loads(printed("issuers", "rules", "acme", made["id"], "--json"))
    assert [one["id"] for one in listed] == [rule["id"], again]
    assert again in printed("issuers", "rules", "acme", made["id"])
    assert again in printed("issuers", "disallow", "acme", made["id"], again)
    assert "header" in printed("issuers", "list", "acme")
    assert "confirmed" in printed("issuers", "confirm", "acme", made["id"])
    assert "operator" in printed("issuers", "list", "acme")
    assert "withdrawn" in printed("issuers", "confirm", "acme", made["id"], "--withdraw")
    with pytest.raises(InvalidRequest, match="no NAME=VALUE"):
        printed(*words, "--match", "team")
    with pytest.raises(InvalidRequest, match="Supported values"):
        printed("issuers", "create", "acme", issuer, audience, "--algorithm", "HS256")
    assert made["id"] in printed("issuers", "delete", "acme", made["id"])
    assert json.loads(printed("issuers", "list", "acme", "--json")) == []
    made_before = printed("audit", "list", "--tenant", "acme").count("service_account.created")
    with pytest.raises(ResourceNotFound, match="identity provider"):
        printed(*words, "--match", "team=ml")
    accounts = printed("audit", "list", "--tenant", "acme").count("service_account.created")
    assert accounts == made_before == 1
    other = printed("issuers", "create", "acme", issuer, "other").strip()
    with pytest.raises(ResourceNotFound, match="No project"):
        printed("issuers", "allow", "acme", other, "proj_x", "--match", "a=b")


@pytest.mark.slow
def test_an_issuer_of_operators_names_tenants() -> None:
    printed("tenants", "create", "acme")
    words = ("operator-issuers", "create", "https://sso.example.com", "gateway")
    claims = ("--tenant-claim", "assertion.org", "--role-claim", "assertion.roles")
    role = ("--role", "user=responses.write,models.read")
    made = json.loads(printed(*words, *claims, *role, "--tenant", "acme", "--json"))
    assert made["tenants"] == ["acme"]
    assert made["roles"] == {"user": ["models.read", "responses.write"]}
    assert [one["attribute"] for one in made["attribute_transformations"]] == [
        "harmony.tenant", "harmony.role",
    ]  # fmt: skip
    assert "acme" in printed("operator-issuers", "list")
    with pytest.raises(InvalidRequest, match="already"):
        printed(*words, *claims, "--tenant", "*")
    with pytest.raises(InvalidRequest, match="no tenant 'nobody'"):
        printed(*words, *claims, "--tenant", "nobody")
    assert made["id"] in printed("operator-issuers", "delete", made["id"])
    assert json.loads(printed("operator-issuers", "list", "--json")) == []
