"""Estimates of the tokens of an answer, from the answers that came before it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

K = TypeVar("K")

ALPHA: Final = 0.02
"""Weight of the latest answer."""
FACTOR: Final = 1.5
"""How many times the expected tokens are reserved, so that few answers are longer."""
LEAST: Final = 256
AT_FIRST: Final = 1_024
"""While fewer than `FIRST` answers are known."""
FIRST: Final = 20
KEPT: Final = 4_096


class Estimates(Generic[K]):
    """Moving averages by key, of those that were used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[K, tuple[int, float]] = OrderedDict()

    def reserve(self, key: K, most: int) -> int:
        """Return the output tokens to reserve for a request that may produce `most`."""
        count, mean = self._known.get(key, (0, 0.0))
        expected = AT_FIRST if count < FIRST else max(LEAST, int(FACTOR * mean))
        return min(expected, most)

    def learn(self, key: K, tokens: int) -> None:
        """Add the length of an answer to the average."""
        count, mean = self._known.pop(key, (0, 0.0))
        weight = max(ALPHA, 1 / (count + 1))
        self._known[key] = count + 1, mean + weight * (tokens - mean)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
