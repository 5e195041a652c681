"""Folding a long log without holding up the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.log import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.log import Entry
    from gateway.output.fold import Fold
    from gateway.store.events import LogRow

SLICE_S: Final = 0.002
"""So long one log may be folded before all else that goes on here has its turn."""


async def fold_rows(fold: Fold, rows: Iterable[LogRow], next_entry: int) -> list[Entry]:
    """Apply all entries of a log, and return them.

    Raises `ValueError` when some are missing or damaged, or cannot stand where they stand.
    """
    clock = asyncio.get_running_loop().time
    entries: list[Entry] = []
    until = clock() + SLICE_S
    for row in rows:
        if row.first_entry != len(entries):
            raise ValueError(f"entries of the log are missing before number {row.first_entry}")
        for entry in unpacked(row.entries):
            fold.apply(entry)
            entries.append(entry)
            if clock() >= until:
                await asyncio.sleep(0)
                until = clock() + SLICE_S
    if len(entries) != next_entry:
        raise ValueError(f"the log has {len(entries)} entries where there should be {next_entry}")
    return entries
