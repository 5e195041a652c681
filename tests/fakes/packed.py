"""Items as the row that a history is read as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from gateway.encryption.keyring import PLAIN
from gateway.store.packing import PackedItems, pack_ids, pack_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.context_item import ContextItem


def packed(items: Sequence[ContextItem]) -> PackedItems:
    """As PostgreSQL packs them (`gateway.store.packing.PACKED`)."""
    columns: dict[str, list[bytes | None]] = {
        "item_id": [pack_text(one.item_id) for one in items],
        "call_id": [None if one.call_id is None else pack_text(one.call_id) for one in items],
        "name": [None if one.name is None else pack_text(one.name) for one in items],
        "item": [one.json for one in items],
        "ids": [None if one.ids is None else pack_ids(one.ids) for one in items],
    }
    row = SimpleNamespace(packed=len(items), kinds="\n".join(map(_kinds, items)) or None)
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        lengths = [-1 if value is None else len(value) for value in values]
        packed_lengths = b"".join(length.to_bytes(4, "big", signed=True) for length in lengths)
        setattr(row, f"{name}_values", b"".join(known) if known else None)
        setattr(row, f"{name}_lengths", packed_lengths or None)
    return PackedItems(row, PLAIN)


def _kinds(item: ContextItem) -> str:
    complete = "t" if item.complete else "f"
    return f"{item.kind} {item.role or ''} {item.phase or ''} {complete}"
