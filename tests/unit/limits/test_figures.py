"""What is left of limits and budgets, from what one process knows and the others told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.limits.accounting import BudgetFigure, Elsewhere, Figures, Gates, figures_of
from gateway.limits.rules import Meter, meter_of
from tests.fakes.limited import TENANT, at_once, budget, caller, limit
from tests.unit.limits.test_gates import Counted

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
MONTH = meter_of("tenant", TENANT, "usd", "month")


def new_gates() -> Gates:
    return Gates(clock=lambda: 0.0, now=lambda: NOON, random=lambda: 0.0, observer=Counted())


def test_a_bucket_that_nobody_used_is_full() -> None:
    one = limit("tokens", 600)
    (figure,) = figures_of(new_gates(), TENANT, caller(one).terms, Elsewhere(), NOON).limits
    assert (figure.limit, figure.remaining, figure.reset_s) == (one, 600, 0.0)


@pytest.mark.parametrize(
    ("level", "held", "remaining"),
    [(100.0, 0.0, 100), (100.0, 20.5, 120), (50.0, -80.0, 0), (590.0, 99.0, 600), (1e9, 0, 600)],
)
def test_the_row_and_the_slice_of_this_process_are_left(
    level: float, held: float, remaining: int
) -> None:
    one, gates = limit("tokens", 600), new_gates()
    principal = caller(one)
    rules = principal.terms.rules("m")
    assert rules is not None
    gates.adopt(
        TENANT,
        "m",
        {
            "project": str(TENANT), "tier": "default", "meters": [],
            "tokens": [(one.name, "tokens", one.rate, one.value, 0)],
        },
    )  # fmt: skip
    for _, bucket in gates.live_buckets():
        bucket.held = held
    told = Elsewhere(levels={(TENANT, one.name): level})
    (figure,) = figures_of(gates, TENANT, principal.terms, told, NOON).limits
    assert figure.remaining == remaining
    assert figure.reset_s == pytest.approx((600 - min(max(level + held, 0), 600)) / 10, abs=0.1)


def test_places_are_counted_here_and_elsewhere() -> None:
    one, gates = at_once("responses", 5), new_gates()
    gates.places[TENANT, one.name] = 2
    told = Elsewhere(under_way={(TENANT, one.name): 2})
    (figure,) = figures_of(gates, TENANT, caller(one).terms, told, NOON).limits
    assert (figure.remaining, figure.reset_s) == (1, None)
    told = Elsewhere(under_way={(TENANT, one.name): 9})
    (figure,) = figures_of(gates, TENANT, caller(one).terms, told, NOON).limits
    assert figure.remaining == 0


def test_a_budget_is_spent_by_all_processes_in_its_own_interval() -> None:
    gates, terms = new_gates(), caller(budgets=[budget(100)]).terms
    told = Elsewhere(spent={(TENANT, MONTH): 30}, under_way={(TENANT, MONTH): 4})
    (figure,) = figures_of(gates, TENANT, terms, told, NOON).budgets
    assert (figure.spent, figure.reserved, figure.remaining) == (30, 4, 70)
    meter = gates._meter(gates._meters[TENANT], Meter(MONTH, "usd", "month"))
    meter.spend(50, NOON)
    meter.reserved = 6
    (figure,) = figures_of(gates, TENANT, terms, told, NOON).budgets
    assert (figure.spent, figure.reserved, figure.remaining) == (80, 10, 20)
    assert figure.resets_at == datetime(2026, 12, 1, tzinfo=UTC)
    (figure,) = figures_of(gates, TENANT, terms, Elsewhere(), NOON + timedelta(days=9)).budgets
    assert (figure.spent, figure.remaining) == (0, 100)


@pytest.mark.parametrize(
    ("spent", "days", "left"),
    [(0, 10, None), (50, 10, 10), (20, 10, None), (100, 10, 0), (120, 3, 0), (99, 30, 10 / 33)],
)
def test_a_budget_runs_out_as_it_was_spent_so_far(
    spent: int, days: int, left: float | None
) -> None:
    now = datetime(2026, 10, 1, tzinfo=UTC) + timedelta(days=days)
    month = BudgetFigure(budget(100, interval="month"), spent, 0, datetime(2026, 11, 1, tzinfo=UTC))
    runs_out_at = month.runs_out_at(now)
    if left is None:
        assert runs_out_at is None
    else:
        assert runs_out_at is not None
        assert (runs_out_at - now) / timedelta(days=1) == pytest.approx(left)
    assert replace(month, resets_at=None).runs_out_at(now) is None


@pytest.mark.parametrize("spent", [1, 500])
def test_a_budget_that_is_hardly_used_does_not_run_out(spent: int) -> None:
    cap, ends = 2**63 - 1, datetime(2026, 11, 1, tzinfo=UTC)
    month = BudgetFigure(budget(cap, interval="month"), spent, 0, ends)
    assert month.runs_out_at(ends - timedelta(days=9)) is None


def test_the_tightest_budget_is_of_money_and_refuses() -> None:
    budgets = [
        budget(100),
        budget(10, interval="day"),
        budget(1, unit="tokens"),
        budget(1, interval="none", mode="observe"),
    ]
    figures = figures_of(new_gates(), TENANT, caller(budgets=budgets).terms, Elsewhere(), NOON)
    assert figures.tightest is not None
    assert figures.tightest.budget.interval == "day"
    assert Figures().tightest is None
