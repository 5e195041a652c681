"""Folding a long log without holding up the event loop."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from gateway.log import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.log import Entry
    from gateway.output.fold import Fold
    from gateway.store.events import LogRow

SLICE_S: Final = 0.002
"""So long one log may be folded before all else that goes on here has its turn."""


async def fold_rows(fold: Fold, rows: Iterable[LogRow], *, from_entry: int = 0) -> list[Entry]:
    """Apply the entries of a log from number `from_entry` on, and return them.

    `rows` begin with the row that holds it. Raises `ValueError` when some are missing or damaged,
    or cannot stand where they stand.
    """
    clock = asyncio.get_running_loop().time
    entries: list[Entry] = []
    until = clock() + SLICE_S
    for row in rows:
        done = from_entry + len(entries)
        if row.first_entry > done:
            raise ValueError(f"entries of the log are missing before number {row.first_entry}")
        for entry in islice(unpacked(row.entries), done - row.first_entry, None):
            fold.apply(entry)
            entries.append(entry)
            if clock() >= until:
                await asyncio.sleep(0)
                until = clock() + SLICE_S
    return entries


def check_complete(entries: int, next_entry: int) -> None:
    """Raises `ValueError` for a log that does not have the entries that its head promises."""
    if entries != next_entry:
        raise ValueError(f"the log has {entries} entries where there should be {next_entry}")
