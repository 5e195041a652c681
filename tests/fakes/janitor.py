"""End every process that a test run started, once the run itself is gone.

Fixtures end what they started, unless the run is interrupted twice, terminated or killed. The
janitor survives that: it reads a pipe whose only writer is the run. Every two seconds it notes the
descendants of the run, because orphans have lost the parent that tells whose they are.
It needs `/proc`; elsewhere it is not started.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "HARMONY_GATEWAY_TEST_RUN"
"""The id of the process that the janitor watches."""
POLL_S: Final = 2.0
GRACE_S: Final = 2.0
"""From the end of the run to SIGTERM, and from there to SIGKILL."""
_PROC: Final = Path("/proc")


def start() -> subprocess.Popen[bytes] | None:
    """Start the janitor of this process, which waits until its stdin is closed.

    None where there is no `/proc`, or where a run around this one has a janitor already.
    """
    if VARIABLE in os.environ or not (_PROC / "self" / "stat").exists():
        return None
    os.environ[VARIABLE] = str(os.getpid())
    return subprocess.Popen(
        [sys.executable, "-S", __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is meant for the run, and reaches its whole group.
        start_new_session=True,
    )


def folder_prefix(root: int | None = None) -> str:
    """Return the beginning of the names of a run's folders in memory."""
    return f"gateway-test-{root or os.environ.get(VARIABLE, os.getpid())}-"


def remove_folders(root: int) -> None:
    """Remove what a run that is gone left in memory."""
    for folder in Path("/dev/shm").glob(f"{folder_prefix(root)}*"):
        shutil.rmtree(folder, ignore_errors=True)


class Descendants:
    """The processes that have descended from `root`, which itself is not among them."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._starts: dict[int, str] = {}

    def update(self) -> list[int]:
        """Note new ones, forget those that have ended, and return the ids of all."""
        parents, starts = _table()
        kept = {pid for pid, at in self._starts.items() if starts.get(pid) == at}
        for pid in parents:
            line, ancestor = [], pid
            while ancestor in parents and ancestor not in kept and ancestor != self._root:
                line.append(ancestor)
                ancestor = parents[ancestor]
            if ancestor in kept or ancestor == self._root:
                kept.update(line)
        kept.discard(os.getpid())
        self._starts = {pid: starts[pid] for pid in kept}
        return list(kept)

    def end(self) -> None:
        """End all of them, by force those that do not end when asked."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + GRACE_S
            while self.update() and time.monotonic() < deadline:
                time.sleep(POLL_S / 10)
            for pid in self.update():
                with suppress(OSError):
                    os.kill(pid, number)


def _table() -> tuple[dict[int, int], dict[int, str]]:
    """Return the parent and the start time of each living process."""
    parents, starts = {}, {}
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            # The name of the program is in parentheses, and may hold anything.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)], starts[int(entry.name)] = int(fields[1]), fields[19]
    return parents, starts


def _watch(root: int) -> None:
    descendants = Descendants(root)
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        descendants.update()
    descendants.end()
    remove_folders(root)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
