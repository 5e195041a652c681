"""Packing of values into columns of `bytea`: foreign text, token ids, and many items in one row.

The event loop makes objects of every row that the database sends. So a history comes as a handful
of long values, and becomes items where those are needed: for a long history in a thread.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from typing_extensions import override

from gateway.encryption.cipher import MAGIC
from gateway.protocol.context_item import Columns, ContextItem, Label
from gateway.store.content import CONTENT, place_of
from gateway.store.tables.columns import Kept

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Row

    T = TypeVar("T", bytes, str, array[int])


def pack_text(text: str) -> bytes:
    """Encode text for a `bytea` column: UTF-8, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def unpack_text(packed: bytes) -> str:
    return packed.decode("utf-8", "surrogatepass")


def pack_ids(ids: array[int]) -> bytes:
    """Encode token ids for a `bytea` column: unsigned 32-bit integers, little-endian."""
    return (ids if sys.byteorder == "little" else _swap_bytes(ids)).tobytes()


def unpack_ids(packed: bytes) -> array[int]:
    ids = array("I", packed)
    return ids if sys.byteorder == "little" else _swap_bytes(ids)


def _swap_bytes(ids: array[int]) -> array[int]:
    swapped = array("I", ids)
    swapped.byteswap()
    return swapped


_KINDS: Final = "concat(kind, ' ', role, ' ', phase, ' ', complete)"
_LINE: Final = r"E'\n'"
_VALUES: Final = ("item_id", "call_id", "name", "item", "ids")
_SEALED_VALUES: Final = tuple(
    (name, place_of("messages", name))
    for name in _VALUES
    if CONTENT["messages"][name] is Kept.SEALED
)
_NULL: Final = -1
_NULL_BYTES: Final = b"\xff\xff\xff\xff"
"""Any four bytes of packed lengths include the first byte of some length, which is below 128 unless
the value is null."""
_ID_BYTES: Final = 4
_LENGTH_BYTES: Final = 4


def _packed_columns() -> Iterator[str]:
    yield "count(*) AS packed"
    yield f"string_agg({_KINDS}, {_LINE}) AS kinds"
    for name in _VALUES:
        length = f"int4send(coalesce(octet_length({name}), {_NULL}))"
        yield f"string_agg({name}, '') AS {name}_values"
        yield f"string_agg({length}, '') AS {name}_lengths"


PACKED: Final = ", ".join(_packed_columns())
"""Columns of one row that packs many. Their source has an order and a LIMIT, without which the
planner need not keep the order."""


class PackedItems(Sequence[ContextItem]):
    """The items of a row of `PACKED`, unpacked at the first use of one."""

    def __init__(self, row: Row, cipher: ContentCipher) -> None:
        self._row: Row | None = row
        self._cipher: ContentCipher | None = cipher
        self._count: int = row.packed
        self._items: tuple[ContextItem, ...] = ()
        self.json_bytes = len(row.item_values or b"")

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedItems) and self._unpack() == other._unpack()

    __hash__ = None  # type: ignore[assignment] # items hold arrays

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def __iter__(self) -> Iterator[ContextItem]:
        return iter(self._unpack())

    @overload
    def __getitem__(self, index: int) -> ContextItem: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ContextItem, ...]: ...

    @override
    def __getitem__(self, index: int | slice) -> ContextItem | tuple[ContextItem, ...]:
        return self._unpack()[index]

    def columns(self) -> Columns | None:
        """Return ids and labels without making items; None if an item has no ids, or all are made.

        An approved MCP call counts as one without: its ids may be those of its result alone.
        """
        row = self._open_row()
        if row is None or not row.packed or _NULL_BYTES in row.ids_lengths:
            return None
        names = row.kinds.split("\n")
        labels = {name: _label(name) for name in set(names)}
        calls = {name for name, label in labels.items() if label.kind == "mcp_call"}
        if calls and any(
            name in calls and length != _NULL
            for name, length in zip(names, _numbers(row.call_id_lengths), strict=True)
        ):
            return None
        return Columns(names, labels, _numbers(row.ids_lengths), unpack_ids(row.ids_values))

    def of_kinds(self, kinds: Collection[str]) -> tuple[ContextItem, ...]:
        if not self.has_kinds(kinds):
            return ()
        items = self.first(self._count)
        return tuple(item for item in items if item.kind in kinds)

    def named(self, item_ids: Collection[str]) -> tuple[ContextItem, ...]:
        if self.item_ids().isdisjoint(item_ids):
            return ()
        return tuple(item for item in self.first(self._count) if item.item_id in item_ids)

    def has_kinds(self, kinds: Collection[str]) -> bool:
        row = self._row
        if row is None:
            return any(item.kind in kinds for item in self._items)
        lines = set((row.kinds or "").split("\n"))
        return any(line.partition(" ")[0] in kinds for line in lines)

    def first(self, count: int) -> tuple[ContextItem, ...]:
        row = self._open_row()
        return self._items[:count] if row is None else _items(row, count)

    def item_ids(self) -> frozenset[str]:
        row = self._row
        if row is None:
            return frozenset(item.item_id for item in self._items)
        return frozenset(_texts(row.item_id_values, _numbers(row.item_id_lengths)))

    def _open_row(self) -> Row | None:
        # Raises `ContentSealed`.
        cipher, row = self._cipher, self._row
        if cipher is not None and row is not None:
            # In this order: another thread that comes in between opens the same once more.
            self._row = row = _OpenedRow.of(row, cipher)
            self._cipher = None
        return row

    def _unpack(self) -> tuple[ContextItem, ...]:
        row = self._open_row()
        if row is not None:
            # In this order: another thread that comes in between makes the same once more.
            self._items = _items(row, row.packed)
            self._row = None
        return self._items


