"""Index of the members that were sent prefixes of prompts, by keyed hashes: no prompt is kept.

The key depends on tenant, model and a secret of the installation, so nobody can test what others
ask, or forge a digest. Placement of a response's last turn, in its row:

    version (1 byte) · member (4) · epoch (4) · unix seconds (4) · marks of 12 bytes each

Marks are at ends of turns: the next request repeats what was before one of them, however much of a
thought it leaves out. An entry of the index is one number, a third of the memory of objects:

    bits 0..19     two lengths behind the boundary at which turns ended, ten bits each; 0: none
    bits 20..67    the member that was used last: its number (16 bits), when (32 bits)
    bits 68..163   two more
"""

from __future__ import annotations

import hmac
import struct
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.cache import LruCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


STEP: Final = 512
WIDE_FROM: Final = 16_384
WIDE_STEP: Final = 1_024
_FINE: Final = WIDE_FROM // STEP
IDS_MAX: Final = 262_144
"""Ids that are hashed, in about a millisecond; later ones count as new."""
DIGEST_BYTES: Final = 8
KEYS_MAX: Final = 4_096


def count_of(length: int) -> int:
    """Return the number of boundaries up to `length`."""
    length = min(length, IDS_MAX)
    if length < WIDE_FROM:
        return length // STEP
    return _FINE + (length - WIDE_FROM) // WIDE_STEP


def boundary(place: int) -> int:
    """Return the length at boundary number `place` (0, 1, …)."""
    if place < _FINE:
        return (place + 1) * STEP
    return WIDE_FROM + (place + 1 - _FINE) * WIDE_STEP


class HashedPrefix:
    """Prefixes of `ids`, with a digest for each boundary; each digest continues the one before."""

    __slots__ = ("_key", "digests", "ids")

    def __init__(self, ids: Sequence[int], key: bytes, computed: Sequence[int] = ()) -> None:
        # Hashing takes 4 ns for each id; `computed` are digests of the first boundaries.
        self.ids = ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)
        self._key = key
        self.digests: list[int] = list(computed)
        view = memoryview(self.ids).cast("B")
        width, place = self.ids.itemsize, len(self.digests)
        start = boundary(place - 1) if place else 0
        before = self.digests[-1].to_bytes(DIGEST_BYTES) if place else b""
        for number in range(place, count_of(len(self.ids))):
            end = boundary(number)
            state = blake2b(before, digest_size=DIGEST_BYTES, key=key)
            state.update(view[start * width : end * width])
            before = state.digest()
            self.digests.append(int.from_bytes(before))
            start = end

    @property
    def length(self) -> int:
        return len(self.ids)

    def at(self, length: int) -> int:
        # The digest of the first `length` ids, which need not be a boundary.
        place = count_of(length)
        start = boundary(place - 1) if place else 0
        if place and start == length:
            return self.digests[place - 1]
        before = self.digests[place - 1].to_bytes(DIGEST_BYTES) if place else b""
        state = blake2b(before, digest_size=DIGEST_BYTES, key=self._key)
        state.update(memoryview(self.ids)[start:length].cast("B"))
        return int.from_bytes(state.digest())

    def longer(self, ids: Sequence[int]) -> HashedPrefix:
        # The digests are passed on, so that ids are not hashed twice.
        return HashedPrefix(self.ids + array("I", ids), self._key, self.digests)

    def named(self, name: str) -> int:
        # The digest of a name that the tenant chose; other tenants' digests of it differ.
        state = blake2b(name.encode(), digest_size=DIGEST_BYTES, key=self._key, person=b"name")
        return int.from_bytes(state.digest())


class PrefixKeys:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._made: LruCache[tuple[str, str], bytes] = LruCache(size_max=KEYS_MAX)

    def of(self, salt: str, model: str) -> bytes:
        # `model` is the public name of a model or adapter.
        named = (salt, model)
        key = self._made.get(named)
        if key is None:
            content = b"%d %b%b" % (len(salt.encode()), salt.encode(), model.encode())
            key = hmac.digest(self._secret, content, "sha256")
            self._made.put(named, key, size=1)
        return key


Mark = tuple[int, int]
"""A length and the digest of so many ids."""

MARKS_MAX: Final = 24
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BIII")
_MARK: Final = struct.Struct(">IQ")
_NEVER_DROPPED: Final = 4
"""Number of last marks."""


def member_id(name: str) -> int:
    # A hash of the name, so that all replicas agree.
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest())


@dataclass(frozen=True, slots=True)
class Placement:
    """Backend of a turn; `epoch` (process start, 0: unknown) and `at` in unix seconds."""

    member: int
    epoch: int
    at: int
    marks: tuple[Mark, ...]

    def pack(self) -> bytes:
        head = _HEAD.pack(_VERSION, self.member, self.epoch, self.at)
        return head + b"".join(_MARK.pack(*mark) for mark in self.marks)

    @classmethod
    def unpack(cls, packed: bytes) -> Placement | None:
        """Return the placement; None if it is damaged or of another release: it is only a hint."""
        size = len(packed) - _HEAD.size
        if size < 0 or size % _MARK.size or packed[0] != _VERSION:
            return None
        _, member, epoch, at = _HEAD.unpack_from(packed)
        marks = tuple(_MARK.iter_unpack(memoryview(packed)[_HEAD.size :]))[:MARKS_MAX]
        return cls(member, epoch, at, marks)

    def held(self, prefix: HashedPrefix) -> int:
        """Return how many of the first ids the member was sent."""
        for length, digest in reversed(self.marks):
            if 0 < length <= prefix.length and prefix.at(length) == digest:
                return length
        return 0


