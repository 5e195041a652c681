from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER: Final = "(other)"
RANKING_INTERVAL_S: Final = 60.0
KEPT_SHARE: Final = 0.5
"""Part of a tenant's use that still counts after each ranking."""
FORGOTTEN_USE: Final = 1.0
ADVANTAGE: Final = 2.0
"""Factor by which a tenant must exceed a named one to take its label: otherwise two would take it
from each other again and again."""


class TenantLabels:
    """Labels of the tenants that use most, so that the number of series is bounded."""

    def __init__(
        self,
        count_max: int,
        on_dropped: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        # `clock` gives seconds and never goes back.
        self._count_max = count_max
        self._on_dropped = on_dropped
        self._clock = clock
        self._labels: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._rank_at = clock() + RANKING_INTERVAL_S

    def used(self, tenant: str, name: str, amount: float) -> str:
        """Return the label. `name` may be empty where not known."""
        if not self._count_max or not tenant:
            return OTHER
        self._used[tenant] = self._used.get(tenant, 0.0) + amount
        if name:
            self._names[tenant] = name
            if tenant not in self._labels and len(self._labels) < self._count_max:
                self._labels[tenant] = name
        return self.of(tenant)

    def of(self, tenant: str) -> str:
        return self._labels.get(tenant, OTHER)

    def rank(self) -> None:
        """Give the labels to those that use most, at most once in `RANKING_INTERVAL_S`."""
        now = self._clock()
        if now < self._rank_at:
            return
        self._rank_at = now + RANKING_INTERVAL_S
        used = self._used
        rivals = sorted(self._names.keys() - self._labels.keys(), key=lambda one: used.get(one, 0))
        named = sorted(self._labels, key=lambda one: used.get(one, 0), reverse=True)
        while rivals and named and used.get(rivals[-1], 0) > ADVANTAGE * used.get(named[-1], 0):
            winner = rivals.pop()
            self._on_dropped(self._labels.pop(named.pop()))
            self._labels[winner] = self._names[winner]
        self._used = {
            tenant: amount * KEPT_SHARE
            for tenant, amount in used.items()
            if amount * KEPT_SHARE >= FORGOTTEN_USE
        }
        kept = self._used.keys() | self._labels.keys()
        self._names = {tenant: name for tenant, name in self._names.items() if tenant in kept}
