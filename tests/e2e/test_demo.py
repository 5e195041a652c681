"""The demo as somebody runs it who never saw the project: real processes, nothing prepared."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import psutil
import pytest

from tests.fakes.postgres import reachable_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
START_S = 60.0
END_S = 20.0
LINES_MAX = 150
FIRST_LINES_MAX = 21
PYTHON = re.compile(r"^\S+ -c '\n[^']*'$", re.MULTILINE)
"""The command of a Python program, as it is printed and pasted."""
UNREACHABLE = "backends: [{name: none, url: 'http://127.0.0.1:9'}]\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_folder() as path:
        yield path


@pytest.fixture
def port() -> int:
    return free_port()


def free_port() -> int:
    """One that was free a moment ago, below those that are given to whoever asks for any: tests
    that run beside this one do not take it meanwhile.
    """
    for number in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", number)):
            return number
    raise AssertionError("no port is free")


def environment(folder: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "TMPDIR", "LANG"} or name.startswith("COVERAGE_")
    }
    mine = {"HOME": str(folder), "GATEWAY_DATA_DIR": str(folder / "data"), "PYTHONUNBUFFERED": "1"}
    return {**kept, **mine, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments]


def once(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("demo", "--once", *arguments),
        env={**environment(folder), **(environ or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


@contextmanager
def running(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*arguments),
        env={**environment(folder), **(environ or {})},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], words: str) -> str:
    """What the process prints, up to the line with these words."""
    assert process.stdout is not None
    seen = ""
    for _ in range(LINES_MAX):
        line = process.stdout.readline()
        seen += line
        if words in line:
            return seen
        assert line, f"ended without {words!r}:\n{seen}"
    raise AssertionError(f"no {words!r} in:\n{seen}")


def pasted(folder: Path, *commands: str) -> str:
    """What commands print, byte for byte as the demo showed them, in a terminal of their own."""
    environ = environment(folder)
    del environ["GATEWAY_DATA_DIR"]
    return subprocess.run(
        ["sh", "-ec", "\n".join(commands)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=True,
    ).stdout


def lives(process: psutil.Process) -> bool:
    """One that has ended may wait for somebody to look at how."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def saved(folder: Path) -> dict[str, str]:
    text = (folder / "data" / "demo.env").read_text(encoding="utf-8")
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


@dataclass(frozen=True)
class FirstDemo:
    """A demo that ran once in a folder where there was nothing, and what is in the folder since."""

    folder: Path
    port: int
    result: subprocess.CompletedProcess[str]
    left: Sequence[psutil.Process]


@pytest.fixture(scope="module")
def first_demo() -> Iterator[FirstDemo]:
    with reachable_folder() as path:
        number = free_port()
        result = once(path, "--examples", "--port", str(number))
        running = psutil.process_iter(["cmdline"])
        yield FirstDemo(
            path, number, result, [p for p in running if str(path) in str(p.info["cmdline"])]
        )


@pytest.mark.slow
def test_the_demo_answers_and_leaves_nothing_running(first_demo: FirstDemo) -> None:
    result = first_demo.result
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    for step in ("postgres", "schema", "tenant", "backend", "gateway", "answer", "stored"):
        assert f"✓ {step} " in result.stdout
    assert "SCRIPTED" in result.stdout
    assert "I am a scripted server, not a model" in result.stdout
    assert f"http://127.0.0.1:{first_demo.port}" in result.stdout
    assert first_demo.left == []


@pytest.mark.slow
def test_the_demo_shows_each_hosted_tool_at_work(first_demo: FirstDemo) -> None:
    printed = first_demo.result.stdout
    for step in ("index", "search", "python", "mcp", "cited", "plotted", "called"):
        assert f"✓ {step} " in printed
    assert re.search(r"cites http://127\.0\.0\.1:\d+/lamp\b", printed)
    assert re.search(r"in the engine \w+", printed)
    assert "10 nmi = 18.52 km" in printed
    plotted = next(line for line in printed.splitlines() if "✓ plotted " in line)
    assert "an image: data:image/png" in plotted or "lines of text" in plotted
    assert "cntr_" in plotted


@pytest.mark.slow
def test_secrets_on_disk_are_for_this_user_only(first_demo: FirstDemo) -> None:
    for name in ("demo.env", "pepper"):
        assert stat.S_IMODE((first_demo.folder / "data" / name).stat().st_mode) == 0o600


@pytest.mark.slow
def test_the_next_demo_has_data_and_key_of_the_first_and_its_own_pages_and_port(
    first_demo: FirstDemo, port: int
) -> None:
    key = saved(first_demo.folder)["OPENAI_API_KEY"]
    noted = first_demo.folder / "data" / "demo-site"
    (before,) = noted.read_text("utf-8").split()
    port_before = int(before.rstrip("/").rpartition(":")[2])
    with ExitStack() as stack:
        with suppress(OSError):  # taken by another program is as good
            stack.enter_context(socket.create_server(("127.0.0.1", port_before)))
        result = once(first_demo.folder, "--examples", environ={"PORT": str(port)})
    assert result.returncode == 0, result.stderr
    assert f"http://127.0.0.1:{port}" in result.stdout
    assert saved(first_demo.folder)["OPENAI_API_KEY"] == key
    for shown in (first_demo.result, result):
        assert key not in shown.stdout + shown.stderr
    (after,) = noted.read_text("utf-8").split()
    assert after != before
    assert f"pages of {after}" in result.stdout
    listed = indexed(first_demo.folder)
    assert listed
    assert all(url.startswith(after) for url in listed)


