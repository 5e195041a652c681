"""What is kept because it will be asked for again."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    """`is_wanted`: somebody asked for it since it was put, or since it was spared."""

    value: V
    size: int
    is_wanted: bool = False


class Kept(Generic[K, V]):
    """Values by key. The oldest is the first to go, but spared once if somebody asked for it: to
    move it at each question would cost more than the question. Shared by threads.
    """

    def __init__(self, *, size_max: int) -> None:
        """Of all that is kept, together, in the unit in which `put` is told it."""
        self._size_max = size_max
        self._size = 0
        self._by_key: dict[K, _Entry[V]] = {}
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value, if it is still there."""
        entry = self._by_key.get(key)
        if entry is None:
            return None
        entry.is_wanted = True
        return entry.value

    def put(self, key: K, value: V, *, size: int) -> None:
        """Keep it, unless it is too large to be kept at all."""
        if size > self._size_max:
            return
        with self._lock:
            replaced = self._by_key.pop(key, None)
            self._size += size - (replaced.size if replaced else 0)
            while self._size > self._size_max:
                self._drop_or_spare()
            self._by_key[key] = _Entry(value, size)

    def _drop_or_spare(self) -> None:
        key = next(iter(self._by_key))
        entry = self._by_key.pop(key)
        if entry.is_wanted:
            entry.is_wanted = False
            self._by_key[key] = entry
        else:
            self._size -= entry.size
