"""The queue: in order, exact, bounded in time; whatever comes, goes, fails or leaves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from gateway.upstreams.admission.queue import AdmissionQueue, Demand, Ticket
from gateway.upstreams.admission.slots import AdmissionPolicy, MemberSlots, Slot, WorkClass

POLICY = AdmissionPolicy(
    slots_start=5, slots_min=5, slots_max=5, promotion_s=1000, background_share=0.8, wait_max_s=10
)
ONE, OTHER = Demand("m"), Demand("m", is_new=True)
PRIORITY, DEFAULT, BACKGROUND = WorkClass


class Place:
    """A backend with so many places; `went` are the numbers of those that were sent to it."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.went: list[int] = []

    def start(self, name: int) -> int | None:
        if not self.room:
            return None
        self.room -= 1
        self.went.append(name)
        return name


def pushed(
    queue: AdmissionQueue[int],
    place: Place,
    name: int,
    work: WorkClass = DEFAULT,
    demand: Demand = ONE,
    *,
    now: float = 0.0,
    within_s: float = 100.0,
) -> Ticket[int]:
    settled: list[int] = []
    ticket: Ticket[int] = Ticket(
        work,
        demand,
        lambda: place.start(name),
        since=now,
        deadline=now + within_s,
        on_settled=lambda: settled.append(1),
    )
    queue.push(ticket, now)
    return ticket


def test_those_of_a_class_go_as_they_came_and_better_ones_first() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    for name, work in enumerate([BACKGROUND, DEFAULT, PRIORITY, DEFAULT, PRIORITY, BACKGROUND]):
        pushed(queue, place, name, work)
    place.room = 6
    queue.pump(1.0)
    assert place.went == [2, 4, 1, 3, 0, 5]
    assert len(queue) == 0


def test_who_cannot_go_keeps_nobody_waiting_who_needs_something_else() -> None:
    queue, full, free = AdmissionQueue[int](POLICY), Place(), Place(1)
    pushed(queue, full, 1, PRIORITY, OTHER)
    pushed(queue, full, 2, DEFAULT, OTHER)
    pushed(queue, free, 3, BACKGROUND)
    queue.pump(1.0)
    assert (full.went, free.went, len(queue)) == ([], [3], 2)


def test_of_different_needs_in_a_class_who_came_first_goes_first() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place(3)
    for name, demand in enumerate([OTHER, ONE, OTHER, ONE]):
        pushed(queue, place, name, demand=demand)
    queue.pump(1.0)
    assert place.went == [0, 1, 2]


def test_what_waited_long_goes_with_the_class_above() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place(1)
    pushed(queue, place, 1, BACKGROUND, within_s=5000)
    pushed(queue, place, 2, now=900, within_s=5000)
    queue.pump(1000)
    assert place.went == [1]


def test_what_waited_too_long_is_refused_although_there_is_room() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place(5)
    late = pushed(queue, place, 1, within_s=10)
    ready = pushed(queue, place, 2, within_s=20)
    queue.pump(10.0)
    assert (late.refused_for, late.result, ready.refused_for) == ("deadline", None, None)
    assert place.went == [2]


def test_an_error_belongs_to_who_waits() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place(1)
    failing = pushed(queue, place, 1)

    def fail() -> int | None:
        raise ValueError("gone")

    failing.start = fail
    pushed(queue, place, 2)
    queue.pump(1.0)
    assert str(failing.error) == "gone"
    assert place.went == [2]
    assert len(queue) == 0


def test_the_rate_is_that_at_which_others_go_while_some_wait() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    for name in range(30):
        pushed(queue, place, name)
    assert queue.drain_s(10, "m", 0.0) is None
    for second in range(1, 11):
        place.room = 2
        queue.pump(float(second))
    assert queue.drain_s(10, "m", 10.0) == pytest.approx(5.0)
    assert queue.drain_s(10, "unheard of", 10.0) is None
    assert queue.ahead(DEFAULT, "m") == 10
    assert queue.ahead(PRIORITY, "m") == 0
    place.room = 10
    queue.pump(11.0)
    pushed(queue, place, 99, now=500.0)
    assert queue.drain_s(1, "m", 500.0) is None  # nobody waited meanwhile


def test_the_rate_follows_what_happens_now() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    for name in range(1000):
        pushed(queue, place, name, within_s=1e6)
    for tenth in range(300):
        place.room = 1
        queue.pump(tenth / 10)
    for second in range(300):
        place.room = 1
        queue.pump(30.0 + second)
    assert queue.drain_s(10, "m", 330.0) == pytest.approx(10, rel=0.01)


