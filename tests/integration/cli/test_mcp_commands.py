"""`mcp`: servers are registered, listed without their secrets, tried, and removed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import commands
from gateway.errors import InvalidRequest, ResourceNotFound
from tests.fakes.mcp_server import Process, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SECRET = "Bearer good"


@pytest.fixture
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", "a pepper of more than sixteen characters")
    monkeypatch.setenv("GATEWAY_TOOLS__MCP__ENABLED", "true")
    monkeypatch.setenv("GATEWAY_TOOLS__MCP__NETWORKS", '["127.0.0.0/8"]')


@pytest.fixture(scope="module")
def denied() -> Iterator[Process]:
    with serving("denied") as started:
        yield started


def invoked(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(commands, ["mcp", *arguments], input=stdin, catch_exceptions=False)


def printed(*arguments: str, stdin: str | None = None) -> str:
    result = invoked(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_server_is_registered_with_sealed_headers_and_answers(
    denied: Process, tmp_path: Path
) -> None:
    sent = f"Authorization: {SECRET}\n\nX-Team: a\n"
    printed("add", "crm", f"{denied.url}?key=k", "--headers-from", "-", stdin=sent)
    (tmp_path / "headers").write_text(sent, encoding="utf-8")
    with_all = ("--trusted", "--always-ask", "--allow", "say", "--allow", "add")
    more = ("--purpose", "mcp", "--purpose", "search", "--call-timeout-s", "90")
    printed("add", "full", denied.url, "--headers-from", "headers", *with_all, *more)
    crm, full = json.loads(printed("list", "--json"))
    assert (crm["label"], crm["url"]) == ("crm", denied.url)
    assert crm["headers"] == ["authorization", "x-team"]
    assert full == {
        "label": "full",
        "url": denied.url,
        "headers": ["authorization", "x-team"],
        "trusted": True,
        "always_asks": True,
        "allowed_tools": ["add", "say"],
        "purposes": ["mcp", "search"],
        "call_timeout_s": 90,
    }
    table = printed("list")
    assert "good" not in table
    assert "key=k" not in table
    assert "tools" in printed("check", "full")
    assert "removed" in printed("remove", "crm")
    assert [one["label"] for one in json.loads(printed("list", "--json"))] == ["full"]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_server_that_does_not_answer_as_it_should_is_told(denied: Process) -> None:
    assert "no MCP server" in printed("check")
    printed("add", "denied", denied.url)
    result = invoked("check")
    assert result.exit_code == 1
    assert "401" in result.stdout
    sent = f"Authorization: {SECRET}"
    printed("add", "other", denied.url, "--allow", "nothing", "--headers-from", "-", stdin=sent)
    result = invoked("check", "other")
    assert (result.exit_code, "nothing" in result.stdout) == (1, True)
    doctor = CliRunner().invoke(commands, ["doctor", "--json"], catch_exceptions=False)
    told = {one["name"]: one for one in json.loads(doctor.stdout)["findings"]}
    assert (told["mcp denied"]["ok"], told["mcp denied"]["remedy"] != "") == (False, True)
    assert "mcp" not in told


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_server_inside_of_a_network_is_told_which_setting_opens_it(
    monkeypatch: pytest.MonkeyPatch, denied: Process
) -> None:
    monkeypatch.delenv("GATEWAY_TOOLS__MCP__NETWORKS")
    printed("add", "inside", denied.url)
    result = invoked("check")
    assert result.exit_code == 1
    assert "tools.mcp.networks" in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_server_is_of_all_tenants_or_of_one(denied: Process) -> None:
    runner = CliRunner()
    assert runner.invoke(commands, ["tenants", "create", "acme"]).exit_code == 0
    printed("add", "crm", denied.url)
    printed("add", "crm", denied.url, "--tenant", "acme", "--trusted")
    assert [one["trusted"] for one in json.loads(printed("list", "--json"))] == [False]
    own = json.loads(printed("list", "--tenant", "acme", "--json"))
    assert [one["trusted"] for one in own] == [True]
    with pytest.raises(InvalidRequest, match="already"):
        invoked("add", "crm", denied.url)
    printed("remove", "crm", "--tenant", "acme")
    with pytest.raises(ResourceNotFound):
        invoked("remove", "crm", "--tenant", "acme")
    with pytest.raises(ResourceNotFound):
        invoked("list", "--tenant", "nobody")
    with pytest.raises(ResourceNotFound):
        invoked("check", "nothing")


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (("a.b", "https://mcp.example"), None),
        (("a", "ftp://mcp.example"), None),
        (("a", "https://u:p@mcp.example"), None),
        (("a", "https://mcp.example", "--purpose", "magic"), None),
        (("a", "https://mcp.example", "--call-timeout-s", "601"), None),
        (("a", "https://mcp.example", "--headers-from", "-"), "secret-value"),
        (("a", "https://mcp.example", "--headers-from", "-"), f"X-A: {'b' * 65_536}"),
        (("a", "https://mcp.example", "--headers-from", "no-such-file"), None),
    ],
)
def test_what_cannot_be_meant_is_refused_without_repeating_secrets(
    arguments: tuple[str, ...], stdin: str | None
) -> None:
    result = invoked("add", *arguments, stdin=stdin)
    assert result.exit_code == 2
    assert "secret-value" not in result.output


def test_headers_that_no_server_may_be_sent_are_refused() -> None:
    with pytest.raises(InvalidRequest) as raised:
        invoked("add", "a", "https://mcp.example", "--headers-from", "-", stdin="Cookie: secret")
    assert "secret" not in raised.value.message