class _OpenedRow(SimpleNamespace):
    @classmethod
    def of(cls, row: Row, cipher: ContentCipher) -> Row:
        sealed = [
            name for name, _ in _SEALED_VALUES if MAGIC in (getattr(row, f"{name}_values") or b"")
        ]
        if not sealed:
            return row
        item_ids = _split(row.item_id_values, _numbers(row.item_id_lengths))
        opened = {"packed": row.packed, "kinds": row.kinds}
        for name in _VALUES:
            values, lengths = getattr(row, f"{name}_values"), getattr(row, f"{name}_lengths")
            if name in sealed:
                pieces = _split(values, _numbers(lengths))
                place = dict(_SEALED_VALUES)[name]
                plain = [
                    cipher.open(piece, place, item_id or b"")
                    for piece, item_id in zip(pieces, item_ids, strict=True)
                ]
                values = b"".join(filter(None, plain))
                lengths = _pack_numbers(_NULL if one is None else len(one) for one in plain)
            opened |= {f"{name}_values": values, f"{name}_lengths": lengths}
        return cls(**opened)


def items_of_kinds(items: Sequence[ContextItem], kinds: Collection[str]) -> tuple[ContextItem, ...]:
    if isinstance(items, PackedItems):
        return items.of_kinds(kinds)
    return tuple(item for item in items if item.kind in kinds)


def has_kinds(items: Sequence[ContextItem], kinds: Collection[str]) -> bool:
    if isinstance(items, PackedItems):
        return items.has_kinds(kinds)
    return any(item.kind in kinds for item in items)


def _items(row: Row, count: int) -> tuple[ContextItem, ...]:
    # `row` has the columns of `PACKED`.
    if not count:
        return ()

    def lengths(packed: bytes) -> array[int]:
        return _numbers(packed[: count * _LENGTH_BYTES])

    values = zip(
        map(_label, row.kinds.split("\n", count)),
        _texts(row.item_id_values, lengths(row.item_id_lengths)),
        _pieces(row.item_values, lengths(row.item_lengths)),
        _texts(row.call_id_values, lengths(row.call_id_lengths)),
        _texts(row.name_values, lengths(row.name_lengths)),
        _ids(row.ids_values, lengths(row.ids_lengths)),
        strict=False,  # what is null everywhere has no end
    )
    return tuple(
        ContextItem(kind, item_id, json, role, phase, call_id, name, complete, ids)
        for (kind, role, phase, complete), item_id, json, call_id, name, ids in islice(
            values, count
        )
    )


@lru_cache(maxsize=256)
def _label(line: str) -> Label:
    # The cache is large enough for all kinds, roles and phases that go together.
    words: tuple[Any, ...] = tuple(line.split(" "))
    kind, role, phase, complete = words
    return Label(kind, role or None, phase or None, complete == "t")


def _texts(values: bytes | None, lengths: array[int]) -> Iterable[Any]:
    # ASCII is decoded at once, because there a byte is a character.
    if values is None:
        return repeat(None)
    if values.isascii():
        return _split(values.decode("ascii"), lengths)
    pieces = _split(values, lengths)
    return [None if piece is None else unpack_text(piece) for piece in pieces]


def _pieces(values: bytes | None, lengths: array[int]) -> Iterable[Any]:
    if not values:
        return repeat(values)  # none of this column is null
    return _split(values, lengths)


def _ids(values: bytes | None, lengths: array[int]) -> Iterable[Any]:
    if values is None:
        return repeat(None)
    counts = [length if length == _NULL else length // _ID_BYTES for length in lengths]
    return _split(unpack_ids(values), counts)


def _split(values: T, lengths: Sequence[int]) -> list[T | None]:
    pieces: list[T | None] = []
    start = 0
    for length in lengths:
        if length == _NULL:
            pieces.append(None)
        else:
            pieces.append(values[start : start + length])
            start += length
    return pieces


def _pack_numbers(numbers: Iterable[int]) -> bytes:
    packed = array("i", numbers)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _numbers(packed: bytes) -> array[int]:
    # Signed 32-bit integers, big-endian as PostgreSQL sends them.
    numbers = array("i", packed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
