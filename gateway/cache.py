from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Least recently used cache, shared by threads, that bounds the sum of sizes."""

    def __init__(self, *, size_max: int) -> None:
        self._size_max = size_max
        self.size = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def drop(self, key: K) -> None:
        with self._lock:
            _, freed = self._entries.pop(key, (None, 0))
            self.size -= freed

    def put(self, key: K, value: V, *, size: int) -> None:
        """Keep a value, unless it is larger than `size_max`."""
        if size > self._size_max:
            return
        with self._lock:
            _, replaced = self._entries.pop(key, (None, 0))
            self.size += size - replaced
            while self.size > self._size_max:
                _, (_, freed) = self._entries.popitem(last=False)
                self.size -= freed
            self._entries[key] = value, size

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.size = 0
