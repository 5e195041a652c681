"""Reads are parsed in turns, tenant by tenant, and none is left behind."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fair_queue import BURST_BYTES, READ_BYTES, ReadTurns

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = (UUID(int=n) for n in range(3))


class Reads:
    """Reads of `share` of a burst each, and which of them were parsed, in their order."""

    def __init__(self, share: float) -> None:
        self.turns = ReadTurns()
        self.parsed: list[tuple[UUID, int]] = []
        self._size = int(share * BURST_BYTES) - READ_BYTES

    def come(self, tenant: UUID, number: int = 0) -> bool:
        """Return True if the read was parsed when it came."""
        parse = partial(self.parsed.append, (tenant, number))
        if self.turns.begin(tenant, self._size):
            parse()
            return True
        self.turns.wait(tenant, self._size, parse)
        return False


async def test_one_by_one_none_waits() -> None:
    reads = Reads(1.0)
    for _ in range(20):
        assert reads.come(A)
        await asyncio.sleep(0)


async def test_a_steady_load_is_no_burst_however_slow_the_machine_is() -> None:
    reads = Reads(0.2)
    for _ in range(300):
        assert all(reads.come(A) for _ in range(4))
        await asyncio.sleep(0)


async def test_the_step_of_a_hundred_streams_is_no_burst() -> None:
    turns = ReadTurns()
    assert all(turns.begin(A, 400) for _ in range(100))


async def test_of_a_burst_the_rest_waits_and_another_tenant_does_not() -> None:
    reads = Reads(0.26)
    assert [reads.come(A) for _ in range(10)] == [True] * 4 + [False] * 6
    assert [reads.come(B) for _ in range(3)] == [True, False, False]
    del reads.parsed[:]
    await asyncio.sleep(0)
    assert [tenant for tenant, _ in reads.parsed] == [A, B, A, B]
    assert not reads.come(B), "it had its turns in this round"
    await asyncio.sleep(0)
    assert [tenant for tenant, _ in reads.parsed[4:]] == [A, B, A, A]


async def test_small_reads_are_a_burst_too() -> None:
    turns = ReadTurns()
    assert sum(turns.begin(A, 1) for _ in range(2000)) <= BURST_BYTES // READ_BYTES


async def test_long_reads_are_parsed_one_in_a_round() -> None:
    reads = Reads(10.0)
    assert [reads.come(A) for _ in range(3)] == [True, False, False]
    for count in (2, 3):
        await asyncio.sleep(0)
        assert len(reads.parsed) == count


async def test_one_that_fails_stops_no_other() -> None:
    def fail() -> None:
        raise ValueError

    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    reads = Reads(1.0)
    reads.come(A)
    reads.turns.wait(A, 1, fail)
    reads.come(A, 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    loop.set_exception_handler(None)  # all tests share the loop
    assert reads.parsed == [(A, 0), (A, 1)]
    assert len(told) == 1


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.booleans()), max_size=60))
def test_each_is_parsed_once_and_in_the_order_of_its_tenant(
    coming: Sequence[tuple[UUID, bool]],
) -> None:
    reads = Reads(0.34)

    async def main() -> None:
        for number, (tenant, is_next_round) in enumerate(coming):
            reads.come(tenant, number)
            if is_next_round:
                await asyncio.sleep(0)
        for _ in coming:
            await asyncio.sleep(0)

    asyncio.run(main())
    for tenant in (A, B, C):
        own = [number for one, number in reads.parsed if one == tenant]
        assert own == [number for number, (one, _) in enumerate(coming) if one == tenant]
