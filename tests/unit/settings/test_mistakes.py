"""Every mistake is told, with the place where it can be mended, and without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.errors import ConfigError
from gateway.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


SECRETS = ("a secret of 16 characters", "another one of 16")


def mistakes_of(file: Path | None = None, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ=environ or {})
    assert caught.value.remedy
    return str(caught.value).splitlines()


def written(folder: Path, text: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("server:\n  port: many\n", 2, "server.port: Input should be a valid integer"),
        ("server:\n  prot: 1\n", 2, "there is no setting server.prot"),
        ("sever: {}\n", 1, "there is no setting sever"),
        ("limits:\n  items_max: 0\n", 2, "limits.items_max: Input should be greater than 0"),
        ("\nbackends:\n  - name: a\n", 3, "backends[0].url: Field required"),
        ("backends:\n  - name: a\n    url: gpu:8000\n", 3, "backends[0].url: expected a URL"),
        ("backends: [{name: a, url: 'http://u:p@h'}]\n", 1, "has no query, fragment or user"),
        ("database:\n  url: mysql://h/d\n", 2, "database.url: expected a URL such as postgresql"),
        ("log:\n\n  level: loud\n", 3, "log.level: Input should be 'debug'"),
        ("auth:\n  key_pepper: short\n", 2, "auth.key_pepper: expected 16 characters or more"),
        ("reasoning:\n  sealing_keys:\n  - {id: a, secret: short}\n", 3, "expected 16 characters"),
        ("reasoning:\n  sealing_keys:\n  - {id: a.b, secret: ''}\n", 3, "should match pattern"),
        ("generation:\n  answer_share: 1\n", 2, "Input should be less than 1"),
        ("generation:\n  repeated_tokens_max: 63\n", 2, "expected 0, or 64 or more"),
        ("server:\n  port: 1\n  port: 2\n", 3, "port is given twice"),
        ("server:\n  host: ${NOT_SET}\n", 2, "the variable NOT_SET is not set"),
        ("server:\n  host: ${NOT SET}\n", 2, "expected ${NAME} or ${NAME:-default}"),
        ("server:\n  host: ${UNREADABLE}\n", 2, "cannot read the file that UNREADABLE_FILE names"),
        ("server: [\n", 2, "not YAML"),
        ("server:\n  port: !!int many\n", 2, "not a value"),
        ("- server\n", 1, "expected settings such as `server:` at the top"),
        ("? {a: b}\n: 1\n", 1, "there is no setting ?"),
        ("a: " + "[" * 30 + "]" * 30 + "\n", 1, "nested deeper than 20 levels"),
        ("a: &a [*a]\n", 1, "nested deeper than 20 levels"),
    ],
)
def test_a_mistake_in_the_file_has_its_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    file = written(tmp_path, text)
    found = mistakes_of(file, {"UNREADABLE_FILE": str(tmp_path / "none")})
    assert found[0].startswith(f"{file}:{line}: ")
    assert any(message in mistake for mistake in found), found


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GATEWAY_SERVER__PORT", "many", "server.port: Input should be a valid integer"),
        ("PORT", "70000", "server.port: Input should be less than or equal to 65535"),
        ("GATEWAY_SERVER__PROT", "1", "there is no such setting"),
        ("GATEWAY_SERVER", "{}", "there is no such setting"),
        ("GATEWAY_SERVER__PORT_FILE", "port", "there is no such setting"),
        ("GATEWAY_MODELS", "[1", "expected JSON"),
        ("GATEWAY_MODELS", '[{"name": "a"}]', "there is no setting models[0].name"),
        ("GATEWAY_CACHE_SALT_SECRET_FILE", "/nowhere", "cannot read the file: No such file"),
        ("DATABASE_URL", "sqlite:///x", "database.url: expected a URL such as postgresql"),
    ],
)
def test_a_mistake_in_a_variable_has_its_name(variable: str, value: str, message: str) -> None:
    found = mistakes_of(environ={variable: value})
    assert all(mistake.startswith(f"{variable}: ") for mistake in found), found
    assert any(message in mistake for mistake in found), found


def test_a_secret_file_that_is_no_text_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"\xff\xfe")
    variable = "GATEWAY_AUTH__KEY_PEPPER_FILE"
    (found,) = mistakes_of(environ={variable: str(tmp_path / "pepper")})
    assert found == f"{variable}: cannot read the file: it is not UTF-8 text"


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "server:\n  port: many\nlimits:\n  items_max: -1\n  what: 1\n")
    found = mistakes_of(file, {"GATEWAY_NOPE": "1", "GATEWAY_LOG__LEVEL": "loud"})
    places = {mistake.split(": ")[0] for mistake in found}
    assert places == {
        f"{file}:2", f"{file}:4", f"{file}:5", "GATEWAY_NOPE", "GATEWAY_LOG__LEVEL",
    }  # fmt: skip


def test_a_mistake_has_the_place_whose_value_counts(tmp_path: Path) -> None:
    file = written(tmp_path, "server:\n  port: 1\n")
    (found,) = mistakes_of(file, {"GATEWAY_SERVER__PORT": "many"})
    assert found.startswith("GATEWAY_SERVER__PORT: ")


def test_a_mistake_does_not_repeat_a_secret(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "auth: {key_pepper: canary}\n"
        "database: {url: 'mysql://u:canary@h/d'}\n"
        "backends: [{name: a, url: 'canary', api_key: [canary]}]\n"
        "reasoning: {sealing_keys: [{id: a, secret: canary}]}\n",
    )
    found = mistakes_of(file, {"GATEWAY_CACHE_SALT_SECRET_FILE": str(file)})
    assert len(found) == 5
    assert "canary" not in "".join(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read it: No such file"), (b"\xff", "it is not UTF-8 text")],
)
def test_a_file_that_cannot_be_read_is_a_mistake(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "gateway.yaml"
    if content is not None:
        file.write_bytes(content)
    (found,) = mistakes_of(file)
    assert found.startswith(f"{file}: {message}")


def test_control_characters_are_not_yaml(tmp_path: Path) -> None:
    (found,) = mistakes_of(written(tmp_path, "a: \x00\n"))
    assert "not YAML" in found


@pytest.mark.parametrize(
    "values",
    [
        {"backends": [{"name": "a", "url": "http://a"}, {"name": "a", "url": "http://b"}]},
        {"models": [{"id": "a", "aliases": ["b"]}, {"id": "b"}]},
        {"reasoning": {"sealing_keys": [{"id": "a", "secret": secret} for secret in SECRETS]}},
    ],
)
def test_ambiguous_names_are_a_mistake(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must differ"):
        load_settings(arguments=values, environ={})


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("background", "heartbeat_s: 6", "must be at most half of lease_s, which is 10.0"),
        ("background", "lease_s: 5", "must be at most half of lease_s, which is 5.0"),
        ("journal", "pending_bytes_max: 9", "not be less than run_pending_bytes_max, which is"),
        ("journal", "run_pending_bytes_max: 99999999", "not be less than run_pending_bytes_max"),
        ("retention", "response_s: 60", "must not be less than log_s, which is 86400"),
        ("retention", "log_s: 99999999", "must not be less than log_s, which is 99999999"),
    ],
)
def test_settings_that_contradict_each_other_are_a_mistake(
    tmp_path: Path, section: str, given: str, message: str
) -> None:
    (found,) = mistakes_of(written(tmp_path, f"{section}:\n  {given}\n"))
    assert found.startswith(f"{tmp_path}/gateway.yaml:")
    assert message in found
    name, _, value = given.partition(": ")
    variable = f"GATEWAY_{section}__{name}".upper()
    (found,) = mistakes_of(environ={variable: value})
    assert found.startswith(f"{variable}: {section}.")
    assert message in found


def test_a_value_that_cannot_be_compared_is_one_mistake() -> None:
    environ = {"GATEWAY_BACKGROUND__LEASE_S": "-1", "GATEWAY_JOURNAL__RUN_PENDING_BYTES_MAX": "x"}
    assert len(mistakes_of(environ=environ)) == 2


@pytest.mark.parametrize("read", ["database_url", "pepper", "cache_salt_key", "sealing_secrets"])
def test_what_is_needed_and_missing_says_what_to_do(read: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(Settings(), read)
    assert "Set " in caught.value.remedy
