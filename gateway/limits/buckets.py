"""Token buckets: the slice of a shared one that a process has, and buckets of one process alone.

A shared bucket is a row, which fills by the database's clock. A process takes from its slice, and
refills that from the row when a request does not fit, and once a second with the demand of the
second before; it gives unused tokens back. Each token is in one slice only, so processes together
cannot exceed the limit. A request that uses more than it reserved leaves a debt, down to minus the
capacity; nothing fits until that is paid.

Reads and refusals are cheap, but must not be free: each process has buckets of its own for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gateway.errors import RateLimited
from gateway.limits.headers import duration
from gateway.limits.refusal import RETRY_AFTER_MAX_S

IDLE_S: Final = 3.0
"""Seconds without a request after which a slice is given back."""
SHARE_S: Final = 1.0
"""Seconds of demand that a slice holds."""
SHARE_LEAST: Final = 0.05
"""Smallest share, as part of the rate."""
SPACING_S: Final = 0.02
"""Seconds between two statements for requests that do not fit."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Entry of a bucket in the next statement: `change` goes back to its row (below zero: overuse),
    `want` is requested.
    """

    rate: float
    capacity: float
    change: float
    want: float


class Bucket:
    """Slice of a shared bucket. `held` may be used now; while the database is away (`detached`), it
    fills by itself.
    """

    __slots__ = (
        "_change", "_demand", "_level", "_level_at", "_needed", "_own_rate", "_own_until",
        "_requested_at", "_short_at", "_want", "capacity", "held", "is_pending", "rate", "used_at",
    )  # fmt: skip

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self.held = 0.0
        self.used_at = now
        self.is_pending = False
        self._level: float | None = None
        self._level_at = now
        self._needed = 0.0
        self._demand = 0.0
        self._want = 0.0
        self._change = 0.0
        self._requested_at = now
        self._short_at = float("-inf")
        self._own_rate: float | None = None
        self._own_until = 0.0

    @property
    def is_detached(self) -> bool:
        # A bucket has a rate of its own only while the database is away.
        return self._own_rate is not None

    @property
    def is_needed(self) -> bool:
        return self._needed > 0

    def resize(self, rate: float, capacity: float) -> None:
        """Change the limit, whose row has changed, too.

        A lower one drops the tokens held, and the row is read again; a higher one adds the
        difference.
        """
        if capacity < self.capacity:
            self.held = min(self.held, 0.0)
        elif self._level is not None:
            self._level += capacity - self.capacity
        if self._own_rate is not None:
            self._own_rate *= rate / self.rate
        self.rate, self.capacity, self._short_at = rate, capacity, float("-inf")

    def demand(self, cost: float, now: float) -> None:
        self.used_at = now
        self._demand += cost
        if self._own_rate is not None:
            self._refill(now)

    def take(self, cost: float) -> None:
        # `held` may go below 0: tokens that were used already are taken in any case.
        self.held -= cost

    def give_back(self, amount: float, now: float) -> None:
        """Return an unused amount; a negative one takes more."""
        self.held += amount
        if self.held < 0:
            self.used_at = max(self.used_at, now)

    def available(self, now: float) -> float:
        return max(0.0, self.held + self._estimate(now))

    def is_worth_asking(self, cost: float, now: float) -> bool:
        """Return True if the row may have the missing tokens: after a refusal, once it can have
        refilled.
        """
        if self._own_rate is not None or cost > self.capacity:
            return False
        if now < self._short_at + SPACING_S:
            return False
        return self._level is None or self.held + self._estimate(now) >= cost

    def until_fits_s(self, cost: float, now: float) -> float:
        if self._own_rate is not None:
            return max(0.0, cost - self.held) / self._own_rate
        return max(0.0, cost - self.held - self._estimate(now)) / self.rate

    def until_full_s(self, available: float) -> float:
        return max(0.0, self.capacity - available) / self.rate

    def need(self, cost: float) -> None:
        self._needed += cost

    def ask(self, now: float) -> Ask | None:
        """Return the next statement's entry, if any. Call `answered` or `failed` afterwards."""
        share = 0.0
        if now - self.used_at < IDLE_S:
            passed_s = max(now - self._requested_at, SHARE_S)
            wanted = max(self._demand / passed_s, SHARE_LEAST * self.rate)
            share = min(wanted, self.rate, self.capacity) * SHARE_S
        change = self._surplus(share)
        want = max(0.0, min(self._needed, self.capacity) + share - max(0.0, self.held - change))
        self._demand, self._needed, self._requested_at = 0.0, 0.0, now
        if not change and not want:
            return None
        self.held -= change
        self._want, self._change, self.is_pending = want, change, True
        return Ask(self.rate, self.capacity, change, want)

    def answered(self, granted: float, level: float, now: float) -> None:
        self._own_rate, self._change, self.is_pending = None, 0.0, False
        self.held += granted
        self._level, self._level_at = level, now
        if granted < self._want:
            self._short_at = now

    def failed(self, ask: Ask, now: float, *, replicas: int, until: float) -> None:
        """Let the slice refill by itself, at this process's share of the rate."""
        self.held += ask.change
        self._change, self.is_pending = 0.0, False
        if self._own_rate is None:
            self.held = max(self.held, self._estimate(now) / max(1, replicas))
            self._own_rate = self.rate / max(1, replicas)
            self._own_until = until
            self._level_at = now

    def _refill(self, now: float) -> None:
        assert self._own_rate is not None, "only what is detached fills by itself"
        seconds = max(0.0, min(now, self._own_until) - self._level_at)
        most = self.capacity * self._own_rate / self.rate
        self.held = max(self.held, min(most, self.held + seconds * self._own_rate))
        self._level_at = now

    def _surplus(self, share: float) -> float:
        # Give back a debt, all of an idle slice, or an amount far above the share.
        if self.held < 0 or not share:
            return self.held
        return self.held - share if self.held > 2 * share + self._needed else 0.0

    def _estimate(self, now: float) -> float:
        # Tokens on their way back to the row are there before the next statement.
        if self._own_rate is not None:
            return 0.0
        if self._level is None:
            return self.capacity
        level = self._level + self._change + self.rate * (now - self._level_at)
        return min(self.capacity, level)


