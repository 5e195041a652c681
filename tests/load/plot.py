"""Bars of CPU per token beside nginx's, for whoever has matplotlib (dependency group `bench`)."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.load.results import Measured

FIGURE: Final = "cpu_us"
ROW_INCHES: Final = 0.35
WIDTH_INCHES: Final = 9.0


def save(path: Path, measured: Sequence[Measured]) -> str:
    """Draw what there is of it; a sentence that says whether."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot, because matplotlib is not installed"
    bars = {one.workload.title: medians(one) for one in measured}
    bars = {title: rows for title, rows in bars.items() if rows}
    if not bars:
        return "no plot, because no workload has CPU per token"
    _draw(path, bars)
    return f"plotted as {path.name}"


def medians(measured: Measured) -> dict[str, float]:
    """CPU μs per token by row, of those rows that have it."""
    from tests.load.figures import compared

    found = {row: compared(measured.samples, row, FIGURE, "itself", "") for row in measured.samples}
    return {row: value for row, value in found.items() if value is not None}


def _draw(path: Path, bars: dict[str, dict[str, float]]) -> None:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    heights = [len(rows) + 2 for rows in bars.values()]
    size = (WIDTH_INCHES, sum(heights) * ROW_INCHES)
    figure, axes = pyplot.subplots(
        len(bars), figsize=size, height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, (title, rows) in zip(axes.flat, bars.items(), strict=True):
        drawn = axis.barh(list(rows), list(rows.values()))
        axis.bar_label(drawn, fmt="%.1f", padding=3)
        axis.invert_yaxis()
        axis.set_title(f"{title}: CPU μs per token", loc="left")
        axis.margins(x=0.1)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
