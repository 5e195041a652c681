"""Formats of a sealed value and of a sealed log, and the cipher of one tenant that makes them.

    value     the four bytes of MAGIC; number: which key of the tenant's; the seal. Key 0: no seal,
              the plain bytes follow. A value that does not begin with MAGIC is plain as a whole.
    log       a byte, 2; then frames, any number of them
    frame     number: length of what follows; numbers: key, epoch, first entry; the seal of packed
              entries, their version byte included. Key 0: the packed entries themselves.

Numbers are unsigned LEB128. A frame is sealed alone, with the place it was written for in its head:
logs may be cut between frames and joined without the key, which SQL does (`gateway.store.events`).
A seal is bound to tenant, column and row, or to tenant, response and head: moved elsewhere, it does
not open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, overload

from gateway.errors import ContentSealed
from gateway.sealing import DataKey, SealBroken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    Place = bytes | int | UUID

MAGIC: Final = b"\xffhg1"
"""No JSON and no UTF-8 begins with its first byte, and no vocabulary has the id of its four."""
PLAIN_KEY: Final = 0
FRAMES: Final = b"\x02"
_LOG: Final = b"log"
_NUMBER_BITS_MAX: Final = 63


class ContentCipher:
    """The keys of one tenant. Immutable, shared by threads."""

    __slots__ = ("_keys", "_own", "_tenant", "sealing", "seals")

    def __init__(
        self, tenant_id: UUID, keys: Mapping[int, DataKey], sealing: int = PLAIN_KEY
    ) -> None:
        # `keys` by number, from 1; `sealing` is one of the numbers, or `PLAIN_KEY`.
        self._tenant = tenant_id.bytes
        self._keys = keys
        self._own = keys.get(sealing)
        self.seals = self._own is not None
        self.sealing = sealing
        """Number of the key that seals; `PLAIN_KEY`: none does."""

    @overload
    def seal(self, value: bytes, column: str, *row: Place) -> bytes: ...
    @overload
    def seal(self, value: None, column: str, *row: Place) -> None: ...
    @overload
    def seal(self, value: bytes | None, column: str, *row: Place) -> bytes | None: ...

    def seal(self, value: bytes | None, column: str, *row: Place) -> bytes | None:
        if value is None:
            return None
        if self._own is None:
            return value if value[:4] != MAGIC else MAGIC + _number(PLAIN_KEY) + value
        head = MAGIC + _number(self.sealing)
        return head + self._own.seal(value, self._bound_to(head, column, row))

    def seal_name(self, name: bytes, column: str, *row: Place) -> bytes:
        """Return the stored form of a name; equal names give equal bytes, so they can be looked
        up.
        """
        if self._own is None:
            return self.seal(name, column, *row)
        head = MAGIC + _number(self.sealing)
        return head + self._own.seal_name(name, self._bound_to(head, column, row))

    def names(self, name: bytes, column: str, *row: Place) -> list[bytes]:
        forms = [name if name[:4] != MAGIC else MAGIC + _number(PLAIN_KEY) + name]
        for number, key in self._keys.items():
            head = MAGIC + _number(number)
            forms.append(head + key.seal_name(name, self._bound_to(head, column, row)))
        return forms

    @overload
    def open(self, stored: bytes, column: str, *row: Place) -> bytes: ...
    @overload
    def open(self, stored: None, column: str, *row: Place) -> None: ...
    @overload
    def open(self, stored: bytes | None, column: str, *row: Place) -> bytes | None: ...

    def open(self, stored: bytes | None, column: str, *row: Place) -> bytes | None:
        if stored is None or stored[:4] != MAGIC:
            return stored
        try:
            number, at = _read_number(stored, 4)
        except ValueError as error:
            raise ContentSealed(f"{error}") from error
        if number == PLAIN_KEY:
            return stored[at:]
        return self._opened(number, stored[at:], self._bound_to(stored[:at], column, row))

    def lacks(self, stored: bytes) -> bool:
        """Return True if any of these values, which may be joined, needs a missing key.

        Rarely, plain bytes look like a sealed value.
        """
        at = stored.find(MAGIC)
        while at >= 0:
            try:
                number, at = _read_number(stored, at + len(MAGIC))
            except ValueError:
                return False
            if number != PLAIN_KEY and number not in self._keys:
                return True
            at = stored.find(MAGIC, at)
        return False

    def lacks_of_log(self, stored: bytes) -> bool:
        # `lacks` for the frames of one log.
        try:
            return not keys_of_log(stored) <= self._keys.keys() | {PLAIN_KEY}
        except ValueError:
            return False

    def seal_entries(self, entries: bytes, response: bytes, epoch: int, first_entry: int) -> bytes:
        if self._own is None:
            return entries
        head = _number(self.sealing) + _number(epoch) + _number(first_entry)
        seal = self._own.seal(entries, self._of_log(response, head))
        return FRAMES + _number(len(head) + len(seal)) + head + seal

    def open_entries(self, stored: bytes, response: bytes) -> bytes:
        """Return the packed entries of a stored log, or of a part of one.

        Raises `ContentSealed`, and `ValueError` for frames that are not consecutive.
        """
        if stored[:1] != FRAMES:
            return stored
        frames = [
            self._frame(number, head, body, response) for number, _, head, body in _frames(stored)
        ]
        if len({one[:1] for one in frames}) > 1:
            raise ValueError("a log was packed in several versions")
        return b"".join([one[bool(place) :] for place, one in enumerate(frames)])

    def _frame(self, number: int, head: bytes, body: bytes, response: bytes) -> bytes:
        if number == PLAIN_KEY:
            return body
        return self._opened(number, body, self._of_log(response, head))

    def _opened(self, number: int, seal: bytes, bound_to: bytes) -> bytes:
        key = self._keys.get(number)
        if key is None:
            raise ContentSealed(f"its key, number {number} of its tenant, is not there")
        try:
            return key.open(seal, bound_to)
        except SealBroken as error:
            raise ContentSealed(f"{error}") from error

    def _bound_to(self, head: bytes, column: str, row: Sequence[Place]) -> bytes:
        return _fields(self._tenant, head, column.encode(), *map(_bytes, row))

    def _of_log(self, response: bytes, head: bytes) -> bytes:
        return _fields(self._tenant, _LOG, response, head)


def plain_frame(entries: bytes, epoch: int, first_entry: int) -> bytes:
    """Frame packed entries without encryption, to be joined with sealed frames."""
    head = _number(PLAIN_KEY) + _number(epoch) + _number(first_entry)
    return FRAMES + _number(len(head) + len(entries)) + head + entries


def keys_of(stored: bytes) -> frozenset[int]:
    if stored[:4] == MAGIC:
        return frozenset([_read_number(stored, 4)[0]])
    return frozenset([PLAIN_KEY])


def keys_of_log(stored: bytes) -> frozenset[int]:
    """Return the key numbers of a log.

    A value that is no log may begin with the same byte, so the caller must know which of the two it
    has.
    """
    if stored[:1] == FRAMES:
        return frozenset(number for number, _, _, _ in _frames(stored))
    return frozenset([PLAIN_KEY])


def _frames(stored: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    # Yields key number, number of the first entry, head and body. Raises `ValueError`.
    at, size, next_entry = 1, len(stored), -1
    while at < size:
        length, begin = _read_number(stored, at)
        at = begin + length
        if at > size:
            raise ValueError("a frame of a log is cut off")
        number, place = _read_number(stored, begin)
        _, place = _read_number(stored, place)
        first_entry, place = _read_number(stored, place)
        if first_entry <= next_entry:
            raise ValueError("frames of a log are not in their order")
        next_entry = first_entry
        yield number, first_entry, stored[begin:place], stored[place:at]


def _fields(*fields: bytes) -> bytes:
    # Lengths are part of it, so no two lists of fields have the same associated data.
    return b"".join([_number(len(field)) + field for field in fields])


def _bytes(place: Place) -> bytes:
    if isinstance(place, bytes):
        return place
    return _number(place) if isinstance(place, int) else place.bytes


def _number(value: int) -> bytes:
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def _read_number(stored: bytes, at: int) -> tuple[int, int]:
    # The number and the offset behind it. Raises `ValueError`.
    value = 0
    for shift in range(0, _NUMBER_BITS_MAX, 7):
        if at >= len(stored):
            raise ValueError("a sealed value is cut off")
        byte = stored[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number in a sealed value is too long")
