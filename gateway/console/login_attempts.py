"""A bound on wrong login links: each one costs a statement, and nobody has a reason for many."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from gateway.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES_MAX: Final = 5
"""Failures of one address within `WINDOW_S`."""
WINDOW_S: Final = 60.0
ADDRESSES_MAX: Final = 1_000
"""Addresses that are kept: those that failed last."""


class LoginAttempts:
    """Failed logins of this process, by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str | None) -> None:
        failures = self._failures.get(address or "", ())
        recent = [at for at in failures if self._clock() - at < WINDOW_S]
        if len(recent) >= FAILURES_MAX:
            wait_s = WINDOW_S - (self._clock() - recent[0])
            raise RateLimited(
                "There were too many wrong login links. Try again in a minute.",
                retry_after_s=wait_s,
            )

    def note_failure(self, address: str | None) -> None:
        failures = self._failures.setdefault(address or "", deque(maxlen=FAILURES_MAX))
        self._failures.move_to_end(address or "")
        failures.append(self._clock())
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
