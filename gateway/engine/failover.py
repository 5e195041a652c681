"""Failover of a response whose backend fails: go to another, wait for one, or give up.

Each part of a model call has one layer of retries: before the first id the pool's; after it hops,
one backend at a time with the prompt and all ids so far, counted from the log so that takeovers do
not reset them. A backend that was gone without a new id may have been brought down by the request,
which must not walk through the fleet (`losses_max`).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import (
    NoUpstreamAvailable,
    Overloaded,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
)

if TYPE_CHECKING:
    from gateway.engine.observer import Observer
    from gateway.engine.run_spec import RunSpec
    from gateway.errors import UpstreamError
    from gateway.eventlog.fold.fold import Fold


@dataclass(frozen=True, slots=True)
class HopPolicy:
    """Bounds of one response. Foreground ones that have begun wait `hop_wait_s`, background ones
    `upstream_wait_s`.
    """

    hops_max: int = 3
    losses_max: int = 2
    hop_wait_s: float = 10.0
    upstream_wait_s: float = 60.0
    pause_s: float = 0.05
    pause_max_s: float = 1.0


class Failover:
    __slots__ = ("_losses", "_observer", "_policy", "_refusals", "_refused_at", "_spec", "left")

    def __init__(self, spec: RunSpec, policy: HopPolicy, observer: Observer) -> None:
        self.left: tuple[str, ...] = ()
        """Backends to use only if no other is left."""
        self._spec = spec
        self._policy = policy
        self._observer = observer
        self._losses = 0
        self._refusals = 0
        self._refused_at = 0.0

    def begin(self) -> None:
        # Counters start again: the next request is made for the first time.
        self._losses = self._refusals = 0

    async def recover(self, error: UpstreamError, fold: Fold, *, is_resent: bool) -> None:
        # Returns when another attempt may be made; raises `error` when none may. With `is_resent`
        # the failed attempt was not the first one at these ids.
        if isinstance(error, UpstreamFailed):
            self.check_hops(error, fold)
            self._leave(error)
        elif isinstance(error, UpstreamRejected | Overloaded):
            raise error  # to wait is what was refused
        elif isinstance(error, UpstreamLost):
            self._losses += 1
            # Before the first id the pool has tried all that may be tried.
            if self._losses >= self._policy.losses_max or not is_resent:
                raise error
            self._check_count(error, fold)
            self._leave(error)
        else:
            await self._wait_for_a_backend(error, fold)

    def check_hops(self, error: UpstreamFailed, fold: Fold) -> None:
        """Count anew after a backend broke off; raise `error` if no other may continue."""
        self.begin()
        self._check_count(error, fold)

    def _check_count(self, error: UpstreamError, fold: Fold) -> None:
        if fold.hops >= self._policy.hops_max:
            raise error

    async def _wait_for_a_backend(self, error: UpstreamError, fold: Fold) -> None:
        # No backend took the request, which cost nothing: try the others, then wait for any.
        now = asyncio.get_running_loop().time()
        if not self._refusals:
            self._refused_at = now
        self._refusals += 1
        if not isinstance(error, NoUpstreamAvailable) and error.upstream not in self.left:
            self._leave(error)
            return
        left_s = self._refused_at + self._wait_max_s(fold) - now
        if left_s <= 0:
            raise error
        policy = self._policy
        ceiling_s = min(policy.pause_s * 2.0 ** min(self._refusals, 30), policy.pause_max_s, left_s)
        await asyncio.sleep(random.uniform(0, ceiling_s))  # noqa: S311 - spreads load, no secret

    def _wait_max_s(self, fold: Fold) -> float:
        if self._spec.head.background:
            return self._policy.upstream_wait_s
        return self._policy.hop_wait_s if fold.has_generated else 0.0

    def _leave(self, error: UpstreamError) -> None:
        self.left = (*self.left, error.upstream)
        self._observer.backend_left(self._spec, error)
