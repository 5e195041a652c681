"""(l) How long one large request holds up the streams of others."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from tests.load import heavy, loading
from tests.load.asking import asking
from tests.load.figures import Column, Target
from tests.load.loading import Load, word_times
from tests.load.processes import RunVoid
from tests.load.systems import FOREGROUND, SYSTEMS
from tests.load.workloads.streams import WARM_UP

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

LOAD: Final = Load(streams=64, requests=64, tokens=350, rate_per_s=50, ramp_s=1)
BEGUN_AFTER_S: Final = 1.5
SENDING_S: Final = 3.8
"""Streams take seven seconds each: the last window ends before the first one of them."""
WINDOW_S: Final = 0.4
PAUSE_S: Final = 0.1
LIMIT_MS: Final = 5.0
QUIET: Final = "nothing (noise)"
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when, on the monotonic clock (ns)."""

    begins: int
    ends: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A window in which the request was sent, answered after `answered_ms`; one as long without."""

    loud: Window
    quiet: Window
    answered_ms: float


class Stall:
    """The worst of some thousand words is a figure of the machine as well: a row without any
    request says how much two windows differ that are alike."""

    letter = "l"
    title = "64 streams of 50 tokens/s, and one large request beside them"
    is_quick = False
    columns = (
        Column("worst token ms", "loud_ms", 1),
        Column("without it", "quiet_ms", 1),
        Column("excess ms", "excess_ms", 1),
        Column("largest excess", "largest_ms", 1),
        Column("answered in ms", "answered_ms", 1),
        Column("windows", "pairs"),
    )
    targets = tuple(
        Target(row, "ms that the worst token is later", "excess_ms", LIMIT_MS)
        for row in heavy.REQUESTS
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return [QUIET, *heavy.REQUESTS] if FOREGROUND in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        child = stack.child(SYSTEMS[FOREGROUND])
        loading.warm_up(stack, [FOREGROUND], WARM_UP)
        stack.marks.set_rate(0)
        requests: dict[str, bytes] = {}
        with asking(child.port, stack.key) as client:
            for row, make in heavy.REQUESTS.items():
                requests[row] = make(stack, child, client)
                client.ask(requests[row])
        yield lambda row: measure(stack, requests.get(row))


def measure(stack: Stack, request: bytes | None) -> Figures:
    """Medians over the pairs of windows; what a window is later than the other, ms."""
    times = stack.new_path("times")
    load = replace(LOAD, times=str(times))
    system = SYSTEMS[FOREGROUND]
    pairs: list[Pair] = []

    def send(_: subprocess.Popen[bytes]) -> None:
        time.sleep(BEGUN_AFTER_S)
        until = time.monotonic() + SENDING_S
        while time.monotonic() < until:
            pairs.append(_pair(stack, request))

    loading.run(stack, system, load, [stack.child(system)], during=send)
    return figures_of(pairs, word_times(times))


def _pair(stack: Stack, request: bytes | None) -> Pair:
    """Returns when both windows are over."""
    with asking(stack.child(SYSTEMS[FOREGROUND]).port, stack.key) as client:
        begins = time.monotonic_ns()
        answered_ms = 0.0 if request is None else client.ask(request).us / 1e3
    length_s = max(WINDOW_S, answered_ms / 1e3 + PAUSE_S)
    loud = Window(begins, begins + int(length_s * _NS))
    quiet_begins = loud.ends + int(PAUSE_S * _NS)
    quiet = Window(quiet_begins, quiet_begins + int(length_s * _NS))
    time.sleep(max(quiet.ends - time.monotonic_ns(), 0) / _NS + PAUSE_S)
    return Pair(loud, quiet, answered_ms)


def figures_of(pairs: Sequence[Pair], words: Sequence[tuple[int, int]]) -> Figures:
    """`words`: when each was sent and read. Raises `RunVoid` unless streams ran in some pair.

    Pairs that the streams ended in count for nothing.
    """
    ordered = sorted(words)
    kept = [pair for pair in pairs if _is_covered(pair, ordered)]
    if not kept:
        raise RunVoid("no pair of windows is over before the streams are")
    loud = [worst_ms(pair.loud, ordered) for pair in kept]
    quiet = [worst_ms(pair.quiet, ordered) for pair in kept]
    excess = [one - other for one, other in zip(loud, quiet, strict=True)]
    return {
        "loud_ms": median(loud),
        "quiet_ms": median(quiet),
        "excess_ms": median(excess),
        "largest_ms": max(excess),
        "answered_ms": median(pair.answered_ms for pair in kept),
        "pairs": len(kept),
    }


def worst_ms(window: Window, ordered: Sequence[tuple[int, int]]) -> float:
    """The longest way of any word that was sent in a window; 0 without any."""
    inside = ordered[
        bisect_left(ordered, (window.begins, 0)) : bisect_left(ordered, (window.ends, 0))
    ]
    return max((read - sent for sent, read in inside), default=0) / 1e6


def _is_covered(pair: Pair, ordered: Sequence[tuple[int, int]]) -> bool:
    return bool(ordered) and pair.quiet.ends <= ordered[-1][0] and ordered[0][0] <= pair.loud.begins
