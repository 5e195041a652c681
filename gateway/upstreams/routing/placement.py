"""Placement of the last turn of a response: the member that generated it, as its row keeps it.

    version (1 byte) · member (4) · epoch (4) · unix seconds (4) · marks of 12 bytes each

A mark is a length and the digest of so many ids: prompts of which the member holds that much have
the same digest there. Marks lie where turns began and ended, since the next request repeats what
was before one of these ends, however much of a thought it leaves out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.upstreams.routing.boundaries import Prefix

Mark = tuple[int, int]
"""A length and the digest of so many ids."""

MARKS_MAX: Final = 24
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BIII")
_MARK: Final = struct.Struct(">IQ")
_NEVER_DROPPED: Final = 4
"""The last marks, which are never dropped."""


def member_id(name: str) -> int:
    # A hash of the name, so that all replicas agree.
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest())


@dataclass(frozen=True, slots=True)
class Placement:
    """`member` as `member_id` has it; `epoch` is when its process began, in unix seconds (0: nobody
    knows); `at` is when the turn ended there. `marks` have ascending lengths.
    """

    member: int
    epoch: int
    at: int
    marks: tuple[Mark, ...]

    def pack(self) -> bytes:
        # `unpack` is the inverse.
        head = _HEAD.pack(_VERSION, self.member, self.epoch, self.at)
        return head + b"".join(_MARK.pack(*mark) for mark in self.marks)

    @classmethod
    def unpack(cls, packed: bytes) -> Placement | None:
        """Return the placement that was packed.

        None if another release wrote it or it is damaged: it is a hint, and may be missing.
        """
        size = len(packed) - _HEAD.size
        if size < 0 or size % _MARK.size or packed[0] != _VERSION:
            return None
        _, member, epoch, at = _HEAD.unpack_from(packed)
        marks = tuple(_MARK.iter_unpack(memoryview(packed)[_HEAD.size :]))[:MARKS_MAX]
        return cls(member, epoch, at, marks)

    def held(self, prefix: Prefix) -> int:
        """Return how many of the first ids the member was sent, up to the last common mark."""
        for length, digest in reversed(self.marks):
            if 0 < length <= prefix.length and prefix.at(length) == digest:
                return length
        return 0


def marks_of(prefix: Prefix, lengths: Iterable[int], before: Iterable[Mark] = ()) -> list[Mark]:
    """Return marks at these lengths, with those of an earlier turn that this prefix also has."""
    marks = {length: prefix.at(length) for length in lengths if 0 < length <= prefix.length}
    for length, digest in before:
        if length not in marks and length <= prefix.length and prefix.at(length) == digest:
            marks[length] = digest
    kept = sorted(marks.items())
    while len(kept) > MARKS_MAX:
        del kept[_least_missed(kept)]
    return kept


def _least_missed(marks: list[Mark]) -> int:
    # A gap costs the tokens that are read again; the further back it is, the rarer a request goes
    # back to it.
    last = marks[-1][0]

    def loss(place: int) -> float:
        before = marks[place - 1][0] if place else 0
        return (marks[place][0] - before) / (1 + last - marks[place][0])

    return min(range(len(marks) - _NEVER_DROPPED), key=loss)
