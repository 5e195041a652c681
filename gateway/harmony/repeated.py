"""Ids of texts that the same clients send again and again, least recently used first to go."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class RepeatedTexts:
    """Ids by the digest of what they were made from. Shared by threads."""

    def __init__(self, *, ids_max: int) -> None:
        """At most `ids_max` ids are kept, of all texts together."""
        self._ids_max = ids_max
        self._count = 0
        self._by_digest: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, digest: bytes) -> Sequence[int] | None:
        """The ids, if they are still there."""
        with self._lock:
            ids = self._by_digest.get(digest)
            if ids is not None:
                self._by_digest.move_to_end(digest)
        return ids

    def put(self, digest: bytes, ids: Sequence[int]) -> None:
        """Keep them, unless they are too many to be kept at all."""
        if len(ids) > self._ids_max:
            return
        with self._lock:
            self._count += len(ids) - len(self._by_digest.pop(digest, ()))
            self._by_digest[digest] = array("I", ids)
            while self._count > self._ids_max:
                _, dropped = self._by_digest.popitem(last=False)
                self._count -= len(dropped)
