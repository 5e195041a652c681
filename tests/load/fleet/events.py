"""Virtual time: what is to happen, in its order. Nothing here waits."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class World:
    """Seconds since the beginning, and what happens later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def clock(self) -> float:
        """The time now."""
        return self.now

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do that so many seconds from now."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, act))

    def run(self, until: float) -> None:
        """All that happens until then."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act = heapq.heappop(heap)
            act()
        self.now = until
