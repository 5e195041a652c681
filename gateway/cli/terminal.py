"""What people read: colours only on a terminal, NO_COLOR honoured, lines never broken.

rich is imported when there is something to show: a server, which shows nothing, would hold 5 MiB.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


OK = "✓"
BAD = "✗"
SKIPPED = "-"
_STYLES = {OK: "green", BAD: "red", SKIPPED: "yellow"}


@cache
def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True, stderr=stderr)


def show(text: str, *, end: str = "\n") -> None:
    """What was asked for, on standard output."""
    _console().print(text, end=end)


def note(text: str) -> None:
    """What goes with it, on standard error."""
    _console(stderr=True).print(text)


def failure(message: str, remedy: str) -> None:
    """One red line, one line what to do, on standard error."""
    from rich.text import Text

    console = _console(stderr=True)
    console.print(Text("error: ", style="bold red").append(message, style="red"))
    console.print(Text(f"  {remedy}"))


def step(mark: str, name: str, detail: str, seconds: float | None = None) -> None:
    """One line of a list: mark, name, what was found, how long it took."""
    from rich.text import Text

    line = Text("  ").append(f"{mark} ", style=_STYLES[mark])
    line.append(f"{name:<11} ").append(detail)
    if seconds is not None:
        line.append(f"   {seconds:.1f} s", style="dim")
    _console().print(line)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings, without frames."""
    from rich.table import Table

    grid = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*row)
    _console().print(grid)
