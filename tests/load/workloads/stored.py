"""(g) Creating and reading a response when few or very many are stored."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final

from gateway import ids
from tests.load import crowds, loading
from tests.load.asking import asking
from tests.load.figures import Column, Target
from tests.load.loading import Load
from tests.load.systems import STORED, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.crowds import Crowd
    from tests.load.figures import Figures
    from tests.load.stack import Stack

COUNTS: Final = {"1,000": 1000, "100,000": 100_000, "1,000,000": 1_000_000}
FEW: Final = "1,000"
QUICK_COUNT_MAX: Final = 100_000
LOAD: Final = Load(streams=1, requests=400, tokens=crowds.TOKENS, streamed=False)
QUICK_REQUESTS: Final = 150
RATIO_MAX: Final = 1.3


class Stored:
    """Every row is a gateway on a database of its own, all on one PostgreSQL."""

    letter = "g"
    title = "create and get, one at a time, with many responses stored"
    is_quick = False
    columns = (
        Column("create p50 μs", "whole_p50_us"),
        Column("x few", "whole_p50_us", 2, "times", FEW),
        Column("p99", "whole_p99_us"),
        Column("PostgreSQL ms/create", "database_ms_per_request", 2),
        Column("get p50 μs", "get_p50_us"),
        Column("x few", "get_p50_us", 2, "times", FEW),
        Column("p99", "get_p99_us"),
    )
    targets = tuple(
        Target(row, title, figure, RATIO_MAX, "times", FEW)
        for row in list(COUNTS)[1:]
        for title, figure in (("p50 of create", "whole_p50_us"), ("p50 of get", "get_p50_us"))
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return list(COUNTS) if STORED in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        load = replace(LOAD, requests=QUICK_REQUESTS) if quick else LOAD
        with ExitStack() as opened:
            made = {
                row: opened.enter_context(crowds.crowd(stack, count))
                for row, count in COUNTS.items()
                if not quick or count <= QUICK_COUNT_MAX
            }
            for one in made.values():
                measure(one, replace(load, requests=QUICK_REQUESTS))
            yield lambda row: measure(made[row], load) if row in made else {}


def measure(crowd: Crowd, load: Load) -> Figures:
    """As many created as read: μs as the client sees them."""
    seen = loading.measure(crowd.stack, SYSTEMS[STORED], load, children=[crowd.child])
    wanted = [crowd.ids[at % len(crowd.ids)] for at in range(load.requests)]
    with asking(crowd.child.port, crowd.stack.key) as client:
        got = [client.get(f"/v1/responses/{ids.response_id(uuid)}").us for uuid in wanted]
    return {**seen, "get_p50_us": median(got), "get_p99_us": quantiles(got, n=100)[-1]}
