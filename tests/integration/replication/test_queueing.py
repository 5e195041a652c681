"""Background responses that begin where they are accepted, and those that have to wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.entries import Finished
from gateway.errors import RateLimited
from gateway.generation import TokenUsage
from gateway.replication.durable_runs import cost_of
from gateway.replication.takeover_scheduler import READ_AT_ONCE_MAX
from gateway.store.claim_order import EXPECTED_AT_FIRST, EndedResponse
from gateway.store.locks import Lock
from gateway.store.notices import Notice
from gateway.store.postgres.database import Database
from tests.fakes.replica import Habits, Speaker, background, foreground, load, replica
from tests.fakes.rows import all_rows
from tests.fakes.staged_run import run_spec

if TYPE_CHECKING:
    from gateway.engine.run_spec import RunSpec
    from gateway.tenancy import TenantId

ANSWER = "<|channel|>final<|message|>Hello<|return|>"
FINISHED = Finished("completed", 1_795_000_009)


def bounded(spec: RunSpec, *, running_max: int, queued_max: int) -> RunSpec:
    policy = replace(
        spec.principal.policy, background_running_max=running_max, background_queued_max=queued_max
    )
    return replace(spec, principal=replace(spec.principal, policy=policy))


async def test_what_there_is_room_for_begins_at_once_and_is_announced_to_nobody(
    database: Database, tenant: TenantId
) -> None:
    specs = [background(tenant) for _ in range(5)]
    async with replica(database, Speaker(ANSWER)) as one:
        await asyncio.gather(*(one.runs.queue(spec) for spec in specs))
        assert Notice("work") not in one.announced
        assert one.supervisor.claimed == 5
        await one.idle()
    for spec in specs:
        stored = await load(database, spec)
        assert (stored.status, stored.epoch, stored.next_entry > 2) == ("completed", 1, True)


async def test_who_looks_in_vain_does_not_wait_for_a_turn(
    database: Database, tenant: TenantId
) -> None:
    async with (
        replica(database, Speaker(ANSWER)) as one,
        database.transaction(tenant, lock_key=Lock.CLAIMS),
    ):
        assert not await one.scheduler.claim_available()


@pytest.mark.slow
async def test_what_there_is_no_room_for_waits_and_follows(
    database: Database, tenant: TenantId
) -> None:
    specs = [background(tenant) for _ in range(4)]
    async with (
        replica(database, Speaker(ANSWER), Habits(running_max=2)) as one,
        asyncio.TaskGroup() as group,
    ):
        await asyncio.gather(*(one.runs.queue(spec) for spec in specs))
        assert one.announced.count(Notice("work")) >= 2
        looking = group.create_task(one.scheduler.run())
        for spec in specs:
            while (await load(database, spec)).status != "completed":
                await one.idle()
        looking.cancel()


async def test_what_was_claimed_takes_room_before_it_begins(
    database: Database, tenant: TenantId
) -> None:
    claimed, accepted = background(tenant), background(tenant)
    async with replica(database, Speaker(ANSWER, silent=True), Habits(running_max=1)) as one:
        await one.archive.accept(claimed, None, owned=False)
        async with AsyncExitStack() as reading:
            for _ in range(READ_AT_ONCE_MAX):
                await reading.enter_async_context(one.scheduler._reading)
            claiming = asyncio.ensure_future(one.scheduler.claim_available())
            while (await load(database, claimed)).status != "in_progress":
                assert not claiming.done()
            await one.runs.queue(accepted)
        await claiming
        assert one.supervisor.claimed == 1
        assert (await load(database, accepted)).status == "queued"


@pytest.mark.slow
async def test_a_tenant_that_may_run_no_more_waits_and_its_queue_is_bounded(
    database: Database, tenant: TenantId
) -> None:
    tokens = Speaker(ANSWER, silent=True)
    specs = [bounded(background(tenant), running_max=1, queued_max=1) for _ in range(3)]
    async with replica(database, tokens) as one:
        await one.runs.queue(specs[0])
        await tokens.fell_silent()
        await one.runs.queue(specs[1])
        with pytest.raises(RateLimited):
            await one.runs.queue(specs[2])
        found = [(await load(database, spec)).status for spec in specs[:2]]
        assert found == ["in_progress", "queued"]


@pytest.mark.slow
async def test_what_was_generated_counts_for_the_share_of_its_tenant_once_it_was_told(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    """Begun where it was accepted, or claimed: it counts what it cost."""
    begun, claimed, last = background(tenant), background(tenant), background(other_tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await one.runs.queue(begun)
        await one.idle()
        (ended,) = one.runs.ended
        assert ended == (tenant, cost_of(begun, TokenUsage(len(begun.prompt_ids), 0, 5)), 0.0)
        for spec in (claimed, last):
            await one.archive.accept(spec, None, owned=False)
            await one.scheduler.claim_available()
            await one.idle()
    async with database.runs_transaction() as connection:
        found = {row.tenant_id: row for row in await all_rows(connection, "background_shares")}
    assert found[tenant].served == pytest.approx(2 * ended.cost)
    assert ended.cost < found[tenant].expected < EXPECTED_AT_FIRST
    assert found[other_tenant].served == ended.cost + EXPECTED_AT_FIRST


async def test_what_was_not_told_is_told_with_the_next_claim(
    database: Database, tenant: TenantId
) -> None:
    ended = EndedResponse(tenant, 10.0, 0.0)
    async with replica(database, Speaker(ANSWER)) as one:
        one.runs.ended.append(ended)
        await one.archive.accept(background(tenant), None, owned=False)
        one.scheduler._database = Database(
            "postgresql://nobody@127.0.0.1:1/none", pool_size_max=1, command_timeout_s=1,
            connect_timeout_s=1,
        )  # fmt: skip
        assert not await one.scheduler.claim_available()
        assert list(one.runs.ended) == [ended]


async def test_stored_responses_that_come_together_are_each_recorded_and_ended(
    database: Database, tenant: TenantId
) -> None:
    specs = [foreground(tenant) for _ in range(6)]
    async with replica(database, Speaker(ANSWER)) as one:
        claims = await asyncio.gather(*(one.archive.begin(spec) for spec in specs))
        assert [claim.uuid for claim in claims] == [spec.head.uuid for spec in specs]
        assert [(await load(database, spec)).is_held for spec in specs] == [True] * 6


async def test_one_that_is_there_already_is_refused_and_its_neighbours_are_not(
    database: Database, tenant: TenantId
) -> None:
    specs = [foreground(tenant) for _ in range(4)]
    async with replica(database, Speaker(ANSWER)) as one:
        await one.archive.begin(specs[1])
        begun = await asyncio.gather(
            *(one.archive.begin(spec) for spec in specs), return_exceptions=True
        )
        assert [type(one_).__name__ for one_ in begun] == [
            "Claim",
            "StoreConflict",
            "Claim",
            "Claim",
        ]


async def test_what_was_booked_is_written_before_the_process_ends(
    database: Database, tenant: TenantId
) -> None:
    async with replica(database, Speaker(ANSWER)) as one:
        for _ in range(7):
            spec = run_spec(tenant=tenant)
            spec = replace(spec, head=background(tenant).head, store=False)
            fold = one.archive._new_fold_for(spec.head)()
            one.archive.meter(spec, FINISHED, fold)
    async with database.transaction(tenant) as connection:
        assert len(await all_rows(connection, "usage")) == 7
