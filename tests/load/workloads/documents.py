"""(j) Short answers in one piece: what a request costs when there is no stream."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.load import loading
from tests.load.figures import Column, Target
from tests.load.loading import Load
from tests.load.systems import BACKGROUND, FOREGROUND, NGINX, STORED, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

LOAD: Final = Load(streams=16, requests=2000, tokens=24, streamed=False)
WARM_UP: Final = replace(LOAD, requests=100)


class Documents:
    """A background request is answered before there is anything to read, so it has no row."""

    letter = "j"
    title = "16 clients, JSON of 24 tokens, as fast as possible"
    is_quick = True
    columns = (
        Column("requests/s", "requests_per_s"),
        Column("CPU ms/request", "cpu_ms_per_request", 2),
        Column("x nginx", "cpu_ms_per_request", 1, "times", NGINX),
        Column("PostgreSQL ms/request", "database_ms_per_request", 2),
        Column("p50 μs", "whole_p50_us"),
        Column("p99 μs", "whole_p99_us"),
        Column("busy: system", "busy", 2),
    )
    targets = (
        Target(FOREGROUND, "CPU ms per request", "cpu_ms_per_request", 1.0),
        Target(STORED, "CPU ms per request", "cpu_ms_per_request", 2.0),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return [name for name in stack.offered if name != BACKGROUND]

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        load = replace(LOAD, requests=400) if quick else LOAD
        loading.warm_up(stack, self.rows(stack), WARM_UP)
        yield lambda row: loading.measure(stack, SYSTEMS[row], load)
