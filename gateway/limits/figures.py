"""Figures of what is left of limits and budgets, by the counts that requests are held to.

No figure includes what other processes have taken from a bucket in advance, for the next second: it
may show that much less than the whole installation has left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.limits.money import begins, ends
from gateway.limits.storage import account_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from gateway.limits.gates import Gates
    from gateway.limits.terms import Budget, Limit, Terms

    Key = tuple[UUID, str]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Counts of the database, beside those of this process: `levels` of the buckets that were ever
    used, as they are filled by now; `under_way` and `spent` of the other processes; `told`: the
    spending that this process wrote, because it forgets meters that nobody uses.
    """

    levels: Mapping[Key, float] = field(default_factory=dict)
    under_way: Mapping[Key, int] = field(default_factory=dict)
    spent: Mapping[Key, int] = field(default_factory=dict)
    told: Mapping[Key, int] = field(default_factory=dict)
    stored: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitFigure:
    """A limit, what is left of it, and in how many seconds all of it is (None: nobody knows)."""

    limit: Limit
    remaining: int
    reset_s: float | None


@dataclass(frozen=True, slots=True)
class BudgetFigure:
    """A budget in the interval of now: what is spent, and what requests under way may take beside
    it, in its unit; `resets_at` None: never.
    """

    budget: Budget
    spent: int
    reserved: int
    resets_at: datetime | None

    @property
    def remaining(self) -> int:
        return max(0, self.budget.cap - self.spent)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of all limits and budgets that bind a key."""

    limits: tuple[LimitFigure, ...] = ()
    budgets: tuple[BudgetFigure, ...] = ()

    @property
    def tightest(self) -> BudgetFigure | None:
        """Return the enforced money budget with the least left."""
        binding = [
            one for one in self.budgets if one.budget.unit == "usd" and one.budget.mode == "enforce"
        ]
        return min(binding, key=lambda one: one.remaining, default=None)


def figures_of(
    gates: Gates, tenant_id: UUID, terms: Terms, elsewhere: Elsewhere, now: datetime
) -> Figures:
    """Return the figures of a tenant from this process's `gates` and the reports of the others."""
    return Figures(
        tuple([_of_limit(gates, tenant_id, one, elsewhere) for one in terms.limits]),
        tuple([_of_budget(gates, tenant_id, one, elsewhere, now) for one in terms.budgets]),
    )


def _of_limit(gates: Gates, tenant_id: UUID, limit: Limit, elsewhere: Elsewhere) -> LimitFigure:
    key = (tenant_id, limit.name)
    if limit.what == "stored_bytes":
        key = (tenant_id, account_of(limit))
        used = elsewhere.stored.get(key, 0) + gates.storage.used(key)
        used += elsewhere.under_way.get(key, 0)
        return LimitFigure(limit, max(0, limit.value - used), None)
    if not limit.window_s:
        used = gates.places.get(key, 0) + elsewhere.under_way.get(key, 0)
        return LimitFigure(limit, max(0, limit.value - used), None)
    left = min(elsewhere.levels.get(key, limit.value), limit.value) + gates.held(key)
    left = min(max(left, 0.0), limit.value)
    return LimitFigure(limit, int(left), (limit.value - left) / limit.rate)


def _of_budget(
    gates: Gates, tenant_id: UUID, budget: Budget, elsewhere: Elsewhere, now: datetime
) -> BudgetFigure:
    key = (tenant_id, budget.meter)
    spent, reserved = gates.spending(key, now)
    return BudgetFigure(
        budget,
        max(spent, elsewhere.told.get(key, 0)) + elsewhere.spent.get(key, 0),
        reserved + elsewhere.under_way.get(key, 0),
        ends(budget.interval, now),
    )


def interval_starts(terms: Terms, now: datetime) -> dict[str, datetime]:
    """Return the start of the current interval of each budget, by meter."""
    return {one.meter: begins(one.interval, now) for one in terms.budgets}
