"""Every mistake is told, with the place where it can be mended, and without secrets."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import ConfigError
from gateway.settings import Settings, load_settings
from gateway.settings.loading import variables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gateway.settings.loading import Variable


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
        ("server:\n  port: many\n", 2, "server.port: expected a whole number"),
        ("server:\n  prot: 1\n", 2, "there is no setting server.prot; did you mean port?"),
        ("sever: {}\n", 1, "there is no setting sever; did you mean server?"),
        ("limits:\n  body_bytes_max: 0\n", 2, "limits.body_bytes_max: expected more than 0"),
        ("\nbackends:\n  - name: a\n", 3, "backends[0].url: it is required, but not given"),
        ("backends:\n  - name: a\n    url: gpu:8000\n", 3, "backends[0].url: expected a URL"),
        ("backends: [{name: a, url: 'http://u:p@h'}]\n", 1, "has no query, fragment or user"),
        ("backends: [{name: a, url: 'http://h:99999'}]\n", 1, "there is no port 99999"),
        ("alerts: {webhook_url: 'http://h:9_9?k=v', webhook_secret: s}\n", 1, "no port 9_9"),
        ("tools: {web: {providers: [{kind: searxng, url: 'http://h:0'}]}}\n", 1, "no port 0"),
        ("encryption: {kms: {url: 'http://256.1.1.1'}}\n", 1, "'256.1.1.1' is no address"),
        ("backends: [{name: a, url: 'http://256.1.1.1:80'}]\n", 1, "'256.1.1.1' is no address"),
        ("backends: [{name: a, url: 'http://[v1.x]'}]\n", 1, "'v1.x' is no address"),
        ("backends: [{name: a, url: 'http://gpu\u20111'}]\n", 1, "no name of a host in ASCII"),
        ('backends: [{name: a, url: "http://h/\\x01"}]\n', 1, "expected a URL such as"),
        ("backends: [{name: a, url: 'http://h', api_key: \"a\\tb\"}]\n", 1, "one line of ASCII"),
        ("discovery:\n- {name: d, kind: dns, host: h, api_key: \u00fc}\n", 2, "one line of ASCII"),
        ("encryption: {vault: {token: \u00fc}}\n", 1, "one line of ASCII"),
        ("encryption: {kms: {session_token: \u00fc}}\n", 1, "one line of ASCII"),
        ("ledger: {sinks: [{name: s, url: 'http://h', secret: \u00fc}]}\n", 1, "one line of ASCII"),
        ("tools: {python: {remote_token: \u00fc}}\n", 1, "one line of ASCII"),
        ("server:\n  port: !!int ''\n", 2, "not a value"),
        ("models: [{id: m, chat_template_kwargs: {a: !!binary aGk=}}]\n", 1, "it is sent as JSON"),
        ("database:\n  url: mysql://h/d\n", 2, "database.url: expected a URL such as postgresql"),
        ("log:\n\n  level: loud\n", 3, "log.level: expected 'debug', 'info'"),
        ("auth:\n  key_pepper: short\n", 2, "auth.key_pepper: expected 16 characters or more"),
        ("reasoning:\n  sealing_keys:\n  - {id: a, secret: short}\n", 3, "expected 16 characters"),
        ("reasoning:\n  sealing_keys:\n  - {id: a.b, secret: ''}\n", 3, "expected 1 to 32 letters"),
        ("rate_limits:\n  sync_interval_s: 1\n", 2, "no setting rate_limits.sync_interval_s"),
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
        ("GATEWAY_SERVER__PORT", "many", "server.port: expected a whole number"),
        ("PORT", "70000", "server.port: expected 65535 or less"),
        ("GATEWAY_SERVER__PROT", "1", "there is no such setting"),
        ("GATEWAY_SERVER", "{}", "there is no such setting"),
        ("GATEWAY_SERVER__PORT_FILE", "port", "there is no such setting"),
        ("GATEWAY_MODELS", "[1", "expected JSON"),
        ("GATEWAY_MODELS", "[" * 100_000, "expected JSON"),
        ("GATEWAY_MODELS", '[{"name": "a"}]', "there is no setting models[0].name"),
        ("GATEWAY_CACHE_SALT_SECRET_FILE", "/nowhere", "cannot read the file: No such file"),
        ("GATEWAY_DATA_DIR", "~nobody-here/x", "data_dir: there is no such home"),
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
    file = written(tmp_path, "server:\n  port: many\nlimits:\n  body_bytes_max: -1\n  what: 1\n")
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
    environ = {"GATEWAY_BACKGROUND__LEASE_S": "-1", "GATEWAY_RETENTION__LOG_S": "x"}
    assert len(mistakes_of(environ=environ)) == 2


@pytest.mark.parametrize("read", ["database_url", "pepper", "cache_salt_key", "sealing_secrets"])
def test_what_is_needed_and_missing_says_what_to_do(read: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(Settings(), read)
    assert "Set " in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: 8000", "server: expected settings on lines of their own below it, such as `host"),
        ("console: {sign_in: {roles: owner}}", "of their own below it, such as `NAME: …`"),
        ("backends: http://gpu-1:8000", "backends: expected a list, each entry on a line that"),
        ("backends: {name: a}", "backends: expected a list, each entry on a line that begins with"),
        ("backends: [http://gpu-1:8000]", "backends[0]: expected settings on lines of their own"),
        ("backends: [{name: a b, url: 'http://a'}]", "backends[0].name: expected a name without"),
        ("backends: [{name: 1, url: 'http://a'}]", "backends[0].name: expected text; put it into"),
        ("models: [{id: a, reasoning_effort: hihg}]", "'medium' or 'high'; did you mean high?"),
        ("retention: {response_s: 3153600000}", "response_s: expected 2147483647 or less"),
        ("admin: {key_lifetime_max_s: 3153600000}", "lifetime_max_s: expected 2147483647 or less"),
        ("ledger: {lines_s: 3153600000}", "ledger.lines_s: expected 2147483647 or less"),
        ("background: {lease_s: .inf}", "background.lease_s: expected a number"),
        ("database: {listen: maybe}", "database.listen: expected true or false"),
        ("database: {listen: 2.5}", "database.listen: expected true or false"),
        ("stream: {start_grace_s: soon}", "stream.start_grace_s: expected a number"),
        ("cache_salt_secret: ['']", "cache_salt_secret: expected text"),
        ("data_dir: 1", "data_dir: expected the path of a folder"),
        ("log: {levl: info}", "there is no setting log.levl; did you mean level?"),
        (
            "port: 8000",
            "there is no setting port; did you mean server.port or admin.port or alerts.smtp.port?",
        ),
        ("prot: 8000", "there is no setting prot"),
        ("alerts: {webhook_secret: whsec_#}", "webhook_secret: expected base64 behind whsec_"),
        ("alerts: {webhook_secret: whsec_}", "webhook_secret: expected base64 behind whsec_"),
        ("models: [{aliases: [a]}]", "models[0].id: it is required, but not given"),
    ],
)
def test_a_wrong_shape_is_told_in_words_for_people(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    found = mistakes_of(file)
    assert found[0].startswith(f"{file}:1: {message}") or message in found[0], found


VALUES: tuple[Any, ...] = (
    None, 1, -1, 1.5, "x", "", " ", "x" * 5000, [], [1], ["x"], [{}], {}, {"x": 1}, {"id": " "},
    True, 10**30, math.nan, math.inf, [{"name": " ", "url": 1}], [{"id": "x" * 999, "secret": ""}],
)  # fmt: skip
FOREIGN = re.compile(
    "Input should|Field required|Value error|valid dictionary|instance of|match pattern"
    "|not permitted|unable to parse|expected another value"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "turn"),
    [pytest.param(one, at % 4, id=one.name) for at, one in enumerate(variables(Settings))],
)
def test_no_value_of_any_setting_is_refused_in_foreign_words(variable: Variable, turn: int) -> None:
    """Each setting with a fourth of the values, which are more than there are kinds of settings."""
    for value in VALUES[turn::4]:
        arguments: Any = value
        for key in reversed(variable.path):
            arguments = {key: arguments}
        said = ""
        try:
            load_settings(arguments=arguments, environ={})
        except ConfigError as error:
            said = str(error)
        assert not FOREIGN.search(said)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("GATEWAY_SERVER_PORT", "GATEWAY_SERVER__PORT"),
        ("GATEWAY_DATABASE__URL_FIEL", "GATEWAY_DATABASE__URL_FILE"),
        ("GATEWAY_AUTH_KEY_PEPPER", "GATEWAY_AUTH__KEY_PEPPER"),
    ],
)
def test_a_variable_that_is_nearly_right_is_found(variable: str, meant: str) -> None:
    (found,) = mistakes_of(environ={variable: "1"})
    assert found.startswith(f"{variable}: there is no such setting; did you mean {meant}")
