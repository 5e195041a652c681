"""(e) Memory of a new process, and of each of 1,000 streams that say little."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.load import accounting, loading
from tests.load.figures import Column, Target
from tests.load.loading import Load
from tests.load.systems import BACKEND, BACKGROUND, FOREGROUND, STORED, SYSTEMS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

LOAD: Final = Load(streams=1000, requests=1000, tokens=60, rate_per_s=4, ramp_s=6)
WARM_UP: Final = Load(streams=8, requests=64, tokens=60)
"""What is loaded with the first requests belongs to no stream."""
SAMPLED_AFTER_S: Final = 10.0
"""All streams run then: the last one has begun and the first one has not ended."""
MIB: Final = 1024.0
STREAM_KIB_MAX: Final = 40.0
IDLE_MIB_MAX: Final = 110.0


class Memory:
    """Every measurement is of a process of its own."""

    letter = "e"
    title = "1,000 streams of 4 tokens/s: memory"
    is_quick = False
    columns = (
        Column("idle RSS MiB", "idle_rss_mib", 1),
        Column("idle PSS MiB", "idle_pss_mib", 1),
        Column("warm PSS MiB", "warm_pss_mib", 1),
        Column("KiB/stream (RSS)", "stream_rss_kib", 1),
        Column("KiB/stream (PSS)", "stream_pss_kib", 1),
    )
    targets = (
        Target(FOREGROUND, "RSS MiB when idle", "idle_rss_mib", IDLE_MIB_MAX),
        *(
            Target(row, "KiB (PSS) a stream", "stream_pss_kib", STREAM_KIB_MAX)
            for row in (FOREGROUND, STORED, BACKGROUND)
        ),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        """All but the backend, which keeps what is sent in memory for all."""
        return [name for name in stack.offered if name != BACKEND]

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        yield lambda row: measure(stack, row)


def measure(stack: Stack, row: str) -> Figures:
    """KiB of each stream above what the process had after its first requests, and what it had."""
    system = SYSTEMS[row]
    with stack.fresh(system.program) as child:
        accounting.settle([child.pid])
        idle_rss, idle_pss = accounting.memory_kib(child.pid)
        loading.measure(stack, system, WARM_UP, children=[child])
        warm_rss, warm_pss = accounting.memory_kib(child.pid)
        loaded: list[tuple[float, float]] = []

        def sample(_: subprocess.Popen[bytes]) -> None:
            time.sleep(SAMPLED_AFTER_S)
            loaded.append(accounting.memory_kib(child.pid))

        loading.measure(stack, system, LOAD, children=[child], during=sample)
    (rss, pss) = loaded[0]
    return {
        "idle_rss_mib": idle_rss / MIB,
        "idle_pss_mib": idle_pss / MIB,
        "warm_pss_mib": warm_pss / MIB,
        "stream_rss_kib": (rss - warm_rss) / LOAD.streams,
        "stream_pss_kib": (pss - warm_pss) / LOAD.streams,
    }
