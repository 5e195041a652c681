"""One timer for all: what it does for one, for many, and when something goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from gateway.ticking import AT_ONCE, Ticker, Waiting, ticker_of
from tests.fakes.clockwork import Clockwork

if TYPE_CHECKING:
    from collections.abc import Callable


class Sleeper(Waiting):
    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then

    @override
    def wake(self) -> None:
        self._then()


def test_those_who_wait_as_long_share_a_timer() -> None:
    clock, woken = Clockwork(), list[float]()
    ticker = Ticker(clock.loop)
    for at in (15.0, 14.5, 14.25):
        ticker.put_in(Sleeper(lambda: woken.append(clock.now)), at)
    clock.pass_until(100)
    assert woken == [15, 15, 15]
    assert clock.started == clock.ran == 1


def test_the_earliest_is_not_kept_waiting_by_who_came_first() -> None:
    clock, woken = Clockwork(), list[float]()
    ticker = Ticker(clock.loop)
    for at in (300, 2):
        ticker.put_in(Sleeper(lambda: woken.append(clock.now)), at)
    clock.pass_until(1000)
    assert woken == [2, 300]


def test_the_loop_has_its_turn_between_the_wakes_of_many() -> None:
    clock, woken = Clockwork(), list[float]()
    ticker = Ticker(clock.loop)
    for _ in range(2 * AT_ONCE + 1):
        ticker.put_in(Sleeper(lambda: woken.append(clock.now)), 15)
    clock.pass_until(100)
    assert woken == [15] * (2 * AT_ONCE + 1)
    assert clock.ran == 3


def test_one_who_wakes_may_take_another_of_the_same_turn_and_be_put_again() -> None:
    clock, woken = Clockwork(), list[float]()
    ticker = Ticker(clock.loop)

    def wake(one: Sleeper, other: Sleeper) -> None:
        woken.append(clock.now)
        ticker.take(other)
        if len(woken) == 1:
            ticker.put_in(one, 15)

    first: Sleeper = Sleeper(lambda: wake(first, second))
    second: Sleeper = Sleeper(lambda: wake(second, first))
    for sleeper in (first, second):
        ticker.put_in(sleeper, 15)
    clock.pass_until(100)
    assert woken == [15, 30]


def test_one_who_fails_does_not_keep_the_others_asleep() -> None:
    clock, woken = Clockwork(), list[float]()
    ticker = Ticker(clock.loop)

    def fail() -> None:
        woken.append(clock.now)
        raise LookupError

    for _ in range(2):
        ticker.put_in(Sleeper(fail), 15)
    for _ in range(2):
        with pytest.raises(LookupError):
            clock.pass_until(15)
    assert woken == [15, 15]


async def test_a_loop_has_one_and_forgets_those_of_loops_that_are_closed() -> None:
    here = asyncio.get_running_loop()
    gone = Clockwork().loop
    before = ticker_of(gone)
    assert ticker_of(here) is ticker_of(here)
    assert ticker_of(Clockwork().loop) is not before
    assert ticker_of(gone) is not before
    assert ticker_of(here) is ticker_of(here)
