"""Samples of several repetitions → tables.

Every figure is the median of its repetitions. What is compared with the bare backend is compared
within a repetition first, so that a machine that is slow for a while is slow for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final

from tests.load.measuring import Sample
from tests.load.stack import BARE

Samples = Mapping[str, Sequence[Sample]]
"""By system, one for each repetition."""
Figure = Callable[[Sample], float]
Cell = Callable[[Samples, str], str]
NONE: Final = "-"
NOTES: Final = """\
CPU μs/token      user and system time of the system's own process, requests and all, per token
tokens/s per core  what one second of that CPU pays for; PostgreSQL, on top of it, is counted apart
tokens/event       how many tokens one delta carried: what has already come is sent together
first token        from writing the request to reading the first text of the model
busy               cores used: the bottleneck is near 1, and should be the system"""


def plain(figure: Figure, *, digits: int = 0) -> Cell:
    """The figure itself."""
    return lambda samples, system: f"{median(map(figure, samples[system])):,.{digits}f}"


def ratio(figure: Figure) -> Cell:
    """How many times the bare backend's."""

    def cell(samples: Samples, system: str) -> str:
        pairs = zip(samples[system], samples[BARE], strict=True)
        return f"{median(figure(one) / figure(bare) for one, bare in pairs):.2f}"

    return cell


def added(figure: Figure) -> Cell:
    """How much more than the bare backend's."""

    def cell(samples: Samples, system: str) -> str:
        pairs = zip(samples[system], samples[BARE], strict=True)
        return f"{median(figure(one) - figure(bare) for one, bare in pairs):+,.0f}"

    return lambda samples, system: NONE if system == BARE else cell(samples, system)


_CPU: Final[tuple[tuple[str, Cell], ...]] = (
    ("CPU μs/token", plain(lambda one: one.cpu_us_per_token, digits=2)),
    ("x bare", ratio(lambda one: one.cpu_us_per_token)),
    ("tokens/s per core", plain(lambda one: one.tokens_per_core_s)),
    ("Postgres μs/token", plain(lambda one: one.database_us_per_token, digits=2)),
    ("tokens/event", plain(lambda one: one.tokens_per_event, digits=1)),
)
_FIRST_TOKEN: Final[tuple[tuple[str, Cell], ...]] = (
    ("first token p50 μs", plain(lambda one: one.first_token_p50_us)),
    ("p99 μs", plain(lambda one: one.first_token_p99_us)),
    ("added p50 μs", added(lambda one: one.first_token_p50_us)),
    ("added p99 μs", added(lambda one: one.first_token_p99_us)),
)
_COLUMNS: Final[Mapping[str, Sequence[tuple[str, Cell]]]] = {
    "saturated": (
        ("tokens/s", plain(lambda one: one.tokens_per_s)),
        ("x bare", ratio(lambda one: one.tokens_per_s)),
        *_CPU,
        ("busy: system", plain(lambda one: one.system_busy, digits=2)),
        ("backend", plain(lambda one: one.backend_busy, digits=2)),
        ("client", plain(lambda one: one.client_busy, digits=2)),
    ),
    "paced": (
        ("tokens/s a stream", plain(lambda one: one.pace_per_s, digits=1)),
        *_CPU,
        *_FIRST_TOKEN,
    ),
    "single": (
        *_FIRST_TOKEN,
        ("CPU ms/request", plain(lambda one: one.cpu_ms_per_request, digits=2)),
    ),
}


def table(workload: str, samples: Samples) -> str:
    """The table of a workload, one line a system."""
    columns = _COLUMNS[workload]
    rows = [["", *(title for title, _ in columns)]]
    rows += [[system, *(cell(samples, system) for _, cell in columns)] for system in samples]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
