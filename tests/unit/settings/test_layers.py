"""Where settings come from, and what wins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gateway.settings import Settings, load_settings
from gateway.settings.model import PEPPER_KEY_ID
from gateway.tenancy.policy import TenantPolicy

if TYPE_CHECKING:
    from pathlib import Path

PEPPER = "a pepper of more than sixteen characters"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def test_defaults_need_neither_file_nor_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(environ={})
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert settings.database.url is None
    assert settings.backends == ()


def test_arguments_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("server: {host: file, port: 1, drain_grace_s: 3}\n")
    environ = {"GATEWAY_SERVER__HOST": "environment", "GATEWAY_SERVER__PORT": "2"}
    settings = load_settings(file, {"server": {"host": "argument"}}, environ)
    assert settings.server.host == "argument"
    assert settings.server.port == 2
    assert settings.server.drain_grace_s == 3


def test_an_argument_can_take_back_what_the_environment_says() -> None:
    environ = {"DATABASE_URL": "postgresql://a:b@c/d"}
    settings = load_settings(arguments={"database": {"url": None}}, environ=environ)
    assert settings.database.url is None


def test_the_file_in_the_working_folder_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("log: {level: debug}\n")
    monkeypatch.chdir(file.parent)
    assert load_settings(environ={}).log.level == "debug"


def test_a_variable_names_the_file(file: Path) -> None:
    file.write_text("log: {level: error}\n")
    assert load_settings(environ={"GATEWAY_CONFIG": str(file)}).log.level == "error"


def test_settings_built_in_code_do_not_depend_on_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_SERVER__PORT", "9")
    assert Settings().server.port == 8000


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]


def test_customary_variables_are_honoured_and_ours_win_over_them() -> None:
    customary = {"DATABASE_URL": "postgres://u:p@host/a", "PORT": "9000"}
    settings = load_settings(environ=customary)
    assert settings.database_url == "postgres://u:p@host/a"
    assert settings.server.port == 9000
    ours = {**customary, "GATEWAY_DATABASE__URL": "postgresql://u:p@host/b"}
    assert load_settings(environ=ours).database_url == "postgresql://u:p@host/b"


def test_lists_are_json_in_the_environment() -> None:
    environ = {"GATEWAY_BACKENDS": '[{"name": "a", "url": "http://gpu:8000/v1/"}]'}
    (backend,) = load_settings(environ=environ).backends
    assert backend.url == "http://gpu:8000"
    assert backend.models == ()


def test_mappings_are_json_in_the_environment_and_replace_those_of_the_file(file: Path) -> None:
    file.write_text("console: {name: a, sign_in: {roles: {staff: support}}}\n")
    environ = {"GATEWAY_CONSOLE__SIGN_IN__ROLES": '{"admins": "owner"}'}
    console = load_settings(file, environ=environ).console
    assert (console.name, console.sign_in.roles) == ("a", {"admins": "owner"})


def test_only_the_urls_of_servers_lose_their_ends() -> None:
    environ = {"GATEWAY_LEDGER__SINKS": '[{"name": "a", "url": "https://bill.example/usage/v1"}]'}
    environ["GATEWAY_CONSOLE__SIGN_IN__ISSUER"] = "https://acme.auth0.example/"
    environ["GATEWAY_CONSOLE__SIGN_IN__CLIENT_ID"] = "console"
    environ["GATEWAY_CONFIG"] = os.devnull
    settings = load_settings(
        arguments={"console": {"sign_in": {"roles": {"a": "owner"}}}}, environ=environ
    )
    assert settings.ledger.sinks[0].url == "https://bill.example/usage/v1"
    assert settings.console.sign_in.issuer == "https://acme.auth0.example/"


def test_an_empty_variable_counts_as_unset() -> None:
    assert load_settings(environ={"GATEWAY_SERVER__PORT": "", "PORT": ""}).server.port == 8000


def test_a_secret_can_be_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "pepper"
    secret.write_text(PEPPER + "\n")
    settings = load_settings(environ={"GATEWAY_AUTH__KEY_PEPPER_FILE": str(secret)})
    assert settings.pepper == PEPPER.encode()


def test_a_list_that_holds_secrets_can_be_in_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f'[{{"id": "2026", "secret": "{PEPPER}"}}]\n')
    settings = load_settings(environ={"GATEWAY_REASONING__SEALING_KEYS_FILE": str(keys)})
    assert [key.id for key in settings.reasoning.sealing_keys] == ["2026"]


def test_the_database_url_can_be_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@host/a")
    settings = load_settings(environ={"DATABASE_URL_FILE": str(secret)})
    assert settings.database_url == "postgresql://u:p@host/a"


def test_references_in_the_file_are_resolved(file: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    file.write_text(
        "server: {host: '${HOST}', port: '${NO_PORT:-8080}'}\n"
        "harmony: {identity: 'costs $${5} and $5'}\n"
        "backends: [{name: a, url: 'http://${GPU:-gpu}:8000', api_key: '${VLLM_KEY}'}]\n"
        "database: {url: '${NO_URL:-}'}\n"
    )
    environ = {"HOST": "0.0.0.0", "VLLM_KEY_FILE": str(tmp_path / "key")}
    settings = load_settings(file, environ=environ)
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 8080)
    assert settings.harmony.identity == "costs ${5} and $5"
    (backend,) = settings.backends
    assert backend.url == "http://gpu:8000"
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == "from a file"
    assert settings.database.url is None


def test_a_key_without_a_value_counts_as_not_given(file: Path) -> None:
    file.write_text("server:\n  port:\nlog:\n")
    assert load_settings(file, environ={}) == load_settings(arguments={}, environ={})


def test_an_empty_file_says_nothing(file: Path) -> None:
    file.write_text("# nothing\n")
    assert load_settings(file, environ={}).server.port == 8000


def test_secrets_are_not_shown() -> None:
    environ = {
        "DATABASE_URL": "postgresql://user:canary@host/a",
        "GATEWAY_AUTH__KEY_PEPPER": "canary-canary-canary",
        "GATEWAY_CACHE_SALT_SECRET": "canary",
        "GATEWAY_BACKENDS": '[{"name": "a", "url": "http://b", "api_key": "canary"}]',
        "GATEWAY_REASONING__SEALING_KEYS": '[{"id": "a", "secret": "canary-canary-canary"}]',
    }
    settings = load_settings(environ=environ)
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "canary" not in shown


def test_the_cache_salt_key_comes_from_the_pepper_unless_it_is_given() -> None:
    derived = load_settings(environ={"GATEWAY_AUTH__KEY_PEPPER": PEPPER})
    given = load_settings(environ={"GATEWAY_CACHE_SALT_SECRET": "salt"})
    assert derived.cache_salt_key not in {derived.pepper, b""}
    assert given.cache_salt_key == b"salt"


def test_the_first_key_seals_reasoning_and_the_pepper_s_where_there_is_no_other() -> None:
    environ = {"GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    (made,) = load_settings(environ=environ).sealing_secrets
    assert made[0] == PEPPER_KEY_ID
    assert made[1] not in {PEPPER.encode(), load_settings(environ=environ).cache_salt_key}
    keys = [{"id": "b", "secret": "b" * 16}, {"id": "a", "secret": "a" * 16}]
    given = load_settings(arguments={"reasoning": {"sealing_keys": keys}}, environ=environ)
    assert given.sealing_secrets == (("b", b"b" * 16), ("a", b"a" * 16), made)


def test_what_the_embedded_database_brings_is_added() -> None:
    settings = Settings().with_database_url("postgresql://u:p@/postgres").with_pepper(PEPPER)
    assert settings.database_url == "postgresql://u:p@/postgres"
    assert settings.pepper == PEPPER.encode()


def test_the_data_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={"GATEWAY_DATA_DIR": "~/data"}).data_dir == tmp_path / "data"
    assert load_settings(environ={"GATEWAY_DATA_DIR": "data"}).data_dir == tmp_path / "data"


def test_the_policy_of_tenants_comes_from_the_sections_that_it_is_about() -> None:
    environ = {
        "GATEWAY_BACKGROUND__ON_DISCONNECT": "continue",
        "GATEWAY_BACKGROUND__TENANT_RUNNING_MAX": "1",
        "GATEWAY_BACKGROUND__TENANT_QUEUED_MAX": "2",
        "GATEWAY_RETENTION__LOG_S": "3",
        "GATEWAY_RETENTION__RESPONSE_S": "4",
        "GATEWAY_REASONING__SUMMARY": "off",
        "GATEWAY_GENERATION__REASONING_BUDGET_TOKENS": "5",
    }
    policy = load_settings(environ=environ).tenant_policy
    assert policy == TenantPolicy("continue", 3, 4, 1, 2, "off", 5, "default")
    assert Settings().tenant_policy == TenantPolicy()
