from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.entries import FOLD_VERSIONS
from gateway.errors import StoreUnavailable
from gateway.store import claims, endings, locks, responses
from gateway.store.claims import Claim, ClaimedRun, LogHead
from gateway.store.locks import Lock
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from tests.fakes.stored import (
    CREATED,
    TERMS,
    durable_response,
    finished,
    last_row,
    let_time_pass,
    new_response,
)

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.responses import NewResponse
    from gateway.tenancy import TenantId

LATER = FOLD_VERSIONS[-1] + 1
"""Of another release."""


async def add(database: Database, tenant: TenantId, *new: NewResponse) -> list[UUID]:
    for one in new:
        await responses.insert(database, tenant, one)
    return [one.uuid for one in new]


async def queue(database: Database, tenant: TenantId, number: int) -> list[UUID]:
    return await add(database, tenant, *[durable_response() for _ in range(number)])


async def claim(
    database: Database, owner: str = "me", *, limit: int = 99, take_over: bool = True, **terms: Any
) -> list[ClaimedRun]:
    return await claims.claim(
        database, owner, replace(TERMS, **terms), limit=limit, take_over=take_over
    )


async def claimed(database: Database, owner: str = "me", **options: Any) -> list[UUID]:
    return [run.claim.uuid for run in await claim(database, owner, **options)]


async def change(database: Database, uuid: UUID, **columns: object) -> None:
    """What another release, or the past, has written."""
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    async with database.runs_transaction() as connection:
        tenant = await connection.scalar(
            Statement("SELECT tenant_id FROM responses WHERE id = :id"), {"id": uuid}
        )
    async with database.transaction(tenant) as connection:
        statement = Statement(f"UPDATE responses SET {changes} WHERE id = :id")
        await connection.execute(statement, {"id": uuid} | columns)


async def test_a_claimed_run_carries_all_that_is_needed_to_go_on(
    database: Database, tenant: TenantId
) -> None:
    parent = ids.new_uuid()
    prompt_ids = array("I", [200_006, 2**32 - 1])
    new = replace(durable_response(), parent=parent, prompt_ids=prompt_ids)
    await add(database, tenant, new)
    (run,) = await claim(database)
    assert run == ClaimedRun(
        claim=Claim(tenant, new.uuid, 1),
        next_entry=1,
        attempts=1,
        was_queued=True,
        key_id=new.key_id,
        project_id=new.project_id,
        tenant_name=f"tenant-{tenant}",
        model=new.model,
        created_at=CREATED,
        root_created_at=CREATED,
        parent=parent,
        background=True,
        streamed=True,
        request=new.request,
        plan=b'{"inputs":1}',
        prompt_ids=prompt_ids,
    )
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.epoch, stored.is_held) == ("in_progress", 1, True)
    assert await claim(database, "another") == []


async def test_the_oldest_are_claimed_first_and_no_more_than_asked_for(
    database: Database, tenant: TenantId
) -> None:
    waiting = await queue(database, tenant, 5)
    assert await claimed(database, limit=2) == sorted(waiting)[:2]
    assert await claimed(database, limit=9) == sorted(waiting)[2:]


async def test_what_has_no_durable_log_is_never_claimed(
    database: Database, tenant: TenantId
) -> None:
    await add(
        database,
        tenant,
        new_response(),
        new_response(status="queued"),
        replace(new_response(), owner="other", lease_s=0),
    )
    assert await claim(database) == []


async def test_a_lapsed_lease_is_taken_over_under_the_next_epoch(
    database: Database, tenant: TenantId
) -> None:
    (uuid,) = await add(database, tenant, durable_response(owner="other", lease_s=600))
    assert await claim(database) == []
    await let_time_pass(database, tenant, seconds=601)
    assert await claim(database, take_over=False) == []
    (run,) = await claim(database)
    assert (run.claim, run.attempts, run.was_queued) == (Claim(tenant, uuid, 2), 2, False)


