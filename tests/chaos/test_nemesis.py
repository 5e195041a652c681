"""Blows fall as the seed says, and nobody stays down."""

from __future__ import annotations

import threading
from random import Random
from typing import Final

from tests.chaos.nemesis import Terms, schedule, unleashed

TERMS: Final = Terms(blows_per_member=5, peace_s=(0.0, 0.002), down_s=(0.0, 0.002))
MEMBERS: Final = 3


class Puppet:
    """Counts itself as up or down among the others."""

    lock = threading.Lock()

    def __init__(self, down: set[Puppet]) -> None:
        self._down = down
        self.most_down = 0

    def kill(self) -> None:
        with self.lock:
            self._down.add(self)
            self.most_down = len(self._down)

    def start(self) -> None:
        with self.lock:
            self._down.remove(self)

    freeze = kill
    thaw = start


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    first, again, other = (schedule(Random(seed), TERMS, MEMBERS) for seed in (1, 1, 2))
    assert first == again != other


async def test_all_are_up_again_in_the_end_and_one_is_always_left_alone() -> None:
    down: set[Puppet] = set()
    puppets = [Puppet(down) for _ in range(MEMBERS)]
    lanes = schedule(Random(7), TERMS, MEMBERS)
    async with unleashed(lanes, puppets) as dealt:
        pass
    assert not down
    assert max(puppet.most_down for puppet in puppets) < MEMBERS
    assert dealt.kill + dealt.freeze <= MEMBERS * TERMS.blows_per_member
