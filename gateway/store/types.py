"""Column types: foreign text and token ids, both as `bytea`."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

from sqlalchemy import LargeBinary
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

if TYPE_CHECKING:
    from sqlalchemy import Dialect


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


class ClientText(TypeDecorator[str]):
    """Text that a client or a model wrote."""

    impl = LargeBinary
    cache_ok = True

    @staticmethod
    def packed(value: str | None) -> bytes | None:
        """As it is sent."""
        return None if value is None else pack_text(value)

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return self.packed(value)

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else unpack_text(value)


class TokenIds(TypeDecorator["array[int]"]):
    """Ids of a vocabulary."""

    impl = LargeBinary
    cache_ok = True

    @staticmethod
    def packed(value: array[int] | None) -> bytes | None:
        """As it is sent."""
        return None if value is None else pack_ids(value)

    @override
    def process_bind_param(self, value: array[int] | None, dialect: Dialect) -> bytes | None:
        return self.packed(value)

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> array[int] | None:
        return None if value is None else unpack_ids(value)
