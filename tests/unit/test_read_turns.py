"""Reads are looked at in turns, tenant by tenant, and none is left behind."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fair_queue import BURST_S, PAUSE_S, ReadTurns
from tests.fakes.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = (UUID(int=n) for n in range(3))


class Reads:
    """Reads that take `each_s`, and which of them were looked at, in their order."""

    def __init__(self, each_s: float) -> None:
        self.clock = Clock(0.0)
        self.turns = ReadTurns(self.clock)
        self.looked: list[tuple[UUID, int]] = []
        self._each_s = each_s

    def come(self, tenant: UUID, number: int = 0) -> bool:
        """Whether it was looked at when it came."""
        look = partial(self._look, tenant, number)
        if self.turns.begin(tenant):
            look()
            self.turns.end()
            return True
        self.turns.wait(tenant, look)
        return False

    def _look(self, tenant: UUID, number: int) -> None:
        self.clock.now += self._each_s
        self.looked.append((tenant, number))


async def test_one_by_one_none_waits() -> None:
    reads = Reads(each_s=BURST_S)
    for _ in range(20):
        assert reads.come(A)
        reads.clock.now += 2 * PAUSE_S


async def test_a_steady_load_is_no_burst_however_short_its_pauses_are() -> None:
    reads = Reads(each_s=PAUSE_S / 20)
    for _ in range(1000):
        assert reads.come(A)
        reads.clock.now += PAUSE_S / 5


async def test_pauses_shorter_than_the_reads_do_not_end_a_burst() -> None:
    reads = Reads(each_s=BURST_S / 10)
    came = []
    for _ in range(20):
        came.append(reads.come(A))
        reads.clock.now += BURST_S / 100
    assert came == [True] * 12 + [False] * 8


async def test_of_a_burst_the_rest_waits_and_another_tenant_does_not() -> None:
    reads = Reads(each_s=0.26 * BURST_S)
    assert [reads.come(A) for _ in range(10)] == [True] * 4 + [False] * 6
    assert [reads.come(B) for _ in range(3)] == [True, False, False]
    del reads.looked[:]
    await asyncio.sleep(0)
    assert [tenant for tenant, _ in reads.looked] == [A, B, A, B]
    assert not reads.come(B), "it had its turns in this round"
    await asyncio.sleep(0)
    assert [tenant for tenant, _ in reads.looked[4:]] == [A, B, A, A]


async def test_long_reads_are_one_burst_although_each_takes_longer_than_a_pause() -> None:
    reads = Reads(each_s=10 * PAUSE_S)
    assert [reads.come(A) for _ in range(3)] == [True, False, False]
    for count in (2, 3):
        await asyncio.sleep(0)
        assert len(reads.looked) == count


async def test_one_that_fails_stops_no_other() -> None:
    def fail() -> None:
        raise ValueError

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    reads = Reads(each_s=BURST_S)
    reads.come(A)
    reads.turns.wait(A, fail)
    reads.come(A, 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reads.looked == [(A, 0), (A, 1)]
    assert len(told) == 1


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.booleans()), max_size=60))
def test_each_is_looked_at_once_and_in_the_order_of_its_tenant(
    coming: Sequence[tuple[UUID, bool]],
) -> None:
    reads = Reads(each_s=BURST_S / 3)

    async def main() -> None:
        for number, (tenant, is_next_round) in enumerate(coming):
            reads.come(tenant, number)
            if is_next_round:
                await asyncio.sleep(0)
        for _ in coming:
            await asyncio.sleep(0)

    asyncio.run(main())
    for tenant in (A, B, C):
        own = [number for one, number in reads.looked if one == tenant]
        assert own == [number for number, (one, _) in enumerate(coming) if one == tenant]
