"""What is stored, as a process knows it between two measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, RateLimited
from gateway.limits.accounting import NOTHING_USED, Charge, Elsewhere, Gates, Used, figures_of
from gateway.limits.stored_bytes import (
    DROPPED_S,
    FORGOTTEN_S,
    STEP_S,
    STEPS_MAX,
    TOKEN_BYTES,
    WHOLE_TENANT,
    Measurement,
    Storage,
    StorageAccount,
    account_of,
    project_of,
)
from tests.fakes.limited import MODEL, TENANT, at_once, caller, limit
from tests.unit.limits.test_gates import NOW, Counted

if TYPE_CHECKING:
    from gateway.limits.rules import Limit

PROJECT = UUID(int=9)


class Desk:
    """Storage with a clock that is set."""

    def __init__(self, *limits: Limit) -> None:
        self.now = 1_000.0
        self.counted = Counted()
        self.gates = Gates(
            clock=lambda: self.now, now=lambda: NOW, random=lambda: 0.0, observer=self.counted
        )
        self.storage: Storage = self.gates.storage
        self.terms = caller(*limits).terms
        self.storage.is_loaded(TENANT, self.terms.stored)

    def measured(self, account: str, size: int, *, age_s: float = 0.0) -> None:
        key = (TENANT, account)
        self.storage.update([key], {key: Measurement(size, age_s)})


def stored(value: int, **more: object) -> Limit:
    return at_once("stored_bytes", value, **more)


WHOLE = account_of(stored(1))


def test_what_is_stored_here_counts_until_a_measurement_has_it() -> None:
    desk = Desk(stored(100))
    assert not desk.storage.is_loaded(TENANT, desk.terms.stored)
    desk.measured(WHOLE, 40)
    assert desk.storage.is_loaded(TENANT, desk.terms.stored)
    desk.storage.hold(TENANT, desk.terms, 60, {})
    with pytest.raises(RateLimited) as refused:
        desk.storage.hold(TENANT, desk.terms, 1, {})
    assert "stored bytes of organization acme are used up: Limit 100, Used 100, Requested 1." in (
        refused.value.message
    )
    assert (refused.value.kind, refused.value.code) == ("insufficient_quota",) * 2
    assert refused.value.is_final
    assert desk.counted.refused == ["stored_bytes"]
    desk.now += 60
    desk.measured(WHOLE, 90, age_s=30)
    desk.storage.hold(TENANT, desk.terms, 10, {})


def test_what_was_stored_after_a_measurement_began_counts_beside_it() -> None:
    desk = Desk(stored(100))
    desk.storage.hold(TENANT, desk.terms, 30, {})
    desk.now += 60
    desk.storage.hold(TENANT, desk.terms, 20, {})
    desk.now += 10
    desk.measured(WHOLE, 30, age_s=30)
    assert dict(desk.storage.watched()) == {(TENANT, WHOLE): 20}
    assert desk.storage.used((TENANT, WHOLE)) == 20
    assert desk.storage.used((TENANT, "stored/unknown")) == 0


def test_other_processes_and_each_scope_count() -> None:
    of_project = stored(50, scope="project", scope_id=PROJECT)
    desk = Desk(stored(100), stored(1_000, scope="organization"), of_project)
    desk.measured(account_of(of_project), 45)
    with pytest.raises(RateLimited, match=f"of project {PROJECT} are used up"):
        desk.storage.hold(TENANT, desk.terms, 6, {})
    with pytest.raises(RateLimited, match="Used 96"):
        desk.storage.hold(TENANT, desk.terms, 5, {(TENANT, WHOLE): 96})
    # What is refused counts nowhere, and two limits of the same scope count once.
    desk.storage.hold(TENANT, desk.terms, 5, {(TENANT, WHOLE): 95})
    assert {size for _, size in desk.storage.watched()} == {5}


def test_what_is_only_observed_refuses_nothing() -> None:
    desk = Desk(stored(0, mode="observe"))
    desk.storage.hold(TENANT, desk.terms, 5, {})
    assert desk.counted.observed == ["stored_bytes"]


@pytest.mark.parametrize(
    ("used", "left"), [(NOTHING_USED, 0), (Used(7, 0, 10), 100 + 10 * TOKEN_BYTES)]
)
def test_what_a_request_becomes_counts_once(used: Used, left: int) -> None:
    desk = Desk(stored(1_000))
    charge = Charge(desk.gates, TENANT, TENANT, MODEL, "default")
    charge.stored = desk.storage.hold(TENANT, desk.terms, 100, {})
    charge.settle(used)
    charge.settle(used)
    assert desk.storage.used((TENANT, WHOLE)) == left


def test_a_limit_of_stored_bytes_is_of_a_tenant_or_a_project_and_of_all_models() -> None:
    for wrong in (stored(1, scope="key"), stored(1, model=MODEL), limit("stored_bytes", 1)):
        with pytest.raises(InvalidRequest):
            wrong.check()
    stored(1).check()
    limit("requests", 1).check()
    assert project_of(WHOLE) == WHOLE_TENANT
    assert project_of(account_of(stored(1, scope="project", scope_id=PROJECT))) == PROJECT


def test_accounts_that_nobody_uses_are_forgotten() -> None:
    desk = Desk(stored(100))
    desk.now += FORGOTTEN_S + 1
    assert not list(desk.storage.watched())
    desk.measured(WHOLE, 5)  # of one that was forgotten meanwhile
    desk.storage.hold(TENANT, desk.terms, 5, {})
    desk.now += FORGOTTEN_S + 1
    assert dict(desk.storage.watched()) == {(TENANT, WHOLE): 5}
    desk.now += DROPPED_S
    assert not list(desk.storage.watched())


def test_figures_have_the_measurement_and_what_came_after() -> None:
    desk = Desk(stored(100))
    desk.storage.hold(TENANT, desk.terms, 10, {})
    told = Elsewhere(under_way={(TENANT, WHOLE): 5}, stored={(TENANT, WHOLE): 40})
    (figure,) = figures_of(desk.gates, TENANT, desk.terms, told, NOW).limits
    assert (figure.remaining, figure.reset_s) == (45, None)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 3)), max_size=40), st.floats(0, 60))
def test_no_byte_that_came_after_a_measurement_is_lost(
    added: list[tuple[int, float]], age_s: float
) -> None:
    account, now, begun = StorageAccount(0.0), 0.0, []
    for size, pause_s in added:
        now += pause_s
        account.add(size, now)
        begun.append((now, size))
    account.update(Measurement(0, age_s), now)
    later = sum(size for at, size in begun if at > now - age_s)
    a_little_before = sum(size for at, size in begun if at > now - age_s - 2 * STEP_S)
    assert later <= account.added <= a_little_before


def test_a_long_time_without_a_measurement_is_remembered_in_bounded_space() -> None:
    account = StorageAccount(0.0)
    for number in range(STEPS_MAX + 10):
        account.add(1, 2.0 * number)
    assert account.added == STEPS_MAX + 10
    assert len(account._added) == STEPS_MAX
    account.update(None, 0.0)
    assert account.added == STEPS_MAX + 10
