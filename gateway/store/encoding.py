"""What columns of `bytea` hold beside bytes: foreign text, and token ids."""

from __future__ import annotations

import sys
from array import array


def pack_text(text: str) -> bytes:
    """UTF-8, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def unpack_text(packed: bytes) -> str:
    """The inverse of `pack_text`."""
    return packed.decode("utf-8", "surrogatepass")


def pack_ids(ids: array[int]) -> bytes:
    """Unsigned 32-bit integers, little-endian."""
    return _little_endian(ids).tobytes()


def unpack_ids(packed: bytes) -> array[int]:
    """The inverse of `pack_ids`."""
    return _little_endian(array("I", packed))


def _little_endian(ids: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return ids
    swapped = array("I", ids)
    swapped.byteswap()
    return swapped
