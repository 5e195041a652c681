"""Operators' commands against a real database."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest
from typer.testing import CliRunner

from gateway import ids
from gateway.cli.command import Installation
from gateway.cli.commands import commands
from gateway.cli.tenants import list_keys
from gateway.errors import InvalidRequest, ResourceNotFound, StartupError, StoreUnavailable
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.schema import REVISION
from gateway.store.tools import tool_calls
from gateway.store.tools.tool_calls import AuditedCall
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PEPPER = "a pepper of more than sixteen characters"
GIVEN = {
    "--on-disconnect": "continue",
    "--log-retention-h": "48",
    "--response-retention-d": "90",
    "--background-running-max": "8",
    "--background-queued-max": "20",
    "--reasoning-summary": "off",
    "--reasoning-budget-tokens": "0",
    "--service-tier-max": "priority",
    "--response-messages": "allowed",
    "--web-search": "refused",
    "--code-interpreter": "refused",
    "--mcp": "refused",
    "--mcp-servers": "listed",
    "--mcp-approvals": "always",
    "--tool-calls-max": "8",
    "--tool-time-max-s": "60",
    "--tool-result-ids-max": "1000",
    "--tool-result-bytes-max": "2000",
    "--egress": "refused",
    "--egress-domains": "Docs.example, b.example",
    "--egress-denied-domains": "",
    "--containers-max": "3",
    "--container-memory-max": "4g",
    "--models": "gpt-oss-20b,team-*",
    "--usage-tags": "team,cost",
    "--projects-share-responses": "allowed",
    "--share-weight": "300",
    "--usage-by-end-user": "allowed",
    "--operator-content-access": "consent",
}


@pytest.fixture
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", PEPPER)


@contextmanager
def unwritable(kind: str) -> Iterator[None]:
    """Standard output that takes nothing."""
    path: str | int = "/dev/full"
    if kind == "unread":
        reader, path = os.pipe()
        os.close(reader)
    output = None if kind == "closed" else open(path, "w")  # noqa: SIM115 - closing it fails, too
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        yield
    with suppress(OSError):
        if output is not None:
            output.close()


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_command_works_without_standard_streams() -> None:
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    command = [sys.executable, "-m", "gateway", "tenants", "list"]
    assert subprocess.run([*closed, *command], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_key_that_has_expired_is_listed_as_such(database_url: str) -> None:
    printed("tenants", "create", "acme")
    printed("keys", "create", "acme")
    (listed,) = json.loads(printed("keys", "list", "--json"))
    assert listed["expires_at"] is None
    asyncio.run(executed(database_url, "UPDATE api_keys SET expires_at = '2026-01-01T00:00Z'"))
    (listed,) = json.loads(printed("keys", "list", "--json"))
    assert listed["expires_at"] == "2026-01-01T00:00:00+00:00"
    assert "expired 2026-01-01" in printed("keys", "list")


async def executed(database_url: str, sql: str) -> None:
    database = Database(
        database_url, pool_size_max=1, command_timeout_s=10.0, connect_timeout_s=10.0
    )
    try:
        async with database.owner_transaction() as connection:
            await connection.execute(Statement(sql))
    finally:
        await database.close()


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_key_of_a_tenant_that_is_made_meanwhile_is_listed_with_it(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed("tenants", "create", "acme")
    printed("keys", "create", "acme")
    asyncio.run(_list_keys_beside_a_new_tenant(database_url))
    assert "late" in capsys.readouterr().out


async def _list_keys_beside_a_new_tenant(database_url: str) -> None:
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'api_keys'::regclass"
    copy = "INSERT INTO {0} SELECT (jsonb_populate_record(old, to_jsonb(old) || $1)).* FROM {0} old"
    new, key = str(ids.new_uuid()), str(ids.new_uuid())
    connection = await asyncpg.connect(database_url)
    try:
        async with AsyncExitStack() as stack:
            gateway = Installation(None, stack)
            await gateway.database()
            async with connection.transaction():
                await connection.execute("LOCK TABLE api_keys")
                listing = asyncio.ensure_future(list_keys(gateway))
                while not await connection.fetchval(f"{waiting} AND NOT granted)"):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                tenant, row = {"id": new, "name": "late"}, {"id": key, "tenant_id": new}
                await connection.execute(copy.format("tenants"), json.dumps(tenant))
                await connection.execute(copy.format("api_keys"), json.dumps(row | {"hash": "x"}))
            await listing
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_the_ids_in_the_list_are_whole_and_their_beginnings_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenant = "a-tenant-with-quite-a-long-name-for-eighty-columns-of-text"
    monkeypatch.setenv("COLUMNS", "40")
    printed("tenants", "create", tenant)
    for name in ("laptop", "build-server-of-the-other-building"):
        printed("keys", "create", tenant, "--name", name)
    first, second = (one["id"] for one in json.loads(printed("keys", "list", "--json")))
    table = printed("keys", "list")
    assert first in table
    assert second in table
    assert len(table.splitlines()) == 3
    assert tenant in printed("tenants", "list")

    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=True))
    shared = "".join(one for one, _ in same)
    # Ids begin with the time: seconds apart they share eight characters, but for once a minute.
    with pytest.raises((InvalidRequest, ResourceNotFound), match=r"Several keys|no key"):
        printed("keys", "disable", shared)
    with pytest.raises(ResourceNotFound):
        printed("keys", "disable", first[:3])
    assert "disabled" in printed("keys", "disable", f"{first[:-1]}…")
    listed = json.loads(printed("keys", "list", "--json"))
    assert [one["disabled_at"] is None for one in listed] == [False, True]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    "command", [("keys", "create"), ("keys", "list"), ("tenants", "show"), ("tenants", "disable")]
)
def test_a_tenant_that_is_nearly_right_is_named(command: tuple[str, ...]) -> None:
    printed("tenants", "create", "acme")
    with pytest.raises(ResourceNotFound, match=r"no tenant 'acne'\. Did you mean 'acme'"):
        printed(*command, "acne")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_key_has_a_dialect_and_it_is_listed() -> None:
    printed("tenants", "create", "acme")
    printed("keys", "create", "acme")
    options = ("--name", "suite", "--dialect", "openresponses", "--json")
    assert json.loads(printed("keys", "create", "acme", *options))["dialect"] == "openresponses"
    listed = json.loads(printed("keys", "list", "--json"))
    assert [one["dialect"] for one in listed] == ["openai", "openresponses"]
    assert "openresponses" in printed("keys", "list")
    unknown = CliRunner().invoke(commands, ["keys", "create", "acme", "--dialect", "klingon"])
    assert unknown.exit_code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_tenants_are_listed_and_disabled() -> None:
    printed("tenants", "create", "acme")
    assert "active" in printed("tenants", "list")
    printed("tenants", "disable", "acme")
    (listed,) = json.loads(printed("tenants", "list", "--json"))
    assert listed["name"] == "acme"
    assert listed["disabled_at"] is not None


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_tenant_has_the_policy_of_the_configuration_until_it_gets_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_RETENTION__LOG_S", "7200")
    monkeypatch.setenv("GATEWAY_GENERATION__REASONING_BUDGET_TOKENS", "4096")
    printed("tenants", "create", "acme")
    shown = json.loads(printed("tenants", "show", "acme", "--json"))
    assert (shown["name"], shown["disabled_at"]) == ("acme", None)
    assert shown["policy"] == {
        "on_disconnect": "cancel",
        "log_retention_s": 7200,
        "response_retention_s": 30 * 86_400,
        "background_running_max": 64,
        "background_queued_max": 1000,
        "reasoning_summary": "analysis",
        "reasoning_budget_tokens": 4096,
        "service_tier_max": "default",
        "response_messages": "refused",
        "web_search": "allowed",
        "code_interpreter": "allowed",
        "mcp": "allowed",
        "mcp_servers": "any",
        "mcp_approvals": "request",
        "tool_calls_max": 64,
        "tool_time_max_s": 900,
        "tool_result_ids_max": 48_000,
        "tool_result_bytes_max": 64 * 1024 * 1024,
        "egress": "allowed",
        "egress_domains": "",
        "egress_denied_domains": "",
        "containers_max": 1000,
        "container_memory_max": "64g",
        "models": "*",
        "usage_tags": "",
        "projects_share_responses": "refused",
        "share_weight": 100,
        "usage_by_end_user": "refused",
        "operator_content_access": "never",
    }
    assert set(shown["own"].values()) == {None}

    options = [word for option in GIVEN.items() for word in option]
    changed = json.loads(printed("tenants", "set", "acme", *options, "--json"))
    assert changed["own"] == changed["policy"]
    times = [48 * 3600, 90 * 86_400]
    words = ["priority", "allowed", *["refused"] * 3, "listed", "always"]
    terms = [1000, 2000, "refused", "docs.example b.example", "", 3, "4g", "gpt-oss-20b,team-*"]
    terms += ["team,cost", "allowed", 300, "allowed", "consent"]
    numbers = [8, 60]
    assert list(changed["own"].values()) == [
        *("continue", *times, 8, 20, "off", 0, *words, *numbers, *terms)
    ]

    kept = json.loads(printed("tenants", "set", "acme", "--log-retention-h", "default", "--json"))
    assert kept["own"] == changed["own"] | {"log_retention_s": None}
    assert kept["policy"]["log_retention_s"] == 7200
    back = [word for option in GIVEN for word in (option, "default")]
    taken_back = json.loads(printed("tenants", "set", "acme", *back, "--json"))
    assert taken_back == shown


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_calls_of_hosted_tools_are_shown_without_what_they_said(database_url: str) -> None:
    printed("tenants", "create", "acme")
    (tenant,) = json.loads(printed("tenants", "list", "--json"))
    call = AuditedCall(
        response=ids.new_uuid(),
        ordinal=0,
        attempt=1,
        kind="mcp",
        server="registry:1",
        tool="shop.order",
        arguments_hash=bytes(32),
        arguments_bytes=2,
        result_bytes=3,
        result_ids=1,
        outcome="ok",
        duration_ms=17,
        replica="a",
        at=datetime.now(UTC),
        approval="user",
        approval_request_id="mcpr_1",
        hosts=("shop.example",),
    )

    async def record() -> None:
        database = Database(
            database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30
        )
        try:
            await tool_calls.record_all(database, [(TenantId(UUID(tenant["id"])), call)])
        finally:
            await database.close()

    asyncio.run(record())
    (shown,) = json.loads(printed("tenants", "calls", "acme", "--json"))
    assert shown["approval_request_id"] == "mcpr_1"
    assert shown["hosts"] == ["shop.example"]
    table = printed("tenants", "calls", "acme", "--rows-max", "5")
    assert "shop.order" in table
    assert "shop.example" in table
    assert json.loads(printed("tenants", "calls", "acme", "--hours", "0", "--json")) == []
    with pytest.raises(ResourceNotFound):
        printed("tenants", "calls", "acne")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_policy_is_shown_with_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_RETENTION__RESPONSE_S", "90001")
    printed("tenants", "create", "acme")
    lines = printed("tenants", "set", "acme", "--log-retention-h", "25").splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["log_retention_s"] == "90000 (25 h) tenant acme"
    assert rows["response_retention_s"] == "90001 default"
    assert rows["on_disconnect"] == "cancel default"
    assert rows["service_tier_max"] == "default default"
    assert printed("tenants", "show", "acme").splitlines() == lines


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("option", ["--log-retention-h", "--reasoning-budget-tokens"])
@pytest.mark.parametrize("value", ["many", "-1", "1.5", "", "1" * 10])
def test_what_is_no_number_is_refused_with_the_name_of_the_option(option: str, value: str) -> None:
    result = CliRunner().invoke(commands, ["tenants", "set", "acme", option, value])
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("option", "value"),
    [("--reasoning-summary", "model"), ("--service-tier-max", "flex"), ("--on-disconnect", "no")],
)
def test_what_is_none_of_the_words_is_refused_with_the_name_of_the_option(
    option: str, value: str
) -> None:
    result = CliRunner().invoke(commands, ["tenants", "set", "acme", option, value])
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_policy_out_of_bounds_or_of_nobody_is_refused() -> None:
    printed("tenants", "create", "acme")
    with pytest.raises(InvalidRequest, match="background_running_max"):
        printed("tenants", "set", "acme", "--background-running-max", "0")
    with pytest.raises(InvalidRequest, match="nothing to change"):
        printed("tenants", "set", "acme")
    with pytest.raises(ResourceNotFound, match="globex"):
        printed("tenants", "set", "globex", "--on-disconnect", "continue")
    with pytest.raises(ResourceNotFound, match="globex"):
        printed("tenants", "show", "globex")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_what_cannot_be_done_is_told() -> None:
    printed("tenants", "create", "acme")
    with pytest.raises(InvalidRequest):
        printed("tenants", "create", "acme")
    with pytest.raises(ResourceNotFound):
        printed("keys", "create", "globex")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_the_revision_is_shown(monkeypatch: pytest.MonkeyPatch, empty_database_url: str) -> None:
    assert REVISION in printed("db", "current")
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    behind = CliRunner().invoke(commands, ["db", "current"])
    assert behind.exit_code == 1
    assert "never migrated" in behind.stdout
    with pytest.raises(StartupError) as caught:
        printed("tenants", "list")
    assert caught.value.remedy == "Run: harmony-gateway db upgrade"
    assert REVISION in printed("db", "upgrade")
    assert REVISION in printed("db", "current")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_one_round_of_maintenance_says_what_it_did() -> None:
    first = json.loads(printed("db", "maintain", "--json"))
    assert first == {
        "days_owned": True,
        "days_made": 4,
        "days_dropped": 0,
        "days_busy": 0,
        "log_rows": 0,
        "responses": 0,
        "idempotency_keys": 0,
        "traces": 0,
        "tool_calls": 0,
        "audit": 0,
        "pages": 0,
        "approvals": 0,
        "consents": 0,
        "files": 0,
        "containers": 0,
    }
    lines = printed("db", "maintain").splitlines()
    assert [line.split()[1] for line in lines] == [
        "logs", "rows", "audit", "idempotency", "traces", "audit", "pages", "approvals", "consents",
        "files", "containers", "responses",
    ]  # fmt: skip
    assert "0 days made, 0 dropped" in lines[0]


@pytest.mark.usefixtures("environment")
def test_maintenance_without_a_database_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@127.0.0.1:9/d")
    with pytest.raises(StoreUnavailable):
        printed("db", "maintain")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("kind", ["closed", "unread", "full"])
def test_a_key_that_cannot_be_printed_is_disabled(kind: str) -> None:
    printed("tenants", "create", "acme")
    project = printed("projects", "create", "acme", "web").strip()
    for line in (
        "keys create acme",
        "keys create acme --admin --json",
        f"projects key acme {project}",
        "operators create ann",
    ):
        with unwritable(kind), pytest.raises(StartupError, match="standard output cannot be"):
            commands(line.split(), standalone_mode=False)
    keys = [*json.loads(printed("keys", "list", "--json"))]
    assert len(keys) == 3
    keys += json.loads(printed("operators", "list", "--json"))
    assert len(keys) == 4
    assert all(one["disabled_at"] for one in keys)
