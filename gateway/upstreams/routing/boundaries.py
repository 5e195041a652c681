"""Prefixes of prompts as keyed hashes: what two prompts share is seen without keeping either.

A boundary is a length at which a prompt is hashed: each 512 ids up to 16,384, then each 1,024. A
digest stands for all ids before its boundary. Its key depends on tenant and model, and on a secret
of the installation: nobody can find out by it what others ask, nor make a prompt that has it.
"""

from __future__ import annotations

import hmac
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

from gateway.cache import LruCache

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP: Final = 512
WIDE_FROM: Final = 16_384
WIDE_STEP: Final = 1_024
_FINE: Final = WIDE_FROM // STEP
IDS_MAX: Final = 262_144
"""Ids of a prompt that are hashed, in about a millisecond; what is behind them counts as new."""
DIGEST_BYTES: Final = 8
KEYS_MAX: Final = 4_096
"""Keys of tenants and models that are kept; another is derived anew."""


def count_of(length: int) -> int:
    """Return how many boundaries a prompt of `length` ids has."""
    length = min(length, IDS_MAX)
    if length < WIDE_FROM:
        return length // STEP
    return _FINE + (length - WIDE_FROM) // WIDE_STEP


def boundary(place: int) -> int:
    """Return the length at boundary number `place` (0, 1, …)."""
    if place < _FINE:
        return (place + 1) * STEP
    return WIDE_FROM + (place + 1 - _FINE) * WIDE_STEP


class Prefix(Protocol):
    """A prompt, or a prompt with its output, as routing sees it."""

    @property
    def length(self) -> int:
        """Return the number of ids."""
        ...

    @property
    def digests(self) -> Sequence[int]:
        """Return one digest for each boundary, the shortest prefix first."""
        ...

    def at(self, length: int) -> int:
        """Return the digest of the first `length` ids, which need not be a boundary."""
        ...

    def longer(self, ids: Sequence[int]) -> Prefix:
        """Return the prefix with these ids appended."""
        ...

    def named(self, name: str) -> int:
        """Return a digest of a name that the tenant chose; other tenants' digests of it differ."""
        ...


class HashedPrefix:
    """The prefixes of `ids` under a key.

    Each digest is made of the one before and the ids between, so it can be found for any length
    without reading what lies before, and a longer prompt begins where a shorter one ended.
    """

    __slots__ = ("_key", "digests", "ids")

    def __init__(self, ids: Sequence[int], key: bytes, known: Sequence[int] = ()) -> None:
        # Hashing takes 4 ns for each id; `known` are digests of the first boundaries.
        self.ids = ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)
        self._key = key
        self.digests: list[int] = list(known)
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
        state = blake2b(name.encode(), digest_size=DIGEST_BYTES, key=self._key, person=b"name")
        return int.from_bytes(state.digest())


class PrefixKeys:
    """The keys of prefixes, one for each tenant and model."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._made: LruCache[tuple[str, str], bytes] = LruCache(size_max=KEYS_MAX)

    def of(self, salt: str, model: str) -> bytes:
        # `model` is the public name of a model or adapter.
        named = (salt, model)
        key = self._made.get(named)
        if key is None:
            said = b"%d %b%b" % (len(salt.encode()), salt.encode(), model.encode())
            key = hmac.digest(self._secret, said, "sha256")
            self._made.put(named, key, size=1)
        return key
