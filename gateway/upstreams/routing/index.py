"""Bounded index from digests of prefixes to the members that got them last; the least recent go.

An entry has up to three members, each with the time that it was used last, and the lengths at which
turns ended behind it: a conversation goes on there, between two boundaries. All of it is one
number, because an object for each part would take three times the memory.

    bits 0..19     two lengths behind the boundary, ten bits each; 0: none
    bits 20..67    the member that was used last: its number (16 bits), when (32 bits)
    bits 68..163   two more
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.upstreams.routing.boundaries import boundary, count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.upstreams.routing.boundaries import Prefix

HOLDERS_MAX: Final = 3
TAILS_MAX: Final = 2
TICKS_PER_S: Final = 10
"""Times are kept in tenths of a second."""
NEWS_TICKS: Final = 10 * TICKS_PER_S
"""Ticks between two reports to other replicas that something is still in use."""
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
    """A member is believed to hold the first `tokens` ids, used last at `used_at` (ticks)."""

    tokens: int
    used_at: int


class PrefixIndex:
    """Digests of prefixes → members that hold them. Times are ticks, members numbers from 1 on."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def bound(self, entries_max: int) -> None:
        """Keep at most `entries_max` entries from now on."""
        self._entries_max = entries_max
        while len(self._entries) > entries_max:
            self._entries.popitem(last=False)

    def find(self, prefix: Prefix, oldest: Sequence[int]) -> dict[int, Held]:
        """Find how much of the prefix each member holds that holds any.

        `oldest` has for each member's number the least time of last use that counts; there is no
        member number 0.
        """
        entries, digests = self._entries, prefix.digests
        found: dict[int, Held] = {}
        numbers, is_deepest = len(oldest), True
        for place in range(len(digests) - 1, -1, -1):
            packed = entries.get(digests[place])
            if packed is None:
                continue
            if is_deepest:
                self._find_tails(prefix, place, packed & _TAILS, oldest, found)
                is_deepest = False
            holders = packed >> _TAILS_BITS
            while holders:
                member, used_at = (holders >> _TIME_BITS) & _MEMBER, holders & _TIME
                if member < numbers and member not in found and used_at >= oldest[member]:
                    found[member] = Held(boundary(place), used_at)
                holders >>= _HOLDER_BITS
            if len(found) == numbers - 1:
                break
        return found

    def _find_tails(
        self,
        prefix: Prefix,
        place: int,
        tails: int,
        oldest: Sequence[int],
        found: dict[int, Held],
    ) -> None:
        # A member may hold more than the deepest boundary: up to the end of a turn after it.
        lengths = sorted((boundary(place) + tail for tail in _each_tail(tails)), reverse=True)
        for length in lengths:
            if length > prefix.length:
                continue
            packed = self._entries.get(prefix.at(length))
            holders = 0 if packed is None else packed >> _TAILS_BITS
            while holders:
                member, used_at = (holders >> _TIME_BITS) & _MEMBER, holders & _TIME
                if member < len(oldest) and member not in found and used_at >= oldest[member]:
                    found[member] = Held(length, used_at)
                holders >>= _HOLDER_BITS

    def touch(
        self,
        prefix: Prefix,
        member: int,
        now: int,
        ends: Sequence[int] = (),
        *,
        from_place: int = 0,
    ) -> list[tuple[int, int]]:
        """Note that the member was just sent the prefix.

        `ends` are lengths at which turns of it ended. Boundaries before number `from_place` are
        left as they are.

        Returns what is new of that member, and the deepest boundary: digests, each with the length
        behind it at which a turn ended (0: none).
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
        """Note that the member has used a prefix with this digest.

        Returns True if that is new, or was not noted for a while.
        """
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
        """Note that a turn ended `tail` ids after an indexed boundary; ignore other digests."""
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
