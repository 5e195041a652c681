"""Laws of the ticker: as good as a timer for each, but for a lateness that is bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from gateway.ticking import LATE_MAX_S, SHORTEST_S, Ticker, Waiting
from tests.fakes.clockwork import Clockwork

laws = settings(deadline=None)

# Many that wait are told what to do, now and then: wait for so long, no more, or sleep on.
SECONDS = st.floats(0, 1000) | st.sampled_from([0.001, 0.125, 1.0, 14.9, 15.0, 60.0])
STEPS = st.lists(st.tuples(st.integers(0, 60), st.none() | SECONDS, st.floats(0, 20)), max_size=80)


class Sleeper(Waiting):
    """Knows when it is to be woken, and complains when it is at another time."""

    def __init__(self, clock: Clockwork) -> None:
        super().__init__()
        self._clock = clock
        self._from = 0.0
        self.until: float | None = None

    def expect(self, seconds: float | None) -> None:
        self._from = self._clock.now
        self.until = None if seconds is None else self._clock.now + seconds

    @override
    def wake(self) -> None:
        assert self.until is not None
        wait_s = max(self.until - self._from, SHORTEST_S)
        assert self.until <= self._clock.now <= self.until + min(wait_s / 8, LATE_MAX_S)
        self.until = None


@laws
@given(st.floats(0, 1e7), STEPS)
def test_each_wakes_once_never_early_and_hardly_late(
    begin: float, steps: list[tuple[int, float | None, float]]
) -> None:
    clock = Clockwork()
    clock.pass_until(begin)
    ticker = Ticker(clock.loop)
    sleepers = [Sleeper(clock) for _ in range(61)]
    for number, seconds, passing in steps:
        sleeper = sleepers[number]
        ticker.take(sleeper)
        sleeper.expect(seconds)
        if seconds is not None:
            ticker.put_in(sleeper, seconds)
        clock.pass_until(clock.now + passing)
    clock.pass_until(clock.now + 1100)
    assert all(sleeper.until is None for sleeper in sleepers)

    ran = clock.ran
    clock.pass_until(clock.now + 1e6)
    assert clock.ran == ran, "nothing runs when nobody waits"
