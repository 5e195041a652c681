"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from gateway import __version__
from gateway.__main__ import main
from gateway.cli.commands import ENTRIES, commands, loaded
from gateway.cli.provision import new_file
from gateway.cli.terminal import report_errors
from gateway.errors import (
    ConfigError,
    ContentSealed,
    InvalidRequest,
    ResourceNotFound,
    StartupError,
    StoreConflict,
    StoreUnavailable,
)
from gateway.settings.reference import rows

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

RED = "31m"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a gateway.yaml and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in [*os.environ]:
        if name.startswith("GATEWAY_") or name in {"DATABASE_URL", "PORT"}:
            monkeypatch.delenv(name)


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


def process(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env={"PATH": os.defpath, "HOME": str(os.getcwd()), "PYTHONPATH": sys.path[0], **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_version_is_shown() -> None:
    result = ran("--version")
    assert (result.exit_code, result.stdout) == (0, f"harmony-gateway {__version__}\n")


@pytest.mark.parametrize(
    "path",
    [
        (), ("demo",), ("serve",), ("simulate",), ("doctor",), ("db", "upgrade"), ("db", "current"),
        ("db", "maintain"), ("tenants", "create"), ("tenants", "list"), ("tenants", "disable"),
        ("tenants", "show"), ("tenants", "set"), ("keys", "create"), ("keys", "list"),
        ("keys", "disable"), ("config", "check"), ("config", "env"), ("config", "example"),
    ],
)  # fmt: skip
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    result = ran(*path, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout
    assert len(result.stdout.splitlines()) > 8


@pytest.mark.parametrize("name", ENTRIES)
def test_what_the_list_says_of_a_command_is_what_the_command_says_of_itself(name: str) -> None:
    said = " ".join((loaded(name).help or "").split())
    assert said.startswith(ENTRIES[name].help)


def test_every_variable_is_listed_with_its_default() -> None:
    lines = ran("config", "env").stdout.splitlines()
    assert {f"{row.name}={row.default}" for row in rows()} <= set(lines)
    listed = json.loads(ran("config", "env", "--json").stdout)
    assert [entry["name"] for entry in listed] == [row.name for row in rows()]


def test_the_example_that_is_printed_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(ran("config", "example").stdout, encoding="utf-8")
    result = ran("config", "check")
    assert result.exit_code == 0
    assert "gpu-1" in result.stdout
    told = json.loads(ran("config", "check", "--config", str(file), "--json").stdout)
    assert told == {"ok": True, "models": ["gpt-oss-120b"], "backends": ["gpu-1"], "discovery": [],
                    "database": "embedded"}  # fmt: skip


@pytest.mark.slow
def test_mistakes_in_the_configuration_end_a_command_with_two_lines(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("server:\n  port: many\n", encoding="utf-8")
    result = process("config", "check", "--config", str(file), FORCE_COLOR="1")
    assert RED in result.stderr
    assert result.returncode == 1
    assert result.stdout == ""
    message, remedy = result.stderr.splitlines()
    assert f"{file}:2: server.port: " in message
    assert remedy.startswith("  ")
    assert "Traceback" not in result.stderr


BACKEND = '[{"name": "gpu-1", "url": "http://127.0.0.1:9"}]'
URL = "postgresql://u:canary@127.0.0.1:9/d"


@pytest.mark.parametrize("command", [("serve",), ("config", "check")], ids=" ".join)
@pytest.mark.parametrize(
    ("environ", "mistakes"),
    [
        ({}, ["backends: no backend is configured"]),
        (
            {"GATEWAY_BACKENDS": BACKEND, "DATABASE_URL": URL},
            ["auth.key_pepper: no secret to hash"],
        ),
        ({"DATABASE_URL": URL}, ["backends: no backend", "auth.key_pepper: no secret to hash"]),
        (
            {
                "GATEWAY_BACKENDS": BACKEND,
                "GATEWAY_DATABASE__LISTEN_URL": f"{URL}?channel_binding=require",
            },
            ["database.listen_url: channel_binding=require is not supported"],
        ),
        (
            {
                "GATEWAY_BACKENDS": BACKEND,
                "GATEWAY_ENCRYPTION__PROVIDER": "file",
                "GATEWAY_ENCRYPTION__FILE__PATH": "keys",
                "GATEWAY_ENCRYPTION__KEYS_URL": f"{URL}?channel_binding=require",
            },
            ["encryption.keys_url: channel_binding=require is not supported"],
        ),
        *(
            (
                {
                    "GATEWAY_BACKENDS": BACKEND,
                    "GATEWAY_ADMIN__PORT": "8000",
                    "GATEWAY_SERVER__HOST": host,
                },
                ["admin.port: the admin API would listen where clients do, at port 8000"],
            )
            for host in ("127.0.0.1", "0.0.0.0")
        ),
    ],
)
def test_what_serve_refuses_the_check_refuses_in_the_same_words(
    command: tuple[str, ...],
    environ: dict[str, str],
    mistakes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in {"NO_COLOR": "1", **environ}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "argv", ["harmony-gateway", *command])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    told = shown.err.removeprefix("error: ").splitlines()
    assert len(told) == 2 * len(mistakes)
    assert all(line.startswith(start) for line, start in zip(told, mistakes, strict=False))
    assert "canary" not in shown.err


@pytest.mark.parametrize(
    ("name", "value", "mistake"),
    [
        ("MODELS", '[{"id": "m", "format": "foo"}]', "there is no format 'foo'"),
        ("MODELS", '[{"id": "m", "format": "chat"}]', "needs the tokenizer of its servers"),
        ("TOOLS__PYTHON__REMOTE_URL", "http://127.0.0.1:9", "needs a server of containers"),
    ],
)
def test_what_a_gateway_cannot_be_built_with_does_not_pass_the_check(
    name: str, value: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_BACKENDS", BACKEND)
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENABLED", "true")
    assert ran("config", "check").exit_code == 0
    monkeypatch.setenv(f"GATEWAY_{name}", value)
    with pytest.raises(ConfigError, match=mistake):
        CliRunner().invoke(commands, ["config", "check"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.2", "8000"), ("127.0.0.1", "8001"), ("127.0.0.1", "0")]
)
def test_listeners_that_do_not_meet_pass_the_check(
    host: str, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_BACKENDS", BACKEND)
    monkeypatch.setenv("GATEWAY_ADMIN__HOST", host)
    monkeypatch.setenv("GATEWAY_ADMIN__PORT", port)
    assert ran("config", "check").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "create", "acme", "--dialect", "opena"], "Did you mean 'openai'?"),
        (["tenants", "set", "acme", "--on-disconnect", "cancle"], "Did you mean 'cancel'?"),
        (["tenants", "set", "acme", "--on-disconnect", "no"], "is not one of 'cancel'"),
        (["demo", "--port", "80000"], "expected less than or equal to 65535"),
        (["serve", "--port", "-1"], "expected greater than or equal to 0"),
        (["simulate", "--port", "many"], "expected integer"),
        (["db", "upgrad"], "Did you mean 'upgrade'?"),
    ],
)
def test_a_value_that_no_option_knows_is_told_with_what_may_have_been_meant(
    arguments: list[str], message: str
) -> None:
    result = ran(*arguments)
    assert result.exit_code == 2
    told = " ".join(result.output.replace("│", " ").split())
    assert message in told
    assert "Value error" not in told
    assert "Input should" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "list"], "error: auth.key_pepper: "),
        (["db", "upgrade"], "error: database: "),
        (["db", "maintain"], "error: auth.key_pepper: "),
    ],
)
def test_trouble_with_the_database_is_told_without_its_password(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:canary@127.0.0.1:9/d")
    monkeypatch.setattr(sys, "argv", ["harmony-gateway", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert len(told.splitlines()) == 2
    assert "canary" not in told


@pytest.mark.slow
def test_a_port_of_the_admin_api_that_is_taken_is_told_with_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "gateway.yaml"
        file.write_text(f"server: {{port: 0}}\nadmin: {{port: {port}}}\n", encoding="utf-8")
        result = process("serve", "--config", str(file), GATEWAY_BACKENDS=BACKEND)
    assert result.returncode == 1
    message, remedy = result.stderr.splitlines()
    assert message.endswith(f":{port}: something else is listening there")
    assert remedy.strip().startswith("Choose another with admin.port")


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (StartupError("what [b]", remedy="do"), "error: what [b]", "  do"),
        (ConfigError("what", where="f:1", remedy="do"), "error: f:1: what", "  do"),
        (StoreUnavailable("gone"), "error: gone", "  Is PostgreSQL running"),
        (ContentSealed("no key"), "error: no key", "  What was sealed with a key that was"),
        (StoreConflict("uq"), "error: constraint uq", "  Something of that name"),
        (InvalidRequest("no name"), "error: no name", "  See the command"),
        (
            ResourceNotFound("no such tenant", param="tenant"),
            "error: no such tenant",
            "  List tenants: harmony-gateway tenants list. Create one: harmony-gateway tenants",
        ),
        (
            ResourceNotFound("no such project", param="project_id"),
            "error: no such project",
            "  List those that exist: harmony-gateway projects list TENANT",
        ),
    ],
)
def test_expected_trouble_is_two_plain_lines(
    error: Exception, message: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, report_errors():
        raise error
    assert caught.value.code == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(message)
    assert second.startswith(remedy)


def test_a_user_without_name_and_home_is_one() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become such a user")
    program = (
        "import os; from gateway.cli.command import user_name; "
        "from gateway.settings import Settings; os.environ.clear(); os.setuid(54_321); "
        "print(user_name(), Settings().data_dir)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout == "user 54321 /var/lib/harmony-gateway\n"


def test_an_archive_whose_end_finds_no_room_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        with new_file(path) as file:
            file.write(b"12345678")
            resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))

    try:
        with pytest.raises(OSError, match="File too large"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()


def test_output_without_room_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, report_errors():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("error: there is no room")
    with pytest.raises(FileNotFoundError), report_errors():
        raise FileNotFoundError


def test_a_secret_for_a_closed_output_is_told() -> None:
    command = f"{sys.executable} -m gateway encryption new-key >&-"
    done = subprocess.run(
        ["/bin/sh", "-c", command], stderr=subprocess.PIPE, check=False, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output cannot be written")


CLASS = "type('Any', (), {'name': type('', (), {'__set_name__': interrupt})()})"


@pytest.mark.parametrize(
    ("imported", "action", "code"),
    [
        ("gateway.cli.terminal", CLASS, -signal.SIGINT),
        ("gateway.cli.config", CLASS, -signal.SIGINT),
        ("rich.text", "interrupt()", 128 + signal.SIGINT),
    ],
)
def test_an_interrupt_ends_without_a_word(
    imported: str, action: str, code: int, tmp_path: Path
) -> None:
    """Also where it interrupts the creation of a class, or the report of an error. A shell has 130
    of each.
    """
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def interrupt(*_): signal.raise_signal(signal.SIGINT)\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {imported!r}: {action}\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv[1:] = ['config', 'check']\n"
        "from gateway.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (code, b"")


def test_what_nobody_expected_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), report_errors():
        raise ZeroDivisionError
