"""Bytes of requests that a process holds at once, and places, bounded and fair among tenants."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gateway.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

SHARE_OF_FREE: Final = 4
"""Multiple of what is free that one tenant may hold (dynamic thresholds, Choudhury and Hahne): one
alone has up to four fifths of all, two four ninths each."""


class FairPlaces:
    """Places, of which a tenant alone gets four fifths. What finds none is refused."""

    def __init__(self, places_max: int, refusal: str) -> None:
        self.places_max = places_max
        self._refusal = refusal
        self._taken = 0
        self._of_tenants: Counter[Hashable] = Counter()

    @contextmanager
    def taken(self, tenant: Hashable) -> Iterator[None]:
        if self._of_tenants[tenant] >= SHARE_OF_FREE * (self.places_max - self._taken):
            raise RateLimited(self._refusal, code="rate_limit_exceeded")
        self._taken += 1
        self._of_tenants[tenant] += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._of_tenants[tenant] -= 1
            if not self._of_tenants[tenant]:
                del self._of_tenants[tenant]


class HeldBytes:
    """Count of what is held, by tenant. One request alone may have any size."""

    def __init__(self, bytes_max: int, refusal: str) -> None:
        self._bytes_max = bytes_max
        self._refusal = refusal
        self.of_tenants: Counter[Hashable] = Counter()

    @contextmanager
    def one(self, tenant: Hashable) -> Iterator[Callable[[int], None]]:
        """Hold the bytes of one request for the block, which calls the returned function with the
        size of each part. That raises `RateLimited` if there is no room.
        """
        own = 0

        def add(size: int) -> None:
            nonlocal own
            of_tenant, taken = self.of_tenants[tenant], self.of_tenants.total()
            left = self._bytes_max - taken - size
            if (taken > own and left < 0) or (
                of_tenant > own and of_tenant + size > SHARE_OF_FREE * left
            ):
                raise RateLimited(self._refusal, code="rate_limit_exceeded")
            own += size
            self.of_tenants[tenant] += size

        try:
            yield add
        finally:
            self.of_tenants[tenant] -= own
            if not self.of_tenants[tenant]:
                del self.of_tenants[tenant]
