"""What a command says about an error of the database."""

from __future__ import annotations

import os
import subprocess
import sys

import asyncpg
import pytest

from gateway.cli import terminal
from gateway.cli.terminal import remedy_for, report_errors
from gateway.store.postgres.driver import translate
from tests.fakes.cases import each


def remedy(state: str) -> str:
    return remedy_for(translate(asyncpg.PostgresError.new({"C": state, "M": "no"})))


@each(
    "state",
    ["28P01", "28000", "3D000", "42501", "42P01", "42703", "42883", "53100", "53300", "55P03",
     "57014", "57P03", "25006", "22021", "XX000", "40001"],
)  # fmt: skip
def test_whether_it_runs_is_not_asked_when_the_server_has_spoken(state: str) -> None:
    assert "running" not in remedy(state)


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionRefusedError(), FileNotFoundError()])
def test_it_is_asked_when_nobody_answered(error: OSError) -> None:
    assert remedy_for(translate(error)).startswith("Is PostgreSQL running")


@pytest.mark.parametrize(
    ("state", "word"),
    [("28P01", "password"), ("3D000", "CREATE DATABASE"), ("42501", "own"), ("42P01", "db upgrade"),
     ("53100", "room"), ("53300", "max_connections"), ("25006", "standby")],
)  # fmt: skip
def test_what_to_do_next_fits_what_happened(state: str, word: str) -> None:
    assert word in remedy(state)


def test_a_mistake_of_ours_is_not_taken_for_an_absent_server() -> None:
    assert "running" not in remedy_for(translate(asyncpg.DataError("wrong")))


def test_a_refusal_is_told_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    error = asyncpg.PostgresError.new({"C": "28P01", "M": "password authentication failed"})
    with pytest.raises(SystemExit), report_errors():
        raise translate(error)
    said = capsys.readouterr().err
    assert "error: database: password authentication failed (28P01)" in said
    assert "Are user and password" in said


def test_what_others_said_is_one_line_and_tells_the_terminal_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.table(("NAME", "MODELS"), [("b", "m\x1b[31mred\nx"), ("c", "n")])
    terminal.step(terminal.OK, "backend\x1b]0;b", "answered\r\nno")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "NAME  MODELS",
        r"b     m\x1b[31mred\nx",
        "c     n",
        r"  ✓ backend\x1b]0;b answered\r\nno",
    ]


COUNTING = """
import sys
from gateway.cli import terminal
terminal.PROGRESS_LINE_S = 0.01
with terminal.progress("rows", 10) as advance:
    advance(3)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_what_takes_long_says_in_lines_how_far_it_is_where_there_is_no_terminal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COUNTING], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]
    _, rest = process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert [line.partition(" after")[0] for line in lines] == ["rows: 3 of 10"] * 2
    assert "\x1b" not in "".join(lines) + rest


@pytest.mark.slow
def test_it_is_a_bar_on_a_terminal() -> None:
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", COUNTING],
        stdin=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(follower)
    shown = b""
    with os.fdopen(leader, "rb", buffering=0) as screen:
        while b"rows" not in shown or "━".encode() not in shown:
            shown += screen.read(4096)
        process.communicate(b"\n", timeout=30)
    assert process.returncode == 0


@pytest.mark.slow
def test_what_is_quick_says_nothing() -> None:
    program = COUNTING.replace("0.01", "60").replace("    sys.stdin.readline()\n", "")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