async def test_what_there_is_to_claim_is_seen_before_it_is_claimed(
    database: Database, tenant: TenantId
) -> None:
    seen = [await claims.work(database, TERMS, take_over=True)]
    await add(database, tenant, durable_response(owner="other", lease_s=600))
    seen.append(await claims.work(database, TERMS, take_over=True))
    await let_time_pass(database, tenant, seconds=601)
    seen.append(await claims.work(database, TERMS, take_over=False))
    seen.append(await claims.work(database, TERMS, take_over=True))
    await queue(database, tenant, 1)
    seen.append(await claims.work(database, TERMS, take_over=False))
    assert [(work.is_queued, work.is_left) for work in seen] == [
        (False, False), (False, False), (False, False), (False, True), (True, False),
    ]  # fmt: skip


async def test_what_there_is_to_claim_says_when_the_next_lease_lapses(
    database: Database, tenant: TenantId
) -> None:
    await queue(database, tenant, 1)
    await add(database, tenant, durable_response(owner="gone", lease_s=0))
    assert (await claims.work(database, TERMS, take_over=True)).lapse_s is None
    await add(database, tenant, durable_response(owner="other", lease_s=900))
    await add(database, tenant, durable_response(owner="another", lease_s=600))
    assert (await claims.work(database, TERMS, take_over=True)).lapse_s == pytest.approx(600, 0.1)


async def test_what_was_begun_is_claimed_before_what_waits(
    database: Database, tenant: TenantId
) -> None:
    await queue(database, tenant, 2)
    (begun,) = await add(database, tenant, durable_response(owner="other", lease_s=0))
    assert await claimed(database, limit=1) == [begun]


async def test_a_released_response_may_be_taken_at_once_and_counts_no_attempt(
    database: Database, tenant: TenantId
) -> None:
    await queue(database, tenant, 1)
    (first,) = await claim(database)
    await claims.release(database, [first.claim])
    stored = await responses.load(database, tenant, first.claim.uuid)
    assert stored is not None
    assert not stored.is_held
    (second,) = await claim(database, "another", take_over=False)
    assert (second.claim.epoch, second.attempts) == (2, 1)


async def test_releasing_what_another_owns_changes_nothing(
    database: Database, tenant: TenantId
) -> None:
    await queue(database, tenant, 1)
    (run,) = await claim(database)
    await claims.release(database, [replace(run.claim, epoch=0), replace(run.claim, epoch=2)])
    await claims.release(database, [])
    assert await claim(database, "another") == []


async def test_releasing_twice_counts_once(database: Database, tenant: TenantId) -> None:
    await queue(database, tenant, 1)
    (run,) = await claim(database)
    for _ in range(2):
        await claims.release(database, [run.claim])
    (again,) = await claim(database)
    assert again.attempts == 1


