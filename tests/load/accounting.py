"""What the operating system charges a process and its children: CPU and memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

KIB: Final = 1024
SETTLED_MS: Final = 2.0
"""CPU in one `SETTLING_STEP_S`; who uses less than that has nothing left to do."""
SETTLING_STEP_S: Final = 0.1
SETTLING_MAX_S: Final = 3.0
_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of Linux: the low bits of the clock that clock_getcpuclockid(3) names."""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, of its children, and of children that were reaped.

    Those that live are counted in nanoseconds, by their CPU-time clocks; those that were reaped in
    the ticks of /proc/PID/stat.
    """
    total = 0.0
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess, OSError):
            total += time.clock_gettime((~process.pid << 3) | _CPU_CLOCK)
            times = process.cpu_times()
            total += times.children_user + times.children_system
    return total


def memory_kib(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process and its children: PSS counts a shared page only once."""
    rss = pss = 0.0
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess, OSError):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()
            fields = {line.split()[0]: line.split()[1] for line in lines[1:]}
            rss += float(fields["Rss:"])
            pss += float(fields["Pss:"])
    return rss, pss


def settle(pids: Iterable[int]) -> None:
    """Wait until these have finished what was left for later, for a few seconds at most."""
    watched = list(pids)
    deadline = time.monotonic() + SETTLING_MAX_S
    used = sum(map(cpu_s, watched))
    while time.monotonic() < deadline:
        time.sleep(SETTLING_STEP_S)
        before, used = used, sum(map(cpu_s, watched))
        if (used - before) * 1e3 < SETTLED_MS:
            return


def pin(pid: int, cores: Collection[int]) -> None:
    """Let a process and its children, all their threads, run on these cores only."""
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cores)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
