"""What people read: colours only on a terminal, NO_COLOR honoured, lines never broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence


OK = "✓"
BAD = "✗"
SKIPPED = "-"
_STYLES = {OK: "green", BAD: "red", SKIPPED: "yellow"}

out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(highlight=False, markup=False, soft_wrap=True, stderr=True)


def failure(message: str, remedy: str) -> None:
    """One red line, one line what to do, on standard error."""
    err.print(Text("error: ", style="bold red").append(message, style="red"))
    err.print(Text(f"  {remedy}"))


def step(mark: str, name: str, detail: str, seconds: float | None = None) -> None:
    """One line of a list: mark, name, what was found, how long it took."""
    line = Text("  ").append(f"{mark} ", style=_STYLES[mark])
    line.append(f"{name:<11} ").append(detail)
    if seconds is not None:
        line.append(f"   {seconds:.1f} s", style="dim")
    out.print(line)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings, without frames."""
    grid = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*row)
    out.print(grid)
