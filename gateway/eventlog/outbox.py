"""The way of one response's entries into the durable log, as a state machine. No I/O, no clock.

    put → waiting → take → under way → committed    the parcel is in the log
                                     → in doubt     the answer of the database was lost
                                     → refused      the answer is that it was not appended

One parcel is under way at a time, so that the log grows in order. What became of one in doubt, or
refused, is never guessed: the head of the log, which only the holder of the claim can move, tells
whether it is in (`learn`). What is sent again is the same parcel, byte for byte: an attempt that
was given up may still be at work in the server, and commit after the head was read. Then the
second one is refused, but the head has moved by exactly its length, which means that it is in.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gateway.entries import VERSION_BYTE, packed_entry
from gateway.store.events import LogBatch, LogRow

if TYPE_CHECKING:
    from datetime import date

    from gateway.entries import Entry
    from gateway.store.claims import Claim, LogHead


class Fate(Enum):
    """What the head of the log says about a parcel."""

    COMMITTED = "committed"
    ABSENT = "absent"
    """Not in the log, but it may still be written: send it again."""
    FENCED = "fenced"
    """Nothing more can be written under this claim."""


class Outbox:
    """Entries of one claim that are not known to be in the log yet, packed.

    `next_entry` is the number of the first of them, `end` the number that the next to be `put`
    gets, `pending_bytes` the length of all of them.
    """

    def __init__(self, claim: Claim, day: date, next_entry: int) -> None:
        self._claim = claim
        self._day = day
        self._waiting = bytearray()
        self._is_refused = False
        self.next_entry = self.end = next_entry
        self.pending_bytes = 0
        self.parcel: LogBatch | None = None
        """What is under way."""

    @property
    def has_waiting(self) -> bool:
        """There is something for another parcel."""
        return bool(self._waiting)

    def waiting(self) -> LogRow:
        """What waits, as it would stand in the log if it were the next row; not taken by this."""
        assert self.parcel is None, "a parcel is under way"
        count = self.end - self.next_entry
        return LogRow(self.next_entry, count, VERSION_BYTE + self._waiting)

    def put(self, entry: Entry) -> int:
        """Add an entry to what waits; its length in bytes. Raises `ValueError` as `pack` does."""
        packed = packed_entry(entry)
        self._waiting += packed
        self.end += 1
        self.pending_bytes += len(packed)
        return len(packed)

    def take(self) -> LogBatch:
        """All that waits, as the parcel that is under way now. Only when none is."""
        entries = VERSION_BYTE + self._waiting
        self._waiting.clear()
        count = self.end - self.next_entry
        self.parcel = LogBatch(self._claim, self._day, self.next_entry, count, entries)
        return self.parcel

    def committed(self) -> int:
        """What was under way is in the log; how many bytes that frees."""
        parcel, self.parcel = self.parcel, None
        assert parcel is not None, "no parcel is under way"
        self._is_refused = False
        freed_bytes = len(parcel.entries) - len(VERSION_BYTE)
        self.pending_bytes -= freed_bytes
        self.next_entry += parcel.count
        return freed_bytes

    def refused(self) -> None:
        """The database did not append what was under way; `learn` tells why."""
        self._is_refused = True

    def learn(self, head: LogHead | None) -> Fate:
        """What became of the parcel, by a head that was read since; None: the response is gone.

        For `COMMITTED` call `committed`, for `ABSENT` send the same parcel again.
        """
        parcel = self._under_way()
        if head is None or head.epoch != self._claim.epoch or head.status != "in_progress":
            return Fate.FENCED
        if head.next_entry == parcel.first_entry + parcel.count:
            return Fate.COMMITTED
        is_absent = head.next_entry == parcel.first_entry and not self._is_refused
        return Fate.ABSENT if is_absent else Fate.FENCED

    def _under_way(self) -> LogBatch:
        assert self.parcel is not None, "no parcel is under way"
        return self.parcel