async def test_a_heartbeat_keeps_what_is_held_and_tells_what_is_lost(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    kept, lost, ended, released, deleted = await add(
        database, tenant, *[durable_response(owner="me") for _ in range(5)]
    )
    (foreign,) = await add(database, other_tenant, durable_response(owner="me"))
    held = [Claim(tenant, uuid, 1) for uuid in (kept, lost, ended, released, deleted)]
    held.append(Claim(other_tenant, foreign, 1))
    await change(database, lost, epoch=2)
    end = replace(finished(ended, epoch=1), entries=last_row(1))
    await endings.finish(database, tenant, end)
    await claims.release(database, [held[3]])
    await responses.delete(database, tenant, deleted)
    await let_time_pass(database, tenant, seconds=601)
    assert await claims.heartbeat(database, "me", held, lease_s=600) == {kept, foreign}
    assert await claimed(database, "another") == sorted([lost, released])
    assert await claims.heartbeat(database, "another", held, lease_s=600) == frozenset()
    assert await claims.heartbeat(database, "me", [], lease_s=600) == frozenset()


async def test_a_lapsed_lease_that_nobody_took_may_be_renewed(
    database: Database, tenant: TenantId
) -> None:
    (uuid,) = await add(database, tenant, durable_response(owner="me", lease_s=0))
    held = [Claim(tenant, uuid, 1)]
    assert await claims.heartbeat(database, "me", held, lease_s=600) == {uuid}
    assert await claim(database, "another") == []


@pytest.mark.slow
async def test_a_tenant_runs_no_more_than_its_bound_on_all_replicas_together(
    database: Database, tenant: TenantId
) -> None:
    waiting = sorted(await queue(database, tenant, 12))
    rounds = await asyncio.gather(
        *[claim(database, f"r{number}", limit=3, tenant_running_max=7) for number in range(5)]
    )
    runs = [run for one in rounds for run in one]
    assert sorted(run.claim.uuid for run in runs) == waiting[:7]
    end = replace(finished(waiting[0], epoch=1), entries=last_row(1))
    await endings.finish(database, tenant, end)
    assert await claimed(database, tenant_running_max=7) == [waiting[7]]


async def test_the_bound_of_a_tenant_goes_before_the_common_one(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    async with database.owner_transaction() as connection:
        statement = Statement("UPDATE tenants SET background_running_max = 1 WHERE id = :id")
        await connection.execute(statement, {"id": tenant})
    bounded, free = await queue(database, tenant, 3), await queue(database, other_tenant, 3)
    assert await claimed(database, tenant_running_max=2) == sorted(
        [min(bounded), *sorted(free)[:2]]
    )


async def test_tenants_with_the_fewest_running_come_first(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    many = await queue(database, tenant, 6)
    assert len(await claim(database, limit=2)) == 2
    few = await queue(database, other_tenant, 3)
    # Two more of the other tenant make both even; the next place goes to the older response.
    assert await claimed(database, limit=3) == sorted([*sorted(few)[:2], sorted(many)[2]])


async def test_what_another_version_folds_is_left_alone(
    database: Database, tenant: TenantId
) -> None:
    waiting, begun = await add(
        database, tenant, durable_response(), durable_response(owner="other", lease_s=0)
    )
    for uuid in (waiting, begun):
        await change(database, uuid, fold_version=LATER)
    assert await claim(database) == []
    assert sorted(await claimed(database, fold_versions=(LATER,))) == sorted([waiting, begun])


async def test_what_others_can_do_better_is_left_to_them_for_a_while(
    database: Database, tenant: TenantId
) -> None:
    waiting, begun = await add(
        database, tenant, durable_response(), durable_response(owner="other", lease_s=0)
    )
    await change(database, waiting, created_at=datetime.now(UTC))
    for uuid in (waiting, begun):
        await change(database, uuid, fold_version=FOLD_VERSIONS[1])
    plain: dict[str, Any] = {
        "fold_versions": FOLD_VERSIONS[:1],
        "late_fold_versions": FOLD_VERSIONS[1:],
    }
    assert await claim(database, **plain) == []
    terms = replace(TERMS, **plain)
    assert await claims.work(database, terms, take_over=True) == (False, False, None)
    late = await claimed(database, **plain, late_s=-1.0)
    assert sorted(late) == sorted([waiting, begun])


@pytest.mark.slow
async def test_a_response_that_is_being_cancelled_is_passed_over(
    database: Database, tenant: TenantId
) -> None:
    first, second = sorted(await queue(database, tenant, 2))
    async with database.transaction(tenant) as connection:
        await responses.find(connection, tenant, first, locked=True)
        assert await claimed(database) == [second]
    assert await claimed(database) == [first]


@pytest.mark.slow
async def test_two_claimers_never_claim_the_same(database: Database, tenant: TenantId) -> None:
    begun = [durable_response(owner="other", lease_s=0) for _ in range(10)]
    uuids = await add(database, tenant, *begun) + await queue(database, tenant, 10)
    rounds = await asyncio.gather(
        *[claimed(database, f"r{number}", limit=5, tenant_running_max=99) for number in range(5)]
    )
    assert sorted(uuid for one in rounds for uuid in one) == sorted(uuids)


async def abandoned(database: Database, **options: Any) -> list[UUID]:
    reaper = {"limit": 99, "attempts_max": 2, "orphan_s": 3600} | options
    return [uuid for _, uuid in await claims.abandoned(database, **reaper)]


async def test_what_is_held_or_may_be_claimed_is_not_abandoned(
    database: Database, tenant: TenantId
) -> None:
    await add(
        database,
        tenant,
        durable_response(),
        durable_response(owner="me"),
        durable_response(owner="me", lease_s=0),
        replace(new_response(), owner="me", lease_s=600),
        replace(new_response(), created_at=datetime.now(UTC)),
    )
    assert await abandoned(database) == []


async def test_a_lapsed_response_without_a_durable_log_is_abandoned(
    database: Database, tenant: TenantId
) -> None:
    (uuid,) = await add(database, tenant, replace(new_response(), owner="me", lease_s=0))
    assert await claims.abandoned(database, limit=9, attempts_max=2, orphan_s=3600) == [
        (tenant, uuid)
    ]


async def test_what_an_older_release_left_behind_is_abandoned_after_a_while(
    database: Database, tenant: TenantId
) -> None:
    now = datetime.now(UTC)
    old, _ = await add(
        database,
        tenant,
        replace(new_response(), created_at=now - timedelta(seconds=3700)),
        replace(new_response(), created_at=now - timedelta(seconds=3500)),
    )
    assert await abandoned(database) == [old]


async def test_a_response_that_too_many_began_is_abandoned_and_claimed_no_more(
    database: Database, tenant: TenantId
) -> None:
    (uuid,) = await queue(database, tenant, 1)
    for attempt in (1, 2):
        (run,) = await claim(database, attempts_max=2)
        assert run.attempts == attempt
        assert await abandoned(database) == []
        await let_time_pass(database, tenant, seconds=601)
    assert await claim(database, attempts_max=2) == []
    assert await abandoned(database) == [uuid]


@pytest.mark.slow
async def test_what_nobody_can_fold_any_more_is_abandoned_after_a_while(
    database: Database, tenant: TenantId
) -> None:
    new = replace(durable_response(), created_at=datetime.now(UTC))
    begun, queued = await add(database, tenant, durable_response(owner="old"), new)
    for uuid in (begun, queued):
        await change(database, uuid, fold_version=LATER)
    await let_time_pass(database, tenant, seconds=600 + 3590)
    assert await abandoned(database) == []
    await let_time_pass(database, tenant, seconds=20)
    assert await abandoned(database) == [begun]
    await change(database, queued, created_at=datetime.now(UTC) - timedelta(seconds=3610))
    assert await abandoned(database) == sorted([begun, queued])
    assert await abandoned(database, limit=1) == [min(begun, queued)]


async def test_a_response_released_by_the_release_before_is_left_to_it_for_a_while(
    database: Database, tenant: TenantId
) -> None:
    (uuid,) = await add(database, tenant, durable_response(owner="old"))
    await change(database, uuid, fold_version=LATER)
    await claims.release(database, [Claim(tenant, uuid, 1)])
    assert await abandoned(database) == []
    await let_time_pass(database, tenant, seconds=3601)
    assert await abandoned(database) == [uuid]


async def test_heads_of_many_tenants_are_read_at_once(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    (queued,) = await queue(database, tenant, 1)
    (begun,) = await add(database, other_tenant, durable_response(owner="me"))
    asked = [(tenant, queued), (other_tenant, begun), (tenant, begun), (tenant, ids.new_uuid())]
    assert await claims.heads(database, asked) == {
        queued: LogHead(0, 1, "queued"),
        begun: LogHead(1, 1, "in_progress"),
    }
    assert await claims.heads(database, []) == {}


@pytest.mark.slow
async def test_a_process_that_freezes_while_it_claims_does_not_keep_others_from_it(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    waiting = await queue(database, tenant, 2)
    frozen = Database(database_url, pool_size_max=1, command_timeout_s=0.3, connect_timeout_s=30)

    async def freeze() -> None:
        async with frozen.runs_transaction() as connection:
            await locks.take(connection, Lock.CLAIMS)
            lock = Statement("SELECT id FROM responses FOR NO KEY UPDATE")
            assert len(await connection.execute(lock)) == 2
            assert await claimed(database) == sorted(waiting)

    with pytest.raises(StoreUnavailable):
        await freeze()
    await frozen.close()
