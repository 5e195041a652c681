"""(d) How much later the first word comes than from the bare backend, at 1 and at 64 streams."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.load import loading
from tests.load.figures import Column, Target
from tests.load.loading import Load
from tests.load.systems import BACKEND, FOREGROUND, NGINX, SYSTEMS
from tests.load.workloads.streams import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

ONE: Final = Load(streams=1, requests=100, tokens=16, rate_per_s=200)
MANY: Final = Load(streams=64, requests=1280, tokens=50, rate_per_s=50, ramp_s=1)
_FIGURES: Final = ("first_p50_us", "first_p99_us")


class FirstToken:
    """Both loads are one measurement: figures `one_…` and `many_…`."""

    letter = "d"
    title = "first token: 1 stream of 200 tokens/s, and 64 streams of 50 tokens/s"
    is_quick = True
    columns = (
        Column("1 stream p50 μs", "one_first_p50_us"),
        Column("p99", "one_first_p99_us"),
        Column("added p50", "one_first_p50_us", 0, "above", BACKEND),
        Column("added p99", "one_first_p99_us", 0, "above", BACKEND),
        Column("64 streams p50 μs", "many_first_p50_us"),
        Column("p99", "many_first_p99_us"),
        Column("added p50", "many_first_p50_us", 0, "above", BACKEND),
        Column("added p99", "many_first_p99_us", 0, "above", BACKEND),
    )
    targets = (
        Target(FOREGROUND, "p50 μs at 64 streams", "many_first_p50_us", 600, "above", NGINX),
        Target(FOREGROUND, "p99 μs at 64 streams", "many_first_p99_us", 2000, "above", NGINX),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return stack.offered

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        one = replace(ONE, requests=20) if quick else ONE
        many = replace(MANY, requests=192) if quick else MANY
        loading.warm_up(stack, stack.offered, WARM_UP)

        def measure(row: str) -> Figures:
            figures: dict[str, float] = {}
            for name, load in (("one", one), ("many", many)):
                seen = loading.measure(stack, SYSTEMS[row], load)
                figures |= {f"{name}_{figure}": seen[figure] for figure in _FIGURES}
            return figures

        yield measure