def indexed(folder: Path) -> list[str]:
    """The URLs that web search finds, as an operator lists them."""
    (folder / "gateway.yaml").write_text(UNREACHABLE)
    try:
        listed = subprocess.run(
            command("pages", "list", "--json"),
            env=environment(folder),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=True,
        )
    finally:
        (folder / "gateway.yaml").unlink()
    return [page["url"] for page in json.loads(listed.stdout)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_of_the_demo_works_when_pasted_and_a_second_gateway_is_refused_its_database(
    folder: Path, port: int
) -> None:
    """Their data folder names one database, which the first stops when it ends."""
    with running(folder, "demo", "--port", str(port)) as first:
        printed = until(first, "Ctrl-C ends it")
        more = matched(r"(?<=^More: ).*$", printed)
        assert f"GATEWAY_DATA_DIR={folder}" in more
        source = matched(r"^\. .*demo\.env$", printed)
        shown_results(folder, source, pasted(folder, more))
        before = saved(folder)
        (folder / "gateway.yaml").write_text(UNREACHABLE)
        for second in ("demo", "serve"):
            result = subprocess.run(
                command(second, "--port", "0"),
                env=environment(folder),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=START_S,
                check=False,
            )
            assert result.returncode == 1
            message, remedy = result.stderr.splitlines()[-2:]
            assert f"a gateway already runs on {folder}" in message
            assert f"(process {first.pid})" in message
            assert "GATEWAY_DATA_DIR=" in remedy
            assert ("demo.env" in remedy) == (second == "demo")
            assert saved(folder) == before
            assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(END_S) == 0
    assert not (folder / "data" / "demo-examples.txt").exists()


@pytest.mark.slow
def test_a_taken_port_is_told_in_two_lines(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = once(folder, "--port", str(port))
    assert result.returncode == 1
    message, remedy = result.stderr.splitlines()
    assert f"127.0.0.1:{port}" in message
    assert "--port" in remedy
    assert not (folder / "data").exists()


@pytest.mark.timeout(300)
def test_what_the_demo_prints_works_when_pasted_and_ctrl_c_ends_it(folder: Path, port: int) -> None:
    with running(folder, "demo", environ={"GATEWAY_SERVER__PORT": str(port)}) as process:
        printed = until(process, "Ctrl-C ends it")
        assert len(printed.splitlines()) <= FIRST_LINES_MAX
        assert f"http://127.0.0.1:{port}" in printed
        assert "I am a scripted server, not a model" in printed
        assert "✓ cited " not in printed, "without --examples"
        link = matched(r"(?<=^Console, once within ten minutes: ).*$", printed)
        assert signed_in(link) == "Now"
        children = psutil.Process(process.pid).children(recursive=True)
        source = matched(r"^\. .*demo\.env$", printed)
        curl = matched(r"^curl .*\\\n.*$", printed)
        (python,) = PYTHON.findall(printed)
        answers = pasted(folder, source, curl, python)
        assert "event: response.completed" in answers
        assert answers.rstrip().endswith("I am a scripted server, not a model 🤖.")
        assert "POST /v1/responses  200" in until(process, "POST /v1/responses")
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()
    assert children
    assert [child for child in children if lives(child)] == []


def signed_in(link: str) -> str:
    """The heading of the page that the link leads to."""
    base, _, token = link.partition("?token=")
    with httpx2.Client(follow_redirects=True, trust_env=False) as client:
        headers = {"sec-fetch-site": "same-origin"}
        page = client.post(base, data={"token": token}, headers=headers)
        again = client.post(base, data={"token": token}, headers=headers)
    assert (page.status_code, again.status_code) == (200, 403)
    return matched(r"(?<=<h1>)\w+(?=</h1>)", page.text)


def matched(pattern: str, printed: str) -> str:
    found = re.search(pattern, printed, re.MULTILINE)
    assert found, printed
    return found[0]


def shown_results(folder: Path, source: str, examples: str) -> None:
    """Paste each command of `demo --examples`."""
    assert " -m gateway launch codex\n" in examples
    projects, refused, used, resumed, cited, plotted, called = (
        pasted(folder, source, command) for command in PYTHON.findall(examples)
    )
    assert "Second project" in projects
    assert refused.startswith(3 * "completed\n" + "Error code: 429 - Rate limit reached for ")
    assert used.startswith("100 cents\nproj_")
    assert len(used.splitlines()) == 3, "the budget, and both projects"
    assert "\n1 response.queued\n" in f"\n{resumed}"
    assert re.search(r"\]\(http://127\.0\.0\.1:\d+/lamp\)", cited)
    assert "data:image/png" in plotted or " *\n" in plotted
    assert "18.52 km" in called


@pytest.mark.slow
def test_a_gateway_without_a_database_brings_its_own(folder: Path, port: int) -> None:
    (folder / "gateway.yaml").write_text(UNREACHABLE)
    with running(folder, "serve", "--port", str(port)) as gateway:
        until(gateway, '"listening"')
        made = [["tenants", "create", "acme"], ["keys", "create", "acme"]]
        results = [
            subprocess.run(
                command(*arguments),
                env=environment(folder),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=START_S,
                check=True,
            )
            for arguments in made
        ]
        assert results[1].stdout.startswith("sk-")
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(END_S) == 0
