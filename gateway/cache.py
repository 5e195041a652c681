"""A cache of bounded size that forgets what was not asked for longest."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, shared by threads. `functools.lru_cache` bounds their number; this one bounds
    what they take, which its user says of each.
    """

    def __init__(self, *, size_max: int) -> None:
        """`size_max` bounds the sizes of all values together, in the unit that `put` is told."""
        self._size_max = size_max
        self._size = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value, or None where it is not kept (any more)."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, *, size: int) -> None:
        """Keep the value in place of the oldest ones; one larger than `size_max` is not kept."""
        if size > self._size_max:
            return
        with self._lock:
            _, replaced = self._entries.pop(key, (None, 0))
            self._size += size - replaced
            while self._size > self._size_max:
                _, (_, freed) = self._entries.popitem(last=False)
                self._size -= freed
            self._entries[key] = value, size
