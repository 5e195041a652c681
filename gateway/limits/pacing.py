"""Buckets of this process alone, for what is cheap and must not be free: reads, and refusals.

Nothing of them is shared with other replicas: each lets through as much as it may itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from gateway.errors import RateLimited
from gateway.limits.refusal import RETRY_AFTER_MAX_S, duration

K = TypeVar("K", bound=Hashable)

WINDOW_S: Final = 60.0
ROUNDING_S: Final = 1e-6
"""A shorter wait is an error of arithmetic."""
KEPT: Final = 10_000
"""Buckets that are remembered: those that were used last."""


class Paces(Generic[K]):
    """Buckets by key, each as the time at which it will be full again (the generic cell rate
    algorithm): what is full need not be kept.
    """

    def __init__(self) -> None:
        self._full_at: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def __contains__(self, key: K) -> bool:
        # An unused bucket is full.
        return key in self._full_at

    def take(self, key: K, capacity: float, now: float) -> float:
        """Take one unit from a bucket that holds `capacity` and fills in `WINDOW_S`.

        Return 0.0, or the seconds until a unit is available; nothing is taken then.
        """
        wait_s = self.wait_s(key, capacity, now)
        if not wait_s:
            self.spend(key, capacity, now)
        return wait_s

    def wait_s(self, key: K, capacity: float, now: float) -> float:
        """Return the seconds until a unit is available; 0.0 if one is now."""
        full_at = self._full_at.get(key, now)
        wait_s = full_at + WINDOW_S / capacity - now - WINDOW_S
        return wait_s if wait_s > ROUNDING_S else 0.0

    def spend(self, key: K, capacity: float, now: float) -> None:
        """Take one unit in any case; a bucket goes below zero by at most one."""
        one_s = WINDOW_S / capacity
        full_at = max(self._full_at.pop(key, now), now) + one_s
        self._full_at[key] = min(full_at, now + WINDOW_S + one_s)
        if len(self._full_at) > KEPT:
            self._full_at.popitem(last=False)


class ReadPace:
    """Limit on the reads of each key: requests that generate nothing have no other limit."""

    def __init__(self, per_minute: int) -> None:
        # `per_minute` applies to each key; 0: unlimited.
        self._per_minute = per_minute
        self._paces: Paces[Hashable] = Paces()

    def take(self, key: Hashable, now: float) -> None:
        """Count one read at `now` of a monotonic clock. Raises `RateLimited`."""
        if not self._per_minute:
            return
        wait_s = self._paces.take(key, self._per_minute, now)
        if wait_s:
            raise RateLimited(
                "Rate limit reached for reads of this API key on requests per min (RPM): Limit "
                f"{self._per_minute}, Used {self._per_minute}, Requested 1. Please try again in "
                f"{duration(wait_s)}.",
                code="rate_limit_exceeded",
                retry_after_s=min(wait_s, RETRY_AFTER_MAX_S),
            )
