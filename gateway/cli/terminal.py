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
    """Rows under headings, without frames. Nothing is cut, however narrow the terminal is."""
    from rich.cells import cell_len
    from rich.text import Text

    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    for number, row in enumerate([headings, *rows]):
        cells = (
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        line = "  ".join(cells).rstrip()
        _console().print(Text(line, style="" if number else "bold"))
