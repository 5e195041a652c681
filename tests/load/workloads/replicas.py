"""(k) One, two and four gateway processes on one PostgreSQL."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.load import accounting, loading
from tests.load.figures import Column
from tests.load.loading import Load
from tests.load.systems import STORED, SYSTEMS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures, Target
    from tests.load.stack import Stack

LOAD: Final = Load(streams=64, requests=2560, tokens=100)
PROCESSES: Final = {"1 process": 1, "2 processes": 2, "4 processes": 4}
SINGLE: Final = "1 process"
PINNED_FROM_CORES: Final = 4
"""With fewer cores nothing can be set aside for the load."""


class Replicas:
    """Stored streams, since what the processes share is the database.

    Clients and backend have the last core to themselves; the gateway's processes and PostgreSQL
    have the others. With fewer cores than processes the figures show how little that costs, and
    not how far it scales.
    """

    letter = "k"
    title = "1, 2 and 4 gateway processes on one PostgreSQL: 64 stored streams of 100 tokens"
    is_quick = False
    columns = (
        Column("cores for them", "cores"),
        Column("requests/s", "requests_per_s"),
        Column("x 1 process", "requests_per_s", 2, "times", SINGLE),
        Column("tokens/s", "tokens_per_s"),
        Column("CPU ms/request", "cpu_ms_per_request", 2),
        Column("PostgreSQL ms/request", "database_ms_per_request", 2),
        Column("first token p50 μs", "first_p50_us"),
        Column("p99", "first_p99_us"),
        Column("busy: gateways", "busy", 2),
        Column("clients", "client_busy", 2),
        Column("backend", "backend_busy", 2),
    )
    targets: Sequence[Target] = ()

    def rows(self, stack: Stack) -> Sequence[str]:
        return list(PROCESSES) if STORED in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        load = replace(LOAD, requests=320) if quick else LOAD
        with pinned_load(stack) as (cores, pin_clients), ExitStack() as gateways:
            system = SYSTEMS[STORED]
            most = max(PROCESSES.values())
            children = [gateways.enter_context(stack.fresh("gateway")) for _ in range(most)]
            for child in children:
                accounting.pin(child.pid, cores)
            loading.measure(stack, system, replace(load, requests=256), children=children)

            def measure(row: str) -> Figures:
                asked = children[: PROCESSES[row]]
                seen = loading.measure(stack, system, load, children=asked, during=pin_clients)
                return {**seen, "cores": len(cores)}

            yield measure


@contextmanager
def pinned_load(
    stack: Stack,
) -> Iterator[tuple[set[int], Callable[[subprocess.Popen[bytes]], None]]]:
    """Backend on the last core; the cores of the others, and what pins clients there too."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < PINNED_FROM_CORES:
        yield set(cores), lambda _: None
        return
    last, rest = {cores[-1]}, set(cores[:-1])
    accounting.pin(stack.backend.pid, last)
    accounting.pin(stack.database_pid, rest)
    try:
        yield rest, lambda process: accounting.pin(process.pid, last)
    finally:
        accounting.pin(stack.backend.pid, cores)
        accounting.pin(stack.database_pid, cores)
