"""What was measured → text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.load.figures import Target
    from tests.load.results import Measured

NONE: Final = "-"
FAILURE_CHARS: Final = 300


def rotated(rows: Sequence[str], by: int) -> list[str]:
    """The same rows beginning with another one each time, so that nobody always comes first."""
    first = by % len(rows) if rows else 0
    return [*rows[first:], *rows[:first]]


def render(measured: Measured) -> str:
    """The table of a workload, its targets below it."""
    workload = measured.workload
    head = f"({workload.letter}) {workload.title}"
    lines = [f"{head}   [{measured.seconds:.0f} s]", grid(measured)]
    lines += [f"{row} failed: {why[:FAILURE_CHARS]}" for row, why in measured.failures.items()]
    lines += [verdict(target, target.value(measured.samples)) for target in workload.targets]
    return "\n".join(lines)


def grid(measured: Measured) -> str:
    """One line a row, with the medians."""
    columns = measured.workload.columns
    cells = [["", *(column.title for column in columns)]]
    for row in measured.samples:
        values = [column.value(measured.samples, row) for column in columns]
        cells.append(
            [
                row,
                *(
                    NONE if value is None else f"{value:,.{column.digits}f}"
                    for value, column in zip(values, columns, strict=True)
                ),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def verdict(target: Target, value: float | None) -> str:
    """One line: the target, what it is, and whether that is enough."""
    against = {"itself": "", "times": f" x {target.base}", "above": f" above {target.base}"}
    bound = "at least" if target.is_floor else "at most"
    wanted = f"{target.row}: {target.title} {bound} {target.limit:g}{against[target.how]}"
    if value is None:
        return f"  target {wanted}: not measured"
    met = "met" if target.is_met_by(value) else "NOT met"
    return f"  target {wanted}: {value:,.2f}, {met}"