def marks_of(
    prefix: HashedPrefix, lengths: Iterable[int], before: Iterable[Mark] = ()
) -> list[Mark]:
    """Return marks at these lengths, and those of an earlier turn that still hold."""
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


HOLDERS_MAX: Final = 3
TAILS_MAX: Final = 2
TICKS_PER_S: Final = 10
NEWS_TICKS: Final = 10 * TICKS_PER_S
"""Interval of reports that something is still in use."""
_TAIL_BITS: Final = 10
_TAIL: Final = (1 << _TAIL_BITS) - 1
_TAILS_BITS: Final = TAILS_MAX * _TAIL_BITS
_TAILS: Final = (1 << _TAILS_BITS) - 1
_TIME_BITS: Final = 32
_TIME: Final = (1 << _TIME_BITS) - 1
_MEMBER: Final = (1 << 16) - 1
_HOLDER_BITS: Final = 16 + _TIME_BITS
_HOLDER: Final = (1 << _HOLDER_BITS) - 1
_HOLDERS: Final = (1 << (HOLDERS_MAX * _HOLDER_BITS)) - 1
MEMBERS_MAX: Final = _MEMBER


class Held(NamedTuple):
    """A member probably holds the first `tokens` ids; `used_at` in ticks."""

    tokens: int
    used_at: int


class PrefixIndex:
    """Digests of prefixes → members. Times are ticks, members numbers from 1 on."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def bound(self, entries_max: int) -> None:
        self._entries_max = entries_max
        while len(self._entries) > entries_max:
            self._entries.popitem(last=False)

    def find(self, prefix: HashedPrefix, oldest: Sequence[int]) -> dict[int, Held]:
        """Return how much of the prefix each member holds, from uses since `oldest` by number."""
        held: dict[int, Held] = {}
        others, before = len(oldest) - 1, 0
        for length, packed in self._sent(prefix):
            holders = packed >> _TAILS_BITS
            if holders == before:  # as nearly always
                continue
            before = holders
            while holders:
                member, used_at = (holders >> _TIME_BITS) & _MEMBER, holders & _TIME
                if member <= others and member not in held and used_at >= oldest[member]:
                    held[member] = Held(length, used_at)
                holders >>= _HOLDER_BITS
            if len(held) == others:
                break
        return held

    def _sent(self, prefix: HashedPrefix) -> Iterator[tuple[int, int]]:
        # Yields lengths with their entries, the longest first. A member may hold more than the
        # deepest boundary: up to the end of a turn after it.
        entries, digests, is_deepest = self._entries, prefix.digests, True
        for place in range(len(digests) - 1, -1, -1):
            packed = entries.get(digests[place])
            if packed is None:
                continue
            length = boundary(place)
            if is_deepest:
                is_deepest = False
                for tail in sorted(_each_tail(packed & _TAILS), reverse=True):
                    end = length + tail
                    if end <= prefix.length and (longer := entries.get(prefix.at(end))) is not None:
                        yield end, longer
            yield length, packed

    def touch(
        self,
        prefix: HashedPrefix,
        member: int,
        now: int,
        ends: Sequence[int] = (),
        *,
        from_place: int = 0,
    ) -> list[tuple[int, int]]:
        """Note that the member was sent the prefix, in which turns ended at the lengths `ends`.

        Returns news of that member: digests, each with the length of its tail (or 0).
        """
        digests = prefix.digests
        news = [(digest, 0) for digest in digests[from_place:] if self.put(digest, member, now)]
        if digests and (not news or news[-1][0] != digests[-1]):
            news.append((digests[-1], 0))
        for end in ends:
            place = count_of(end)
            if place and 0 < (tail := end - boundary(place - 1)) <= _TAIL:
                digest = prefix.at(end)
                if self.put(digest, member, now):
                    news += ((digest, 0), (digests[place - 1], tail))
                self.note_tail(digests[place - 1], tail)
        return news

    def put(self, digest: int, member: int, now: int) -> bool:
        """Note that the member has a prefix; True if that is new, or was not noted for a while."""
        entries = self._entries
        packed = entries.get(digest, 0)
        others, before = packed >> _TAILS_BITS, 0
        if (others >> _TIME_BITS) & _MEMBER == member:
            others, before = others >> _HOLDER_BITS, others & _TIME
        elif others:
            others, before = _without(others, member)
        used_at = max(now, before)  # what others tell may be older
        holders = ((others << _HOLDER_BITS) | (member << _TIME_BITS) | used_at) & _HOLDERS
        entries[digest] = (holders << _TAILS_BITS) | (packed & _TAILS)
        entries.move_to_end(digest)
        if len(entries) > self._entries_max:
            entries.popitem(last=False)
        return not before or before // NEWS_TICKS != now // NEWS_TICKS

    def note_tail(self, digest: int, tail: int) -> None:
        packed = self._entries.get(digest)
        if packed is None or tail in _each_tail(packed & _TAILS):
            return
        tails = ((packed << _TAIL_BITS) | tail) & _TAILS
        self._entries[digest] = (packed >> _TAILS_BITS << _TAILS_BITS) | tails


def _each_tail(tails: int) -> Iterator[int]:
    while tails:
        if tails & _TAIL:
            yield tails & _TAIL
        tails >>= _TAIL_BITS


def _without(holders: int, member: int) -> tuple[int, int]:
    # The second result is when `member` used it last; 0 if it was no holder.
    kept, shift, used_at = 0, 0, 0
    while holders:
        if (holders >> _TIME_BITS) & _MEMBER == member:
            used_at = holders & _TIME
        else:
            kept |= (holders & _HOLDER) << shift
            shift += _HOLDER_BITS
        holders >>= _HOLDER_BITS
    return kept, used_at
