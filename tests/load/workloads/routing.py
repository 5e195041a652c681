"""(n) Where a prompt goes: what the decision costs, and what all that is known takes.

In this process. Of 32,768 ids and eight members: hashing and a decision of which nothing is known;
a decision for a prompt that was seen before, beside hashing; and what is noted at the first token
and at the end of a turn. The memory is that of an index that is full.
"""

from __future__ import annotations

import time
import tracemalloc
from array import array
from contextlib import contextmanager
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

from gateway.generation import Route
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.prefix_index import HashedPrefix, PrefixIndex, PrefixKeys
from gateway.upstreams.routing.router import ENTRIES_MAX, Router
from tests.load.figures import Column, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

IDS: Final = 32_768
MEMBERS: Final = tuple(f"gpu-{n}" for n in range(8))
SAID: Final = array("I", range(300))
COLD, WARM, NOTED, MEMORY = "cold", "warm, hashed", "first token and end", "a full index"
RUNS: Final = 2_000
QUICK_RUNS: Final = 200
SECRET: Final = b"secret" * 6


class RoutingDecision:
    """There is no row of another system."""

    letter = "n"
    title = f"where a prompt of {IDS:,} ids goes, of {len(MEMBERS)} members, in process"
    is_quick = True
    columns = (Column("us", "us", 1), Column("MB", "megabytes", 1))
    targets = (
        Target(COLD, "us of a cold decision", "us", 500),
        Target(WARM, "us of a warm one", "us", 60),
        Target(MEMORY, "MB of a full index", "megabytes", 40),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return (COLD, WARM, NOTED, MEMORY)

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        runs = QUICK_RUNS if quick else RUNS

        def measure(row: str) -> Figures:
            if row == MEMORY:
                return {"megabytes": _megabytes()}
            return {"us": _microseconds(row, runs)}

        yield measure


def _microseconds(row: str, runs: int) -> float:
    random = Random(1)
    ids = array("I", (random.randrange(200_000) for _ in range(IDS)))
    router = Router(RoutingPolicy(), SECRET, metrics=Metrics(), random=random)
    key, route = PrefixKeys(SECRET).of("salt", "m"), Route()
    prompt = HashedPrefix(ids, key)

    def cold() -> None:
        router.choose(MEMBERS, HashedPrefix(ids, key))

    def warm() -> None:
        router.choose(MEMBERS, prompt, route)

    decision = router.choose(MEMBERS, prompt)

    def noted() -> None:
        flight = router.begin(decision, route)
        flight.first()
        flight.ended(SAID, 30_000, is_finished=True)
        flight.close()

    if row == WARM:
        noted()
    act = {COLD: cold, WARM: warm, NOTED: noted}[row]
    return median(_timed(act) for _ in range(runs))


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - began) / 1000


def _megabytes() -> float:
    """Of as many entries as there may be, each with three members."""
    random = Random(1)
    tracemalloc.start()
    try:
        index = PrefixIndex(ENTRIES_MAX)
        for digest in (random.getrandbits(64) for _ in range(ENTRIES_MAX)):
            for member in (1, 2, 3):
                index.put(digest, member, 100)
        return tracemalloc.get_traced_memory()[0] / 1e6
    finally:
        tracemalloc.stop()
