"""What is kept because it will be asked for again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SPARED_AT_ONCE: Final = 64
"""So many are spared for one that is put, so that it takes no longer where all are wanted."""


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
        # To find the first key of a dictionary takes as long as many went before it.
        self._by_key: OrderedDict[K, _Entry[V]] = OrderedDict()
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
            self._make_room()
            self._by_key[key] = _Entry(value, size)

    def _make_room(self) -> None:
        spared = 0
        while self._size > self._size_max:
            key, entry = self._by_key.popitem(last=False)
            if entry.is_wanted and spared < SPARED_AT_ONCE:
                entry.is_wanted = False
                self._by_key[key] = entry
                spared += 1
            else:
                self._size -= entry.size
