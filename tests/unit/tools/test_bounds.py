"""How many calls run at once, and what is done about servers that fail."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.tools.tool_executor import BREAKERS_MAX, Breaker, Slots, ToolLimits, TooManyCalls


async def take(slots: Slots, tenant: str, server: str, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(slots.taken(tenant, server))


@pytest.mark.parametrize(
    ("bounds", "others"),
    [
        (ToolLimits(running_max=2, slot_wait_s=0.0), ("c", "z")),
        (ToolLimits(tenant_running_max=2, slot_wait_s=0.0), ("a", "z")),
        (ToolLimits(server_running_max=2, slot_wait_s=0.0), ("a", "x")),
    ],
)
async def test_no_more_run_than_may(bounds: ToolLimits, others: tuple[str, str]) -> None:
    slots = Slots(bounds)
    async with AsyncExitStack() as stack:
        await take(slots, "a", "x", stack)
        await take(slots, "a", "x", stack)
        with pytest.raises(TooManyCalls):
            await take(slots, *others, stack)
    async with AsyncExitStack() as stack:
        await take(slots, *others, stack)
    assert not slots._taken
    assert not slots._waiting


async def test_a_tenant_that_waits_keeps_no_other_from_its_place() -> None:
    slots, first = Slots(ToolLimits(tenant_running_max=1, slot_wait_s=60.0)), AsyncExitStack()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        await take(slots, "a", "x", first)
        waiting = group.create_task(take(slots, "a", "x", stack))
        await asyncio.sleep(0)
        assert slots._waiting
        await take(slots, "b", "x", stack)
        assert not waiting.done()
        await first.aclose()
        await waiting
    assert not slots._taken


async def test_who_leaves_the_queue_takes_no_place() -> None:
    slots = Slots(ToolLimits(running_max=1, slot_wait_s=60.0))
    async with AsyncExitStack() as stack:
        async with AsyncExitStack() as first, asyncio.TaskGroup() as group:
            await take(slots, "a", "x", first)
            leaving = group.create_task(take(slots, "b", "y", stack))
            await asyncio.sleep(0)
            assert slots._waiting
            # It is given the place in the same moment in which it is cancelled.
            await first.aclose()
            leaving.cancel()
        assert not slots._taken
        await take(slots, "c", "z", stack)


async def test_calls_at_a_server_that_hangs_leave_places_for_other_tools_and_tenants() -> None:
    bounds = ToolLimits(slot_wait_s=0.0)
    slots = Slots(bounds)
    async with AsyncExitStack() as stack:
        for _ in range(bounds.server_running_max):
            await take(slots, "a", "hangs", stack)
        with pytest.raises(TooManyCalls):
            await take(slots, "a", "hangs", stack)
        await take(slots, "a", "answers", stack)
        await take(slots, "b", "hangs", stack)
        await stack.enter_async_context(slots.taken("a", None))
    assert not slots._taken


async def test_what_is_at_no_server_has_no_bound_of_one() -> None:
    slots = Slots(ToolLimits(server_running_max=1, slot_wait_s=0.0))
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(slots.taken("a", None))
    assert not slots._taken


def test_a_server_that_fails_is_left_alone_for_a_while() -> None:
    now = 0.0
    breaker = Breaker(2, 30.0, lambda: now)
    for _ in range(2):
        assert not breaker.is_open("a")
        breaker.failed("a")
    assert breaker.is_open("a")
    assert not breaker.is_open("b")
    now = 30.0
    assert not breaker.is_open("a"), "one may try"
    assert breaker.is_open("a"), "and nobody else meanwhile"
    breaker.failed("a")
    now = 59.0
    assert breaker.is_open("a")
    now = 60.0
    assert not breaker.is_open("a")
    breaker.answered("a")
    breaker.failed("a")
    assert not breaker.is_open("a")


def test_only_so_many_servers_are_remembered() -> None:
    breaker = Breaker(1, 30.0, lambda: 0.0)
    for number in range(BREAKERS_MAX + 1):
        breaker.failed(number)
    assert not breaker.is_open(0)
    assert breaker.is_open(1)
