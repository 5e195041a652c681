"""Who gives way when one tenant has most of the slots: no more than needed, the last ones first."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.upstreams.admission.admit import Running, excess
from gateway.upstreams.admission.queue import SHARE_OF_FREE_SLOTS
from gateway.upstreams.admission.slots import (
    CAUTION_FACTOR,
    OVERDUE_MIN_S,
    ROUND,
    AdmissionPolicy,
    MemberSlots,
    WorkClass,
)


@dataclass(eq=False)
class Sent:
    number: int
    upstream: str = "m"
    has_begun: bool = False
    can_go_on: bool = True
    share: float = 1.0
    recalled: list[int] = field(default_factory=list)

    def recall(self) -> None:
        self.recalled.append(self.number)


def running(**tenants: list[Sent]) -> Running:
    known = Running()
    for tenant, sent in tenants.items():
        for one in sent:
            known.add(tenant, one)
    return known


@given(st.integers(0, 2_000), st.integers(-500, 500))
def test_so_many_go_that_a_tenant_has_its_share_and_not_one_more(count: int, free: int) -> None:
    gone = excess(count, free)
    assert count - gone <= SHARE_OF_FREE_SLOTS * (free + gone)
    assert gone == 0 or count - (gone - 1) > SHARE_OF_FREE_SLOTS * (free + gone - 1)


def test_what_waits_at_the_backend_gives_way_first_and_the_latest_of_it() -> None:
    order: list[int] = []
    sent = [Sent(n, has_begun=n < 8, recalled=order) for n in range(10)]
    known = running(a=sent)
    assert known.make_room("b", ["m"], bound=10, free=0) == 1
    assert order == [9]
    assert known.make_room("b", ["m"], bound=10, free=0) == 0, "one is on its way out"
    known.discard("a", sent[9])
    assert known.make_room("b", ["m"], bound=10, free=-20) == 4, "it keeps half"
    assert order == [9, 8, 7, 6, 5]


def test_what_cannot_go_on_ends_where_it_is() -> None:
    sent = [Sent(n, has_begun=True, can_go_on=n == 2) for n in range(10)]
    assert running(a=sent).make_room("b", ["m"], bound=10, free=-20) == 1
    assert [one.number for one in sent if one.recalled] == [2]


def test_nobody_gives_way_who_has_half_of_the_slots_or_less() -> None:
    sent = [Sent(n) for n in range(5)]
    assert running(a=sent).make_room("b", ["m"], bound=10, free=0) == 0
    assert running(a=sent).make_room("a", ["m"], bound=5, free=0) == 0, "nor to itself"
    assert running().make_room("a", ["m"], bound=5, free=0) == 0
    elsewhere = [*sent, *(Sent(n, upstream="other") for n in range(5))]
    assert running(a=elsewhere).make_room("b", ["m"], bound=10, free=0) == 0, "not what is here"


def test_who_has_most_elsewhere_does_not_hide_who_has_most_here() -> None:
    far = [Sent(n, upstream="other") for n in range(30)]
    near = [Sent(n) for n in range(10)]
    assert running(a=far, b=near).make_room("c", ["m"], bound=10, free=0) == 1
    assert [one.number for one in near if one.recalled] == [9]
    assert not any(one.recalled for one in far)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.integers(1, 80), st.integers(1, 10_000)), min_size=1
    ),
    st.integers(1, 10_000),
    st.integers(1, 100),
    st.integers(-50, 5),
)
def test_by_their_shares_one_gives_way_that_has_most_and_keeps_its_part(
    tenants: dict[str, tuple[int, int]], share: int, bound: int, free: int
) -> None:
    """As if the two divided the slots: nobody below its part gives anything up."""
    beyond = {name: count * (own + share) - bound * own for name, (count, own) in tenants.items()}
    assume(0 not in beyond.values())
    sent = {
        name: [Sent(n, share=own / 100) for n in range(count)]
        for name, (count, own) in tenants.items()
    }
    known = running(**sent)
    recalled = known.make_room("new", ["m"], bound=bound, free=free, share=share / 100)
    gone = {name: sum(bool(one.recalled) for one in every) for name, every in sent.items()}
    hogs = {name: count / own for name, (count, own) in tenants.items() if beyond[name] > 0}
    most = [name for name in hogs if hogs[name] == pytest.approx(max(hogs.values()))]
    assert sum(count > 0 for count in gone.values()) <= 1
    assert sum(gone[name] for name in most) == recalled
    may_go = [
        min(excess(count, free), count * share // (own + share))
        for count, own in map(tenants.__getitem__, most)
    ]
    assert any(recalled == pytest.approx(count, abs=1) for count in may_go or [0])
    for count, own in map(tenants.__getitem__, most):
        assert count - recalled >= count * own / (own + share) - 1e-6 or len(most) > 1


def test_a_tenant_is_forgotten_with_its_last_request() -> None:
    one, other = Sent(1), Sent(2)
    known = running(a=[one, other])
    known.discard("a", one)
    assert len(known.tenants) == 1
    known.discard("a", other)
    known.discard("a", other)
    assert not known.tenants


def slots() -> MemberSlots:
    return MemberSlots("m", AdmissionPolicy(slots_start=10, slots_min=2))


def test_a_first_token_is_overdue_where_slots_are_used_up_and_it_takes_long() -> None:
    known = slots()
    taken = [known.take(WorkClass.DEFAULT, 1) for _ in range(9)]
    assert known.overdue_s(0) is None, "nobody knows what is usual"
    taken[0].first(1.0)
    assert known.overdue_s(0) == 4.0
    for _ in range(20):
        known.take(WorkClass.DEFAULT, 1).first(9.0)
    assert (known.overdue_s(0) or 0) < 5.0, "what waits does not become usual"
    for _ in range(40):
        known.take(WorkClass.DEFAULT, 1).first(0.001)
    assert known.overdue_s(2_000) == OVERDUE_MIN_S + 1
    idle = slots()
    idle.take(WorkClass.DEFAULT, 1).first(1.0)
    assert idle.overdue_s(0) is None, "there is room: it is slow by itself"


def test_once_one_is_overdue_the_bound_is_about_what_has_begun() -> None:
    known = slots()
    taken = [known.take(WorkClass.DEFAULT, 1) for _ in range(10)]
    for slot in taken[:7]:
        slot.has_begun = True
        known.begun += 1
    taken[9].overdue()
    assert known.bound == 7
    taken[9].overdue()
    assert known.bound == 7, "it was sent before the bound changed"


def test_after_one_was_overdue_the_bound_grows_slowly_until_it_is_another_backend() -> None:
    known = slots()
    taken = [known.take(WorkClass.DEFAULT, 1) for _ in range(10)]
    taken[9].overdue()
    for slot in taken:
        slot.release()
    steps = [on_time_until_it_grows(known) for _ in range(12)]
    assert steps == [ROUND * CAUTION_FACTOR] * 2 + [ROUND] * 10, "from 5 to 7, and then as ever"


def on_time_until_it_grows(known: MemberSlots) -> int:
    bound, count = known.bound, 0
    while known.bound == bound:
        taken = [known.take(WorkClass.DEFAULT, 1) for _ in range(known.bound)]
        taken[-1].first(0.1)
        for one in taken:
            one.release()
        count += 1
    return count
