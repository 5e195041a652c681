"""(a) to (c): many streams at once, as fast as they are read or at the pace of an engine."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.load import loading
from tests.load.figures import Column, Target
from tests.load.loading import Load
from tests.load.systems import BACKGROUND, FOREGROUND, NGINX, STORED, SYSTEMS
from tests.load.workloads.parts import PARTS, SUM, Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

OURS: Final = (FOREGROUND, STORED, BACKGROUND)
PARTS_LIMIT: Final = 1.5
DATABASE_LIMIT_US: Final = 0.5
WARM_UP: Final = Load(streams=16, requests=64, tokens=100)
_CPU_COLUMNS: Final = (
    Column("CPU μs/token", "cpu_us", 2),
    Column("x nginx", "cpu_us", 2, "times", NGINX),
    Column("x parts", "cpu_us", 2, "times", SUM),
    Column("PostgreSQL μs/token", "database_us", 2),
)
_LATENCY_COLUMNS: Final = (
    Column("first token p50 μs", "first_p50_us"),
    Column("p99", "first_p99_us"),
    Column("token p50 μs", "latency_p50_us"),
    Column("p99", "latency_p99_us"),
)
_BUSY_COLUMNS: Final = (
    Column("tokens/event", "tokens_per_event", 1),
    Column("tokens/s", "tokens_per_s"),
    Column("busy: system", "busy", 2),
    Column("backend", "backend_busy", 2),
    Column("clients", "client_busy", 2),
)


@dataclass(frozen=True, slots=True)
class Streams:
    """One load, on every system and on the gateway's parts."""

    letter: str
    title: str
    load: Load
    quick_load: Load
    columns: Sequence[Column]
    targets: Sequence[Target]
    is_quick: bool = True

    def rows(self, stack: Stack) -> Sequence[str]:
        """The parts come last: they are read in events as large as the gateway's were."""
        ours = FOREGROUND in stack.offered
        return [*stack.offered, *((*PARTS, SUM) if ours else ())]

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        load = self.quick_load if quick else self.load
        parts = Parts(stack, load)
        loading.warm_up(stack, stack.offered, WARM_UP)

        def measure(row: str) -> Figures:
            if row in SYSTEMS:
                figures = loading.measure(stack, SYSTEMS[row], load)
                if row == FOREGROUND:
                    parts.tokens_per_event = figures["tokens_per_event"]
                return figures
            return parts.measure(row)

        yield measure


def _times_nginx(limit: float, *rows: str) -> Iterator[Target]:
    return (Target(row, "CPU per token", "cpu_us", limit, "times", NGINX) for row in rows)


def _times_parts(*rows: str) -> Iterator[Target]:
    return (Target(row, "CPU per token", "cpu_us", PARTS_LIMIT, "times", SUM) for row in rows)


_SATURATED_LOAD: Final = Load(streams=64, requests=320, tokens=1000)
_PACED_LOAD: Final = Load(streams=64, requests=128, tokens=200, rate_per_s=50, ramp_s=4)
_MANY_LOAD: Final = Load(streams=1000, requests=1000, tokens=200, rate_per_s=20, ramp_s=10)

SATURATED: Final = Streams(
    "a",
    "64 streams, as fast as possible",
    _SATURATED_LOAD,
    replace(_SATURATED_LOAD, requests=128),
    (*_CPU_COLUMNS, *_BUSY_COLUMNS),
    (
        *_times_nginx(0.95, FOREGROUND),
        *_times_nginx(1.1, BACKGROUND),
        Target(BACKGROUND, "PostgreSQL's CPU, μs per token", "database_us", DATABASE_LIMIT_US),
        *_times_parts(FOREGROUND),
    ),
)
PACED: Final = Streams(
    "b",
    "64 streams of 50 tokens/s",
    _PACED_LOAD,
    replace(_PACED_LOAD, requests=64, tokens=100, ramp_s=1),
    (*_CPU_COLUMNS, *_LATENCY_COLUMNS, *_BUSY_COLUMNS),
    (*_times_nginx(2.2, *OURS), *_times_parts(FOREGROUND)),
)
MANY: Final = Streams(
    "c",
    "1,000 streams of 20 tokens/s",
    _MANY_LOAD,
    replace(_MANY_LOAD, tokens=60, ramp_s=3),
    (*_CPU_COLUMNS, *_LATENCY_COLUMNS, *_BUSY_COLUMNS),
    (*_times_nginx(1.8, *OURS), *_times_parts(FOREGROUND)),
    is_quick=False,
)