K = TypeVar("K", bound=Hashable)

WINDOW_S: Final = 60.0
ROUNDING_S: Final = 1e-6
KEPT: Final = 10_000


class Paces(Generic[K]):
    """Buckets by key, each as the time at which it will be full again (the generic cell rate
    algorithm).
    """

    def __init__(self) -> None:
        self._full_at: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def __contains__(self, key: K) -> bool:
        return key in self._full_at

    def take(self, key: K, capacity: float, now: float) -> float:
        """Take a unit of a bucket that holds `capacity` and fills in `WINDOW_S`, or return the
        seconds until it has one.
        """
        wait_s = self.wait_s(key, capacity, now)
        if not wait_s:
            self.spend(key, capacity, now)
        return wait_s

    def wait_s(self, key: K, capacity: float, now: float) -> float:
        full_at = self._full_at.get(key, now)
        wait_s = full_at + WINDOW_S / capacity - now - WINDOW_S
        return wait_s if wait_s > ROUNDING_S else 0.0

    def spend(self, key: K, capacity: float, now: float) -> None:
        """Take a unit in any case; a bucket goes below zero by at most one."""
        one_s = WINDOW_S / capacity
        full_at = max(self._full_at.pop(key, now), now) + one_s
        self._full_at[key] = min(full_at, now + WINDOW_S + one_s)
        if len(self._full_at) > KEPT:
            self._full_at.popitem(last=False)


class ReadPace:
    def __init__(self, per_minute: int) -> None:
        # `per_minute` applies to each key; 0: unlimited.
        self.per_minute = per_minute
        self._paces: Paces[Hashable] = Paces()

    def take(self, key: Hashable, now: float) -> None:
        if not self.per_minute:
            return
        wait_s = self._paces.take(key, self.per_minute, now)
        if wait_s:
            raise RateLimited(
                "Rate limit reached for reads of this API key on requests per min (RPM): Limit "
                f"{self.per_minute}, Used {self.per_minute}, Requested 1. Please try again in "
                f"{duration(wait_s)}.",
                code="rate_limit_exceeded",
                retry_after_s=min(wait_s, RETRY_AFTER_MAX_S),
            )
