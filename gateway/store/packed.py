"""Many items in one row: what a context inherits, as few values however many items there are.

The event loop of a process reads every row that its database sends it, column by column, and others
wait meanwhile. So a history comes as a handful of long values, and is made into items only where
they are needed: for a long one that is a thread.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from typing_extensions import override

from gateway.protocol.context import ContextItem
from gateway.store.types import unpack_ids, unpack_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.store.execution import Row

_NULL: Final = -1
"""The length of a value that is null."""
_BYTES: Final = ("item_id", "call_id", "name", "item", "ids")


def _columns() -> Iterator[str]:
    yield "count(*) AS packed_count"
    yield "string_agg(concat(kind, ' ', role, ' ', phase, ' ', complete), E'\\n') AS packed_kinds"
    for name in _BYTES:
        length = f"int4send(coalesce(octet_length({name}), {_NULL}))"
        yield f"CASE WHEN bool_or({name} IS NOT NULL) THEN string_agg({length}, '') END AS {name}_lengths"
        yield f"string_agg({name}, '') AS {name}_values"


PACKED: Final = ", ".join(_columns())
"""Columns, aggregated from a subquery that is ordered and has those of `messages.item_columns`."""


class PackedItems(Sequence[ContextItem]):
    """The items of a row with the columns of `PACKED`; made when one of them is first asked for."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._count: int = row.packed_count
        self.text_bytes = sum(len(getattr(row, f"{name}_values") or b"") for name in ("item",))

    @cached_property
    def _items(self) -> tuple[ContextItem, ...]:
        ...
