"""Fairness among tenants, with the real queue: nobody's flood costs the others what they notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.admission import queue
from gateway.upstreams.admission.queue import EXPECTED_AT_FIRST, FairOrder, FairShares
from gateway.upstreams.admission.slots import WorkClass
from tests.fakes.fair_load import TENANTS, Load, ticket

if TYPE_CHECKING:
    from gateway.upstreams.admission.queue import CountedRequest

DEFAULT = WorkClass.DEFAULT


def test_who_was_served_least_goes_first_and_its_own_go_in_order() -> None:
    shares = FairShares()
    order: FairOrder[CountedRequest] = FairOrder(shares)
    shares.serve("a", 1_000, DEFAULT)
    tickets = [ticket(number, "a" if number < 3 else "b") for number in range(5)]
    for one in tickets:
        order.push(one)
    went = []
    while order:
        head = order.head()
        order.remove(head)
        shares.serve(head.tenant, 10, DEFAULT)
        went.append(head.number)
    assert went == [3, 4, 0, 1, 2]


def test_what_a_tenant_did_not_use_before_is_gone() -> None:
    shares = FairShares()
    for _ in range(100):
        shares.serve("busy", 1_000, DEFAULT).end(100)
    shares.arrive("new")
    busy, new = shares.account("busy"), shares.account("new")
    one_more = 1_000 + 4 * EXPECTED_AT_FIRST
    assert busy.served - new.served <= one_more


def test_counters_of_idle_tenants_go_though_another_request_runs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "TENANTS_MAX", 3)
    shares = FairShares()
    shares.serve("long", 10, DEFAULT)
    shares.serve("idle", 10_000, DEFAULT).end(0)
    for name in "abc":
        shares.serve(name, 1, DEFAULT).end(0)
    assert not shares.is_idle("long")
    assert shares.account("idle").served == 0


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9_999), st.integers(0, 9_999)), max_size=50
    )
)
def test_in_the_end_each_has_been_counted_what_it_had(served: list[tuple[str, int, int]]) -> None:
    shares = FairShares()
    for name in "abc":
        shares.account(name).queued = 1  # it never lacks requests
    for name, prompt, output in served:
        shares.serve(name, prompt, DEFAULT).end(output)
    for name in "abc":
        own = sum(prompt + 4 * output for one, prompt, output in served if one == name)
        assert shares.account(name).served == pytest.approx(own)
        assert not shares.account(name).running


@given(st.integers(-(10**9), 10**9))
def test_no_count_of_a_backend_makes_a_tenant_one_that_was_served_less(output: int) -> None:
    shares = FairShares()
    before = shares.account("a").served
    shares.serve("a", 10, DEFAULT).end(output)
    assert shares.account("a").served >= before + 10
    assert shares.account("a").expected >= 0


def test_the_last_slots_are_left_for_others() -> None:
    shares = FairShares()
    assert shares.has_share("a", 0)  # whether there is a slot at all is another question
    for _ in range(95):
        shares.serve("a", 1, DEFAULT)
    assert shares.has_share("a", 6)
    assert not shares.has_share("a", 5)
    assert shares.has_share("b", 5)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 10_000), min_size=2),
    st.lists(st.integers(1, 2_000), min_size=50, max_size=50),
)
def test_who_always_waits_is_served_by_its_share(
    weights: dict[str, int], outputs: list[int]
) -> None:
    """As tokens over shares their services differ by one request at most."""
    shares = FairShares()
    order: FairOrder[CountedRequest] = FairOrder(shares)
    served = dict.fromkeys(weights, 0.0)
    for number, name in enumerate(weights):
        order.push(ticket(number, name))
    for number, output in enumerate(outputs, len(weights)):
        head = order.head()
        order.push(ticket(number, head.tenant))
        order.remove(head)
        share = weights[head.tenant] / 100
        shares.serve(head.tenant, 100, DEFAULT, share).end(output)
        served[head.tenant] += (100 + 4 * output) / share
    one = max((100 + 4 * 2_000) / weight * 100 for weight in weights.values())
    assert max(served.values()) - min(served.values()) <= one + 1e-6


def test_the_best_class_costs_least() -> None:
    shares = FairShares()
    for work in WorkClass:
        shares.account(work.label).queued = 1
        shares.serve(work.label, 1_000, work)
    counted = [shares.account(work.label).served for work in WorkClass]
    assert counted == sorted(counted)


@pytest.mark.slow
def test_small_tenants_hardly_wait_beside_a_flood_and_long_answers() -> None:
    loads = {is_fair: Load(is_fair=is_fair) for is_fair in (False, True)}
    for load in loads.values():
        load.run()
    waits = {is_fair: load.waits_of_small() for is_fair, load in loads.items()}
    p99 = {is_fair: each[int(0.99 * len(each))] for is_fair, each in waits.items()}
    assert p99[True] <= 6.0
    assert p99[True] < p99[False] / 3
    fair, first_come = (sum(loads[is_fair].generated.values()) for is_fair in (True, False))
    assert fair == pytest.approx(first_come, rel=0.05)
    assert not any(loads[True].refused[name] for name in TENANTS if name.startswith("small"))
