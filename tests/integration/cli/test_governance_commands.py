"""Commands for what is kept of tenants, their keys and the audit log, against a real database."""

from __future__ import annotations

import asyncio
import json
import math
import zipfile
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
import yaml
from typer.testing import CliRunner

from gateway import ids
from gateway.cli.commands import commands
from gateway.errors import ConfigError, DataHeld, InvalidRequest, ResourceNotFound, StoreError
from gateway.metering import Metering, end_user_of
from gateway.settings import load_settings
from gateway.store import usage_lines
from gateway.store.usage_lines import Metered, UsageLine
from gateway.tenancy import TenantId
from tests.conftest import opened
from tests.fakes.key_services import sealing
from tests.fakes.logins import SERVING, make_roles
from tests.fakes.stored import COMPLETED, USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.postgres import PostgresServer


@pytest.fixture(autouse=True)
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", "a pepper of more than sixteen characters")
    printed("tenants", "create", "acme")


@pytest.fixture
def sealed(tmp_path: Path, empty_database_url: str) -> None:
    """Encryption at rest is configured."""
    section = sealing(tmp_path, empty_database_url) | {"tenants": "listed"}
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump({"encryption": section}))


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    return result.exit_code, result.stdout


def printed(*arguments: str) -> str:
    code, output = told(*arguments)
    assert code == 0, output
    return output


