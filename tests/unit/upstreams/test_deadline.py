from __future__ import annotations

from gateway.upstreams.http.connection import Deadline
from tests.fakes.virtual_time import Clockwork


def deadline() -> tuple[Clockwork, Deadline, list[float]]:
    clock = Clockwork()
    expired: list[float] = []
    return clock, Deadline(clock.loop, lambda: expired.append(clock.now)), expired


def test_it_expires_once_at_its_time() -> None:
    loop, limit, expired = deadline()
    limit.set(5)
    loop.pass_until(100)
    assert expired == [5]


def test_moving_it_later_starts_no_timer() -> None:
    loop, limit, expired = deadline()
    limit.set(10)
    for second in range(1, 10):
        loop.pass_until(second)
        limit.set(10)
    assert loop.started == 1
    loop.pass_until(100)
    assert expired == [19]


def test_it_may_be_moved_earlier() -> None:
    loop, limit, expired = deadline()
    limit.set(300)
    limit.set(2)
    loop.pass_until(1000)
    assert expired == [2]


def test_a_cleared_deadline_does_not_expire_and_may_be_set_again() -> None:
    loop, limit, expired = deadline()
    limit.set(5)
    limit.clear()
    loop.pass_until(6)
    assert expired == []
    limit.set(5)
    loop.pass_until(20)
    assert expired == [11]


def test_a_cancelled_deadline_leaves_no_timer() -> None:
    loop, limit, expired = deadline()
    limit.set(5)
    limit.cancel()
    loop.pass_until(20)
    assert expired == []
