"""A support bundle has what helps, and nothing of what was planted wherever a secret may stand."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import tarfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.cli.support import Redactor, configured_secrets, safe
from gateway.errors import StartupError
from gateway.settings import Settings
from gateway.store.diagnostics import without_literals
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CANARY = "canary"
"""In every secret, in content, and in the names of tenants."""


def planted(url: str, folder: Path) -> dict[str, Any]:
    """A configuration with a secret in every place that may have one."""
    return {
        "backends": [
            {"name": "gpu", "url": url, "api_key": "canary-api-key", "admin_key": "canary-admin"}
        ],
        "cache_salt_secret": "canary-salt",
        "auth": {"previous_key_pepper": "canary-previous-pepper"},
        "alerts": {
            "webhook_url": "https://hooks.example/services/canary/path?token=canary-query",
            "webhook_secret": "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnk=",
            "smtp": {"password": "canary-smtp", "user": "mailer"},
        },
        "ledger": {
            "sinks": [
                {
                    "name": "billing",
                    "url": "https://billing.example/in",
                    "secret": "canary-sink",
                    "customers": {"canary-tenant": "canary-customer"},
                }
            ]
        },
        "reasoning": {"sealing_keys": [{"id": "k1", "secret": "canary-sealing-key-long"}]},
        "encryption": {"vault": {"url": "https://vault:8200", "token": "canary-vault"}},
        "models": [{"id": "gpt-oss-20b", "chat_template_kwargs": {"hint": "canary-argument"}}],
        "data_dir": str(folder / "data"),
    }


LOG = [
    json.dumps({"event": "request", "level": "info", "status": 200, "prompt": "canary-prompt"}),
    json.dumps({"event": "failed", "error": "Authorization: Bearer canary-bearer-token"}),
    json.dumps({"event": "connected", "url": "postgresql://u:canary-password@db/d"}),
    json.dumps({"event": "key sk-canary-0123456789 is unknown", "tenant": "canary-tenant"}),
    json.dumps({"event": "request", "client": "203.0.113.77", "client_request_id": "canary-id"}),
    json.dumps({"event": "mail was refused", "error": "535 canary-smtp is no password"}),
    json.dumps(["canary-list"]),
    "Traceback: canary-in-plain-text",
]


async def bundle(folder: Path, environment: dict[str, str], *options: str) -> dict[str, str]:
    path = folder / "support.tar.gz"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "support", "bundle", str(path), *options),
        env=environment,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parts = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            with closing(file):
                parts[member.name.removeprefix("support/")] = file.read().decode()
    return parts


async def test_nothing_that_was_planted_is_in_a_bundle(tmp_path: Path, database_url: str) -> None:
    settings = gateway_settings(database_url, [])
    key = await new_key(settings, "canary-tenant")
    (tmp_path / "gateway.log").write_text("\n".join(LOG))
    (tmp_path / "pepper").write_text("canary-pepper-of-many-characters")
    environment = {
        "DATABASE_URL": database_url,
        "GATEWAY_AUTH__KEY_PEPPER_FILE": str(tmp_path / "pepper"),
        "GATEWAY_LOG__LEVEL": "warning",
        "OPENAI_API_KEY": "canary-openai",
    }
    async with serving(create_simulator(WaywardOptions())) as url:
        gateway_of_tests = gateway_settings(database_url, [url])
        (tmp_path / "gateway.yaml").write_text(json.dumps(planted(url, tmp_path)))
        async with (
            running_gateway(gateway_of_tests) as gateway,
            http_client(gateway.url, headers={"authorization": f"Bearer {key}"}) as client,
        ):
            body = {"model": "gpt-oss-20b", "input": "canary-content", "user": "canary-user"}
            assert (await client.post("/v1/responses", json=body)).status_code == 200
            parts = await bundle(
                tmp_path,
                environment,
                *("--log", "gateway.log", "--metrics-url", f"{gateway.url}/metrics"),
            )
    password = database_url.split("@", maxsplit=1)[0].rpartition(":")[2]
    whole = "\n".join(parts.values())
    for secret in (CANARY, "Y2FuYXJ5", password, key, "203.0.113.77"):
        assert secret not in whole, whole[max(0, whole.index(secret) - 200) :][:400]
    assert set(parts) == {
        *("versions.json", "log.jsonl", "doctor.json", "settings.json", "database.json"),
        *("backends.json", "metrics.txt"),
    }
    _has_what_helps(parts, tmp_path)


def _has_what_helps(parts: dict[str, str], folder: Path) -> None:
    told = {name: json.loads(text) for name, text in parts.items() if name.endswith(".json")}
    settings = told["settings.json"]["settings"]
    assert settings["log.level"] == {"value": "warning", "source": "GATEWAY_LOG__LEVEL"}
    assert settings["auth.key_pepper"]["value"] == "[set]"
    assert settings["auth.key_pepper"]["source"] == "GATEWAY_AUTH__KEY_PEPPER_FILE"
    assert settings["server.port"] == {"value": 8000, "source": "default"}
    assert settings["alerts.webhook_url"]["value"] == "https://hooks.example"
    assert settings["backends"]["source"].startswith(str(folder / "gateway.yaml")) or settings[
        "backends"
    ]["source"].startswith("gateway.yaml:")
    assert "database" in {one["name"] for one in told["doctor.json"]}
    assert "responses" in {one["name"] for one in told["database.json"]["tables"]}
    assert any(one["name"] == "max_connections" for one in told["database.json"]["settings"])
    assert "gpt-oss-20b" in told["backends.json"]["backends"]["gpu"]["models"]
    assert "gateway_requests" in parts["metrics.txt"]
    assert told["versions.json"]["packages"]["pydantic"]
    assert len(parts["log.jsonl"].splitlines()) == len(LOG)
    assert json.loads(parts["log.jsonl"].splitlines()[0])["status"] == 200


async def test_a_bundle_is_made_where_nothing_works(tmp_path: Path) -> None:
    environment = {
        "DATABASE_URL": "postgresql://u:canary-password@127.0.0.1:9/d",
        "GATEWAY_AUTH__KEY_PEPPER": "canary-pepper-of-many-characters",
        "GATEWAY_SERVER__HOST": "::1",
        "GATEWAY_SERVER__PORT": "9",
    }
    no_url = ("--metrics-url", "http://::1:80")
    parts = await bundle(tmp_path, environment, "--log", "there-is-none.log", *no_url)
    line = {"event": "request", "tenant": "canary-of-a-tenant", "status": 200}
    (tmp_path / "some.log").write_text(json.dumps(line))
    (tmp_path / "support.tar.gz").unlink()
    second = await bundle(tmp_path, environment, "--log", "some.log")
    assert json.loads(second["log.jsonl"]) == line | {"tenant": "[removed]"}
    assert CANARY not in "".join(parts.values())
    assert "error" in json.loads(parts["database.json"])
    assert "InvalidURL" in parts["metrics.txt"]
    assert "ConnectError" in second["metrics.txt"]
    assert "cannot read the log" in parts["log.jsonl"]


async def test_a_configuration_with_mistakes_is_part_of_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("auth: {key_pepper: canary}\nserver: {port: canary}")
    parts = await bundle(tmp_path, {})
    assert CANARY not in "".join(parts.values())
    assert "server.port" in json.loads(parts["settings.json"])["error"]


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("server: {port: none}")
    named = ["support", "bundle", "x" * 5_000, "--config", str(tmp_path / "gateway.yaml")]
    with pytest.raises(StartupError, match="File name too long"):
        CliRunner().invoke(commands, named, catch_exceptions=False)


def test_secrets_are_found_in_every_form() -> None:
    settings = Settings.model_validate(
        {"auth": {"key_pepper": 'a"pepper/with characters'}, "log": {"level": "info"}}
    )
    redactor = Redactor(configured_secrets(settings), {"info": "tenant 1"})
    for text in ('a"pepper/with characters', json.dumps('a"pepper/with characters')[1:-1]):
        assert redactor.redacted(f"<{text}>") == "<[removed]>"
    assert redactor.redacted("a%22pepper%2Fwith%20characters") == "[removed]"
    assert redactor.redacted("of info, not of information") == "of tenant 1, not of information"
    assert safe({"a": "b"}) == "[1 entries]"
    sample = 'gateway_tokens_total{model="m",tenant="acme"} 1'
    unknown = Redactor((), {}, keeps_tenants=False)
    assert unknown.redacted(sample) == 'gateway_tokens_total{model="m",tenant="[removed]"} 1'
    assert Redactor((), {"acme": "tenant 1"}).redacted(sample).count("tenant 1") == 1


def test_what_is_redacted_stays_json() -> None:
    names = {name: f"tenant {number}" for number, name in enumerate(("1", "true", "1e3", "acme"))}
    text = json.dumps({"acme": [1, True, 1e3, "1", "true"], "why": "of\nacme"})
    redacted = json.loads(Redactor((), names).redacted(text))
    assert redacted == {"tenant 3": [1, True, 1e3, "tenant 0", "tenant 1"], "why": "of\ntenant 3"}


def test_a_text_that_is_nearly_a_url_is_shown_without_what_may_be_secret() -> None:
    assert safe("x://user:secret@[host/path?query#end") == "x://[host"
    settings = Settings.model_validate(
        {"console": {"name": "x://[y/hooks/secret/?q#z"}, "data_dir": "/nowhere"}
    )
    assert {"hooks/secret", "q"} <= set(configured_secrets(settings))


def test_a_password_is_found_in_a_url_that_cannot_be_read() -> None:
    url = "postgresql://gateway:p[a@ss@db.example.com/gateway"
    settings = Settings.model_validate({"database": {"url": url}})
    redactor = Redactor(configured_secrets(settings), {})
    assert redactor.redacted(f"{url} p[a@ss") == "[removed] [removed]"


def test_statements_have_no_values() -> None:
    sql = "SELECT *\n  FROM t WHERE a = 'it''s canary' AND b = $1"
    assert without_literals(sql) == "SELECT * FROM t WHERE a = '?' AND b = $1"
