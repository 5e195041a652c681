"""Work is begun in turns, tenant by tenant, and none is left behind."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fair_queue import COST_S, ROUND_S, SHARE, FairQueue, FairSlots, FairWaiters, Turns
from tests.fakes.clock import Clock

A, B, C = (UUID(int=n) for n in range(3))


async def test_alone_nobody_waits() -> None:
    turns = Turns(Clock(0.0))
    assert [turns.begin(A) for _ in range(100)] == [None] * 100


async def test_in_a_long_round_others_begin_and_the_same_tenant_waits() -> None:
    clock = Clock(0.0)
    turns = Turns(clock)
    assert turns.begin(A) is None
    clock.now += ROUND_S
    first, second = turns.begin(A), turns.begin(A)
    assert turns.begin(B) is None
    third = turns.begin(B)
    assert first is not None
    assert second is not None
    assert third is not None
    await asyncio.sleep(0)
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    assert turns.begin(A) is not None, "it would go before others of its tenant"
    await asyncio.sleep(0)
    assert (second.done(), third.done()) == (False, True)
    await asyncio.sleep(0)
    assert second.done()


async def test_the_longer_a_round_is_the_more_begin_in_it() -> None:
    clock = Clock(0.0)
    turns = Turns(clock)
    assert turns.begin(A) is None
    clock.now += 1.0
    waiting = [(turns.begin(tenant), turns.begin(tenant)) for tenant in (A, B, C)]
    assert int(SHARE / COST_S) > 3
    await asyncio.sleep(0)
    assert [one is None or one.done() for pair in waiting for one in pair][:2] == [True, False]
    assert all(later is not None and later.done() for _, later in waiting[1:])


async def test_who_leaves_gives_up_its_turn() -> None:
    clock = Clock(0.0)
    turns = Turns(clock)
    assert turns.begin(A) is None
    clock.now += ROUND_S
    first, second = turns.begin(A), turns.begin(A)
    assert first is not None
    assert second is not None
    first.cancel()
    await asyncio.sleep(0)
    assert second.done()


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.sampled_from([A, B, C]), max_size=60), st.floats(0, 0.01))
def test_each_begins_once_and_in_the_order_of_its_tenant(
    tenants: list[UUID], step_s: float
) -> None:
    begun: list[tuple[UUID, int]] = []

    async def ask(turns: Turns, clock: Clock, number: int, tenant: UUID) -> None:
        if (turn := turns.begin(tenant)) is not None:
            await turn
        clock.now += step_s
        begun.append((tenant, number))

    async def main() -> None:
        clock = Clock(0.0)
        turns = Turns(clock)
        asked = enumerate(tenants)
        await asyncio.gather(*(ask(turns, clock, number, tenant) for number, tenant in asked))

    asyncio.run(main())
    for tenant in (A, B, C):
        own = [number for one, number in begun if one == tenant]
        assert own == [number for number, one in enumerate(tenants) if one == tenant]


@pytest.mark.slow
@given(st.lists(st.sampled_from([A, B, C]) | st.none(), max_size=60))
def test_tenants_take_turns_and_each_item_is_taken_once_in_its_order(
    steps: list[UUID | None],
) -> None:
    """A step puts an item of a tenant, or takes one (None)."""
    queue: FairQueue[int] = FairQueue()
    waiting: list[tuple[UUID, int]] = []
    passed_over: dict[UUID, set[object]] = {}
    for number, tenant in enumerate(steps):
        if tenant is not None:
            queue.put(tenant, number)
            waiting.append((tenant, number))
            passed_over.setdefault(tenant, set())
        elif waiting:
            taken, item = queue.take()
            assert (taken, item) == next(one for one in waiting if one[0] == taken)
            waiting.remove((taken, item))  # type: ignore[arg-type]
            for other in {one for one, _ in waiting} - {taken}:
                assert taken not in passed_over[other], "twice while another waits"
                passed_over[other].add(taken)
            passed_over[taken] = set()  # type: ignore[index]
        assert {one for one in (A, B, C) if one in queue} == {one for one, _ in waiting}
    assert len(queue) == len({tenant for tenant, _ in waiting})


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.booleans()), max_size=30))
def test_who_has_left_takes_nobody_s_turn(waits: list[tuple[UUID, bool]]) -> None:
    async def main() -> None:
        waiters = FairWaiters()
        turns = [(waiters.add(tenant), leaves) for tenant, leaves in waits]
        for turn, leaves in turns:
            if leaves:
                turn.cancel()
        staying = [turn for turn, leaves in turns if not leaves]
        for count in range(1, len(staying) + 1):
            assert waiters.release() is not None
            assert sum(turn.done() for turn in staying) == count
        assert waiters.release() is None
        assert not waiters

    asyncio.run(main())


async def test_tenants_take_turns_in_slots() -> None:
    slots, begun = FairSlots(1), list[str]()

    async def hold(tenant: UUID, name: str) -> None:
        async with slots.taken(tenant):
            begun.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(hold(*one) for one in ((A, "a1"), (A, "a2"), (A, "a3"), (B, "b"))))
    assert begun == ["a1", "a2", "b", "a3"]
    assert slots._free == 1


async def test_who_is_called_off_when_it_is_its_turn_passes_the_turn_on() -> None:
    slots = FairSlots(1)
    await slots._take(A)
    waiting = [asyncio.create_task(slots._take(tenant)) for tenant in (B, C)]
    await asyncio.sleep(0)
    slots._leave()
    waiting[0].cancel()
    await waiting[1]
    assert waiting[0].cancelled()
    slots._leave()
    assert slots._free == 1