def test_a_rate_of_long_ago_refuses_nobody() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    for name in range(10):
        pushed(queue, place, name)
    for second in range(10):
        place.room = 1
        queue.pump(float(second))
    assert len(queue) == 0
    assert queue.refuses(DEFAULT, "m", 10_000.0) is None


def test_a_burst_may_wait_longer_than_what_comes_into_an_overload() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    for name in range(100):
        pushed(queue, place, name)
    for second in range(1, 10):
        place.room = 4
        queue.pump(float(second))
    assert queue.refuses(DEFAULT, "m", 9.0) == "wait"  # 64 wait, for 16 s
    assert queue.refuses(PRIORITY, "m", 9.0) is None
    place.room = 40
    queue.pump(9.2)
    assert queue.refuses(DEFAULT, "m", 9.2) == "wait"  # 24 wait, for 3 s, and 0.8 s are left
    place.room = 18
    queue.pump(9.3)
    assert queue.refuses(DEFAULT, "m", 9.3) is None  # 6 wait
    assert queue.refuses(DEFAULT, "m", 14.0) == "wait"


def test_at_its_beginning_a_burst_may_last() -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    for name in range(30):
        pushed(queue, place, name)
    for second in range(1, 3):
        place.room = 4
        queue.pump(float(second))
    assert queue.refuses(DEFAULT, "m", 2.0) is None  # 22 wait, for 6 s, and 8 s are left
    for name in range(40):
        pushed(queue, place, name)
    assert queue.refuses(DEFAULT, "m", 2.0) == "wait"


class Overload(RuleBasedStateMachine):
    """Arrivals, ends, failures, leavers and time, in any order, at one backend."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = AdmissionQueue[Slot](POLICY)
        self.slots = MemberSlots("m", POLICY)
        self.waiting: list[Ticket[Slot]] = []
        self.running: list[Slot] = []
        self.went: list[Ticket[Slot]] = []

    def start(self, work: WorkClass) -> Slot | None:
        if not self.slots.has_room(work):
            return None
        return self.slots.take(work, 1)

    def settle(self, ticket: Ticket[Slot]) -> None:
        before = [
            one
            for one in self.waiting
            if one.work is ticket.work and one.number < ticket.number and one is not ticket
        ]
        if ticket.result is not None:
            assert not before, "who came first goes first"
            assert ticket.deadline > self.now
            self.running.append(ticket.result)
        else:
            assert ticket.deadline <= self.now
        self.waiting.remove(ticket)

    @rule(work=st.sampled_from(list(WorkClass)), within_s=st.integers(1, 20))
    def arrive(self, work: WorkClass, within_s: int) -> None:
        ticket: Ticket[Slot] = Ticket(
            work,
            ONE,
            lambda: self.start(work),
            since=self.now,
            deadline=self.now + within_s,
            on_settled=lambda: self.settle(ticket),
        )
        self.queue.push(ticket, self.now)
        self.waiting.append(ticket)
        self.queue.pump(self.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["end", "late", "refused"]))
    def end(self, data: st.DataObject, how: str) -> None:
        slot = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if how == "late":
            slot.first(60.0)
        elif how == "refused":
            slot.refused()
        slot.release()
        self.queue.pump(self.now)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.remove(ticket)

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.queue.pump(self.now)

    @invariant()
    def all_is_exact(self) -> None:
        counts = Counter(one.work for one in self.waiting)
        assert {work: counts[work] for work in WorkClass} == self.queue.lengths
        assert len(self.queue) == len(self.waiting)
        assert self.slots.in_flight == len(self.running) <= self.slots.bound
        assert self.slots.background <= self.slots.background_bound == 4

    @invariant()
    def no_place_is_left_while_somebody_waits_for_it(self) -> None:
        assert not any(self.slots.has_room(one.work) for one in self.waiting)

    @override
    def teardown(self) -> None:
        while self.running or self.waiting:
            if self.running:
                self.running.pop().release()
            self.queue.pump(self.now)
        assert (self.slots.in_flight, len(self.queue)) == (0, 0)


Overload.TestCase.settings = settings(stateful_step_count=60, deadline=None)
TestOverload = pytest.mark.slow(Overload.TestCase)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(list(WorkClass)), st.booleans()), max_size=40))
def test_all_that_wait_go_once_where_there_is_room(asked: list[tuple[WorkClass, bool]]) -> None:
    queue, place = AdmissionQueue[int](POLICY), Place()
    tickets = [
        pushed(queue, place, name, work, OTHER if is_new else ONE)
        for name, (work, is_new) in enumerate(asked)
    ]
    while queue:
        place.room = 1
        queue.pump(1.0)
    assert sorted(place.went) == list(range(len(asked)))
    assert [ticket.result for ticket in tickets] == list(range(len(asked)))
    order: Any = [asked[name][0] for name in place.went]
    assert order == sorted(order)
