"""Child processes: started with a log, found when they listen, and ended by their ids."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.02
LOG_CHARS_SHOWN: Final = 3000
_LISTENING: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


class RunVoid(Exception):
    """What was measured means nothing: something did not start, or an answer was wrong."""


class RowFailed(Exception):
    """A row that is not ours has nothing to show: it answered wrongly, or fell behind."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running server, and where it listens on the loopback interface."""

    pid: int
    port: int


@contextmanager
def running(
    arguments: Sequence[str], log: Path, environ: Mapping[str, str], *, folder: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs in a folder and writes into a log, ended at the end.

    It is in a session of its own, so that Ctrl-C reaches the benchmark alone, which ends it.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


@contextmanager
def server(
    arguments: Sequence[str], log: Path, environ: Mapping[str, str], *, folder: Path = ROOT
) -> Iterator[Child]:
    """A server that runs in a folder and writes its URL into its log when it listens.

    Raises `RunVoid`.
    """
    with running(arguments, log, environ, folder=folder) as process:
        yield Child(process.pid, _port(process, log))


@contextmanager
def passable_folder() -> Iterator[Path]:
    """A temporary folder that PostgreSQL's account can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-bench-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, then make it; returns when it is reaped."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM unwinds what is entered inside; others do not disturb that."""

    def interrupt(*_: object) -> NoReturn:
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {sig: signal.signal(sig, interrupt) for sig in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sig, action in before.items():
            signal.signal(sig, action)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        said = log.read_text("utf-8", "replace")
        listening = [line for line in said.splitlines() if "listening" in line]
        match = _LISTENING.search(listening[0]) if listening else None
        if match is not None:
            return int(match[1])
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunVoid(f"a server did not start:\n{said[-LOG_CHARS_SHOWN:]}")
        time.sleep(POLL_INTERVAL_S)