def execute(url: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


def chains() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(printed("audit", "verify", "--json"))
    return found


@pytest.mark.slow
def test_what_is_kept_of_a_tenant_and_its_projects() -> None:
    assert "none" in printed("data", "retention", "acme")
    assert "zero_data_retention" in printed("data", "retention", "acme", "zero_data_retention")
    assert "zero_data_retention" in printed("data", "retention", "acme")
    with pytest.raises(InvalidRequest, match="retention_type"):
        printed("data", "retention", "acme", "forever")
    with pytest.raises(ResourceNotFound):
        printed("data", "retention", "nobody")


@pytest.mark.slow
def test_a_tenant_is_held_deleted_and_restored(database_url: str) -> None:
    printed("keys", "create", "acme")
    assert "is held" in printed("data", "hold", "acme")
    assert ", held " in printed("tenants", "list")
    with pytest.raises(DataHeld):
        printed("data", "erase", "acme", "grace")
    assert "deleted" in printed("data", "delete", "acme")
    assert "deleted " in printed("tenants", "list")
    with pytest.raises(InvalidRequest, match="is deleted"):
        printed("keys", "create", "acme")
    assert "nothing is due" in printed("data", "purge")
    assert "restored" in printed("data", "restore", "acme")
    with pytest.raises(InvalidRequest, match="was not deleted"):
        printed("data", "restore", "acme")
    printed("data", "delete", "acme")
    execute(database_url, "UPDATE tenants SET deleted_at = now() - interval '8 days'")
    assert json.loads(printed("data", "purge", "--json")) == []
    assert "not held any more" in printed("data", "hold", "acme", "--release")
    (removed,) = json.loads(printed("data", "purge", "--json"))
    assert (removed["tenant"], removed["rows"]["api_keys"]) == ("acme", 1)
    assert json.loads(printed("keys", "list", "--json")) == []
    for refused in (
        ("data", "retention", "acme", "none"),
        ("data", "delete", "acme"),
        ("projects", "create", "acme", "web"),
        ("keys", "create", "acme"),
        ("tenants", "set", "acme", "--share-weight", "200"),
        ("limits", "set", "acme", "--requests-per-minute", "1"),
        ("prices", "set", "m", "--input", "1", "--tenant", "acme"),
    ):
        with pytest.raises(InvalidRequest, match="was deleted and purged"):
            printed(*refused)
    assert "harmony.tenant.purged" in printed("audit", "list", "--tenant", "acme")
    (left,) = json.loads(printed("tenants", "list", "--json"))
    assert left["purged_at"] > left["deleted_at"]
    assert left["held_at"] is None
    with pytest.raises(InvalidRequest, match="was not deleted"):
        printed("data", "restore", "acme")


@pytest.mark.slow
def test_a_person_is_erased_and_an_archive_is_written(tmp_path: Path) -> None:
    assert json.loads(printed("data", "erase", "acme", "grace", "--json"))["responses"] == 0
    assert "0 responses" in printed("data", "erase", "acme", "grace")
    path = tmp_path / "acme.zip"
    assert str(path) in printed("data", "export", "acme", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("manifest.json"))["tenant"]["name"] == "acme"
    assert told("data", "export", "acme", str(path))[0] == 2
    assert told("data", "export", "acme", str(tmp_path / "none" / "acme.zip"))[0] == 2


@pytest.mark.slow
def test_of_an_archive_that_breaks_off_nothing_stays(tmp_path: Path) -> None:
    path = tmp_path / "nobody.zip"
    with pytest.raises(ResourceNotFound):
        printed("data", "export", "nobody", str(path))
    assert not path.exists()


@pytest.mark.slow
def test_the_audit_log_is_listed_and_verified(database_url: str, tmp_path: Path) -> None:
    printed("projects", "create", "acme", "Support bot")
    (line,) = [
        one
        for one in printed("audit", "list", "--tenant", "acme").splitlines()
        if "project.created" in one
    ]
    assert line.split()[-1] == "cli"
    assert datetime.fromisoformat(line.split()[0]).tzinfo is not None
    (newest, *_) = json.loads(printed("audit", "list", "--tenant", "acme", "--json"))
    assert (newest["type"], newest["actor"]["type"]) == ("project.created", "api_key")
    with pytest.raises(ResourceNotFound):
        printed("audit", "list", "--tenant", "nobody")
    heads = tmp_path / "heads.json"
    kept = chains()
    heads.write_text(json.dumps(kept))
    printed("operators", "create", "anna")
    assert "head" in printed("audit", "verify", "--heads", str(heads))
    execute(
        database_url,
        "ALTER TABLE audit_log DISABLE TRIGGER USER",
        "DELETE FROM audit_log WHERE type = 'project.created'",
    )
    assert all(not one["faults"] for one in chains())
    code, output = told("audit", "verify", "--heads", str(heads))
    assert code == 1
    assert "are gone" in output
    execute(database_url, "UPDATE audit_log SET target = 'x'")
    code, output = told("audit", "verify")
    assert code == 1
    assert "entry 1 was changed" in output
    wrong = (
        kept[0] | {"tenant_id": 1},
        kept[0] | {"entries": math.inf},
        kept[0] | {"at": "2026-11-30T12:00:00"},
    )
    broken = ("[1]", "{", '[{"tenant_id": "x"}]', "[" * 100_000)
    for nonsense in (*broken, *(json.dumps([one]) for one in wrong)):
        heads.write_text(nonsense)
        with pytest.raises(InvalidRequest, match="is not what"):
            printed("audit", "verify", "--heads", str(heads))


@pytest.mark.slow
@pytest.mark.usefixtures("sealed")
def test_a_tenant_has_keys_that_are_renewed_and_destroyed(database_url: str) -> None:
    assert printed("encryption", "new-key", "--id", "k2").startswith("k2 ")
    assert told("encryption", "new-key", "--id", "k 2")[0] == 2
    assert "has key 1" in printed("encryption", "enable", "acme")
    with pytest.raises(InvalidRequest, match="sealed already"):
        printed("encryption", "enable", "acme")
    assert "has key 2" in printed("encryption", "rotate", "acme")
    assert "0 rows" in printed("encryption", "reseal", "acme")
    with pytest.raises(InvalidRequest, match="seconds more"):
        printed("encryption", "reseal", "acme", "--destroy-older")
    assert "not sealed any more" in printed("encryption", "disable", "acme")
    assert {one["state"] for one in keys()} == {"opens"}
    with pytest.raises(InvalidRequest, match="is not sealed"):
        printed("encryption", "rotate", "acme")
    assert told("encryption", "shred", "acme")[0] == 2
    printed("tenants", "create", "globex")
    for action in (["disable"], ["shred", "--yes"]):
        with pytest.raises(InvalidRequest, match="sealed"):
            printed("encryption", *action, "globex")
    printed("data", "hold", "acme")
    with pytest.raises(DataHeld):
        printed("encryption", "shred", "acme", "--yes")
    printed("data", "hold", "acme", "--release")
    execute(
        database_url,
        "INSERT INTO conversations (tenant_id, id, created_at, metadata)"
        r" SELECT id, id, now(), '\xff6867310200' FROM tenants WHERE name = 'acme'",
    )
    printed("db", "maintain")
    code, output = told("db", "check")
    assert (code, "sealed" in output) == (1, True)
    assert "2 keys" in printed("encryption", "shred", "acme", "--yes")
    assert {one["state"] for one in keys()} == {"destroyed"}
    assert "destroyed" in printed("encryption", "status", "acme")
    assert "its key was destroyed" in printed("db", "check")
    with pytest.raises(ResourceNotFound):
        printed("encryption", "status", "nobody")


def keys() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(printed("encryption", "status", "acme", "--json"))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("sealed")
def test_who_does_not_own_the_tables_may_list_keys(
    database_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("encryption", "enable", "acme")
    make_roles(database_url)
    name = database_url.partition("?")[0].rpartition("/")[2]
    monkeypatch.setenv("DATABASE_URL", postgres.database_url(name, user=SERVING))
    assert [one["state"] for one in keys()] == ["seals"]
    result = CliRunner().invoke(commands, ("encryption", "status", "acme"))
    assert isinstance(result.exception, StoreError), "the progress"
    assert result.stdout == "", "all of it or nothing"


@pytest.mark.slow
def test_without_a_provider_there_are_no_keys() -> None:
    with pytest.raises(ConfigError, match="not configured"):
        printed("encryption", "status", "acme")


@pytest.mark.slow
def test_a_person_is_erased_from_usage_by_the_digest_of_processes(database_url: str) -> None:
    (acme,) = json.loads(printed("tenants", "list", "--json"))
    tenant = TenantId(UUID(acme["id"]) if "-" in acme["id"] else UUID(hex=acme["id"]))
    digest = end_user_of(load_settings(None).cache_salt_key, tenant, "grace")

    async def meter() -> None:
        metered = Metered(who=Metering(digest))
        line = UsageLine(ids.new_uuid(), ids.new_uuid(), "m", COMPLETED, USAGE, metered=metered)
        async with opened(database_url) as database:
            await usage_lines.record_all(database, [(tenant, line)])

    asyncio.run(meter())
    erased = json.loads(printed("data", "erase", "acme", "grace", "--json"))
    assert erased["rows"] == {"usage": 1}
