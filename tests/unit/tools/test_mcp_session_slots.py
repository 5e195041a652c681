"""Places of sessions are shared out fairly, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy import TenantId
from gateway.tools.mcp.session_pool import NoSlot, SessionSlots

ONE, TWO, THREE = (TenantId(UUID(int=number)) for number in range(1, 4))


def nothing_idle(_tenant: TenantId | None) -> bool:
    return False


async def test_the_tenant_with_the_fewest_is_served_first() -> None:
    places = SessionSlots(3, 3, nothing_idle)
    for _ in range(2):
        await places.take(ONE, wait_s=0)
    await places.take(TWO, wait_s=0)
    order: list[TenantId] = []

    async def take(tenant: TenantId) -> None:
        await places.take(tenant, wait_s=20)
        order.append(tenant)

    waiting = [asyncio.create_task(take(one)) for one in (ONE, ONE, TWO, THREE)]
    await asyncio.sleep(0)
    for leaver in (ONE, ONE, TWO, THREE):
        places.leave(leaver)
        places.offer()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.wait(waiting)
    assert order[0] == THREE
    assert sorted(order) == sorted((ONE, ONE, TWO, THREE))


async def test_who_waits_too_long_is_told_and_holds_nothing() -> None:
    places = SessionSlots(1, 1, nothing_idle)
    await places.take(ONE, wait_s=0)
    with pytest.raises(NoSlot):
        await places.take(TWO, wait_s=0.001)
    assert places.held(TWO) == 0
    waiting = asyncio.create_task(places.take(TWO, wait_s=20))
    await asyncio.sleep(0)
    places.leave(ONE)
    places.offer()
    # Given and cancelled at the same moment: the place is the next one's.
    waiting.cancel()
    await asyncio.wait((waiting,))
    await places.take(THREE, wait_s=0)
    assert (places.held(TWO), places.held(THREE)) == (0, 1)


@pytest.mark.slow
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from([ONE, TWO, THREE]), st.booleans()), max_size=30),
)
def test_there_are_never_more_than_there_may_be(
    sessions_max: int, tenant_sessions_max: int, steps: list[tuple[TenantId, bool]]
) -> None:
    async def play() -> None:
        held: Counter[TenantId] = Counter()
        places = SessionSlots(sessions_max, tenant_sessions_max, nothing_idle)
        for tenant, takes in steps:
            if takes:
                try:
                    await places.take(tenant, wait_s=0)
                except NoSlot:
                    full = held.total() == sessions_max
                    assert full or held[tenant] == tenant_sessions_max
                else:
                    held[tenant] += 1
            elif held[tenant]:
                held[tenant] -= 1
                places.leave(tenant)
                places.offer()
            assert places.held(tenant) == held[tenant] <= tenant_sessions_max
            assert held.total() <= sessions_max

    asyncio.run(play())
