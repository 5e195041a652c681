"""Who has to go when there are more connections than there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.admission import LOG_INTERVAL_S, Admission, Room
from tests.fakes.logs import captured_logs

if TYPE_CHECKING:
    from collections.abc import Callable

PEER = "192.0.2.1"


class One:
    """A connection that notes whether it was closed."""

    is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def admission(room: Room) -> Admission:
    return Admission(room, lambda: 0.0, lambda action: action())


def has_room(gate: Admission, one: One, *, is_probe: bool = False, requests: int = 0) -> bool:
    return gate.has_room_for(one, is_probe=is_probe, requests=requests)


def test_none_has_to_go_before_what_came_with_it_is_read() -> None:
    read: list[Callable[[], None]] = []
    gate = Admission(Room(connections_max=2, reserved=1), lambda: 0.0, read.append)
    asking, *others = [One() for _ in range(9)]
    for one in (asking, *others):
        gate.enter(one, PEER)
    assert not any(one.is_closed for one in others)
    gate.head_received(asking)
    (make_room,) = read
    make_room()
    assert not asking.is_closed
    assert [one.is_closed for one in others] == [True] * 7 + [False]


def test_one_that_is_being_answered_stays_until_it_is() -> None:
    gate = admission(Room(connections_max=2, reserved=2))
    asking, other = One(), One()
    for one in (asking, other):
        gate.enter(one, PEER)
        assert has_room(gate, one, is_probe=True)
        gate.request_received(one)
    assert not has_room(gate, One(), is_probe=True)
    more = [One() for _ in range(9)]
    for one in more:
        gate.enter(one, PEER)
    assert all(one.is_closed for one in more)
    assert has_room(gate, asking)
    gate.answered(asking, is_idle=False)
    gate.trust(other)
    assert has_room(gate, One(), is_probe=True)
    for _ in range(2):
        gate.enter(One(), PEER)
    assert (asking.is_closed, other.is_closed) == (True, False)


def test_the_one_that_was_silent_for_longest_makes_room() -> None:
    gate = admission(Room(connections_max=2, reserved=1))
    silent, speaking, newest, last = One(), One(), One(), One()
    gate.enter(speaking, PEER)
    gate.enter(silent, PEER)
    gate.head_received(speaking)
    gate.enter(newest, PEER)
    assert (silent.is_closed, speaking.is_closed) == (True, False)
    gate.enter(last, PEER)
    assert (speaking.is_closed, newest.is_closed) == (True, False)


def test_one_with_a_key_never_has_to_go() -> None:
    gate = admission(Room(connections_max=2, reserved=1))
    known = One()
    gate.enter(known, PEER)
    assert not has_room(gate, known, requests=2)
    gate.trust(known)
    gate.trust(known)
    assert has_room(gate, known, requests=2)
    for _ in range(9):
        gate.enter(One(), PEER)
    assert not known.is_closed


def test_where_all_have_keys_there_is_room_for_probes_alone() -> None:
    gate = admission(Room(connections_max=2, reserved=1))
    known = [One(), One()]
    for one in known:
        gate.enter(one, PEER)
        gate.trust(one)
    probe = One()
    gate.enter(probe, PEER)
    assert not probe.is_closed
    assert not has_room(gate, probe)
    assert has_room(gate, probe, is_probe=True)
    assert all(has_room(gate, one) for one in known)
    gate.leave(known[0], PEER)
    assert has_room(gate, probe)


def test_idle_ones_with_a_key_make_room_for_others_with_a_key() -> None:
    gate = admission(Room(connections_max=2, reserved=2))
    busy, idle, probe, other = One(), One(), One(), One()
    for one in (busy, idle):
        gate.enter(one, PEER)
        gate.trust(one)
        gate.answered(one, is_idle=True)
    gate.head_received(busy)
    for one in (probe, other):
        gate.enter(one, PEER)
        assert has_room(gate, one)
    gate.answered(probe, is_idle=True)
    assert not idle.is_closed
    gate.trust(other)
    assert (busy.is_closed, idle.is_closed, probe.is_closed) == (False, True, False)
    gate.leave(idle, PEER)
    assert not has_room(gate, probe)
    gate.answered(other, is_idle=True)
    gate.leave(other, PEER)
    assert has_room(gate, probe)
    gate.trust(probe)
    assert not probe.is_closed


def test_an_address_may_have_so_many() -> None:
    gate = admission(Room(connections_max=9, reserved=1, per_peer_max=1))
    first = One()
    assert gate.enter(first, PEER)
    assert not gate.enter(One(), PEER)
    assert gate.enter(One(), "192.0.2.2")
    assert gate.enter(One(), None)
    gate.leave(first, PEER)
    gate.leave(One(), PEER)
    assert gate.enter(One(), PEER)


def test_it_is_logged_now_and_then_how_many_had_to_go() -> None:
    now = [0.0]
    room = Room(connections_max=1, reserved=1)
    gate = Admission(room, lambda: now[0], lambda action: action())
    with captured_logs() as events:
        for _ in range(5):
            gate.enter(One(), PEER)
        now[0] = LOG_INTERVAL_S
        gate.enter(One(), PEER)
    assert [event["count"] for event in events] == [1, 4]


KINDS = ["enter", "trust", "head", "request", "idle", "unread", "leave"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30)))


@pytest.mark.slow
@given(STEPS, st.integers(1, 5), st.integers(1, 3))
def test_there_are_never_more_than_there_is_room_for(
    steps: list[tuple[str, int]], connections_max: int, reserved: int
) -> None:
    gate = admission(Room(connections_max, reserved))
    ever: list[One] = []
    gone: set[One] = set()
    for step, number in steps:
        one = ever[number % len(ever)] if ever else None
        if step == "enter" or one is None:
            ever.append(One())
            gate.enter(ever[-1], PEER)
        elif step == "leave" and one not in gone:
            gone.add(one)
            gate.leave(one, PEER)
        elif step == "trust" and one not in gone and has_room(gate, one):
            gate.trust(one)
        elif step == "head" and one not in gone:
            gate.head_received(one)
        elif step in {"idle", "unread"} and one not in gone:
            gate.answered(one, is_idle=step == "idle")
        elif step == "request" and one not in gone and has_room(gate, one, is_probe=True):
            gate.request_received(one)
        here = [one for one in ever if one not in gone and not one.is_closed]
        assert len(here) <= connections_max + reserved
