"""Whose responses are claimed next of all that wait in background, and how many may run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway import ids
from gateway.errors import RateLimited
from gateway.generation import TokenUsage
from gateway.limits.rules import Terms
from gateway.replication.durable_runs import ENDED_MAX, cost_of
from gateway.store import claim_order, claims, responses
from gateway.store.claim_order import EXPECTED_AT_FIRST, EndedResponse
from gateway.store.limits import counters
from gateway.store.postgres.statements import Statement
from tests.conftest import new_tenant
from tests.fakes.limited import at_once, caller, limiter
from tests.fakes.staged_run import run_spec
from tests.fakes.stored import TERMS, durable_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.limits.rules import Limit
    from gateway.store.claims import ClaimedRun
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

MANY = replace(TERMS, tenant_running_max=10_000)
PROJECT, OTHER_PROJECT = UUID(int=51), UUID(int=52)
ADD_LIMIT = Statement("""
INSERT INTO limits (tenant_id, scope, scope_id, model, what, window_s, value, mode, updated_at)
VALUES (:tenant, :scope, :scope_id, '*', :what, 0, :value, :mode, now())
""")
ADD_KEY = Statement("""
INSERT INTO api_keys (tenant_id, id, name, hash, hint, created_at, kind, replaced_by)
VALUES (:tenant, CAST(:id AS uuid), 'key', uuid_send(CAST(:id AS uuid)), '', now(), 'project',
        CAST(:replaced_by AS uuid))
""")
AGE = Statement("UPDATE background_shares SET at = at - interval '30 days'")


async def queue(database: Database, tenant: TenantId, number: int, **fields: Any) -> list[UUID]:
    """That many, of this moment, from the oldest on."""
    now = datetime.now(UTC)
    new = [replace(durable_response(), created_at=now, **fields) for _ in range(number)]
    for one in new:
        await responses.insert(database, tenant, one)
    return sorted(one.uuid for one in new)


async def claim(
    database: Database, limit: int = 1, *, ended: Sequence[EndedResponse] = (), owner: str = "me"
) -> list[ClaimedRun]:
    return await claims.claim(database, owner, MANY, limit=limit, take_over=True, ended=ended)


async def turns(database: Database, number: int, cost: dict[TenantId, float]) -> list[TenantId]:
    """Whose turn it is, so many times, where each response costs its tenant so much, and two
    replicas claim in turns.
    """
    ended: dict[str, list[EndedResponse]] = {"one": [], "two": []}
    seen: list[TenantId] = []
    for turn in range(number):
        owner = ("one", "two")[turn % 2]
        (run,) = await claim(database, ended=ended[owner], owner=owner)
        tenant = run.claim.tenant_id
        ended[owner] = [EndedResponse(tenant, cost[tenant], run.counted)]
        seen.append(tenant)
    return seen


@pytest.mark.slow
async def test_a_flood_does_not_delay_the_first_of_another_tenant(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await queue(database, tenant, 300)
    assert len(await claim(database, 40)) == 40
    (small,) = await queue(database, other_tenant, 1)
    runs = [*await claim(database), *await claim(database)]
    assert small in {run.claim.uuid for run in runs}


@pytest.mark.slow
async def test_tenants_get_as_many_tokens_of_whichever_replica_and_however_long_each_is(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await queue(database, tenant, 60)
    await queue(database, other_tenant, 60)
    seen = await turns(database, 80, {tenant: 3_000.0, other_tenant: 1_000.0})
    # Once it is known what they cost; three of the one for one of the other.
    assert 14 <= seen[20:].count(tenant) <= 16


@pytest.mark.slow
async def test_who_was_away_does_not_save_up(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    cost = {tenant: 1_000.0, other_tenant: 1_000.0}
    await queue(database, other_tenant, 1)
    await turns(database, 1, cost)
    await queue(database, tenant, 60)
    await turns(database, 40, cost)
    await queue(database, other_tenant, 30)
    seen = await turns(database, 12, cost)
    assert 4 <= seen.count(other_tenant) <= 8


async def test_the_first_of_a_tenant_that_has_nothing_running_is_promoted(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await queue(database, other_tenant, 5)
    await claim(database, ended=[EndedResponse(tenant, 1e9, 0.0)])
    old = datetime(2026, 1, 1, tzinfo=UTC)
    now = datetime.now(UTC)
    uuids = sorted(ids.new_uuid() for _ in range(3))
    new = [
        replace(durable_response(uuid=uuid), created_at=at)
        for uuid, at in zip(uuids, (old, old, now), strict=True)
    ]
    for one in new:
        await responses.insert(database, tenant, one)
    (first,) = await claim(database)
    assert first.claim.uuid == new[0].uuid
    # With one running the next has to wait for its turn, though it waited as long.
    assert {run.claim.tenant_id for run in await claim(database, 4)} == {other_tenant}
    # What was promoted told nobody where those are that go now.
    (late,) = await queue(database, await new_tenant(database), 1)
    (next_one,) = await claim(database)
    assert next_one.claim.uuid == late


async def test_what_was_served_is_forgotten_after_a_while(
    database: Database, tenant: TenantId
) -> None:
    await queue(database, tenant, 2)
    await claim(database, 2)
    async with database.runs_transaction() as connection:
        await connection.execute(AGE, {})
    await claim_order.forget_shares(database)
    async with database.runs_transaction() as connection:
        found = await connection.scalar(Statement("SELECT count(*) FROM background_shares"), {})
    assert found == 0


def bound(tenant: TenantId, value: int, **more: Any) -> Limit:
    return at_once("background_running", value, **{"scope_id": tenant, **more})


async def add_limits(database: Database, tenant: TenantId, *limits: Limit) -> None:
    async with database.owner_transaction() as connection:
        for one in limits:
            values = {name: getattr(one, name) for name in ("scope", "scope_id", "what", "mode")}
            row = {"tenant": tenant, "value": one.value, **values}
            await connection.execute(ADD_LIMIT, row)


@pytest.mark.parametrize("scope", ["tenant", "organization"])
async def test_no_more_of_a_tenant_run_than_its_limit_says(
    database: Database, tenant: TenantId, other_tenant: TenantId, scope: str
) -> None:
    await add_limits(database, tenant, bound(tenant, 2, scope=scope))
    await queue(database, tenant, 5)
    others = await queue(database, other_tenant, 5)
    runs = await claim(database, 99)
    assert sum(run.claim.tenant_id == tenant for run in runs) == 2
    assert {run.claim.uuid for run in runs} > set(others)
    assert await claim(database, 99) == []


async def test_a_project_over_its_limit_is_passed_over_and_others_go_on(
    database: Database, tenant: TenantId
) -> None:
    of_project = bound(tenant, 2, scope="project", scope_id=PROJECT)
    observed = bound(tenant, 0, scope="project", scope_id=OTHER_PROJECT, mode="observe")
    own = bound(tenant, 1, scope="project")  # the default project
    await add_limits(database, tenant, of_project, observed, own)
    key, other_key = ids.new_uuid(), ids.new_uuid()
    first = await queue(database, tenant, 3, project_id=PROJECT, key_id=key)
    others = await queue(database, tenant, 2, project_id=OTHER_PROJECT)
    first += await queue(database, tenant, 3, project_id=PROJECT, key_id=other_key)
    first.sort()
    default = await queue(database, tenant, 2)
    # One at a time and all at once alike.
    assert [run.claim.uuid for run in await claim(database)] == first[:1]
    runs = {run.claim.uuid for run in await claim(database, 99)}
    assert runs == {first[1], *others, default[0]}
    assert await claim(database, 99) == []
    async with database.transaction(tenant) as connection:
        assert (
            await counters.count_background(connection, tenant, replace(of_project, value=9)) == 2
        )
    await responses.delete(database, tenant, first[0])
    assert [run.claim.uuid for run in await claim(database, 99)] == [first[2]]


async def test_a_limit_of_a_key_holds_for_the_key_that_took_its_place(
    database: Database, tenant: TenantId
) -> None:
    old, newer, newest, other = (ids.new_uuid() for _ in range(4))
    async with database.owner_transaction() as connection:
        for key, by in ((old, newer), (newer, newest), (newest, None), (other, None)):
            row = {"tenant": tenant, "id": key, "replaced_by": by}
            await connection.execute(ADD_KEY, row)
    limit = bound(tenant, 3, scope="key", scope_id=old)
    await add_limits(database, tenant, limit)
    for key in (old, newer, newest, other):
        await queue(database, tenant, 2, key_id=key)
    runs = await claim(database, 99)
    assert sorted(run.key_id == other for run in runs) == [False] * 3 + [True] * 2
    async with database.transaction(tenant) as connection:
        assert await counters.count_background(connection, tenant, replace(limit, value=9)) == 3
    one = limiter(database, "one")
    principal = caller(replace(limit, value=9), tenant_id=tenant)
    (figure,) = (await one.figures(tenant, principal.terms)).limits
    assert figure.remaining == 6


@pytest.mark.parametrize("scope", ["tenant", "project", "key"])
async def test_requests_at_the_same_moment_queue_no_more_than_may_wait(
    database: Database, tenant: TenantId, scope: str
) -> None:
    key = ids.new_uuid()
    own = {"tenant": tenant, "project": PROJECT, "key": key}[scope]
    what = {"scope": scope, "scope_id": own}
    terms = Terms((at_once("background_queued", 3, **what),), organization="acme")
    fields = {"queue_terms": terms, "queued_max": 99, "project_id": PROJECT, "key_id": key}
    results = await asyncio.gather(
        *(queue(database, tenant, 1, **fields) for _ in range(12)), return_exceptions=True
    )
    refused = [one for one in results if isinstance(one, RateLimited)]
    assert len(refused) == 9
    assert "on background responses that wait: Limit 3, Used 3, Requested 1." in str(refused[0])
    assert (refused[0].code, refused[0].kind) == ("rate_limit_exceeded", "requests")
    assert refused[0].retry_after_s
    assert not refused[0].is_final
    # Others of the tenant, and what was taken from the queue, do not count.
    if scope != "tenant":
        await queue(database, tenant, 1)
    await claim(database, 99)
    await queue(database, tenant, 1, **fields)
    observed = Terms((at_once("background_queued", 1, mode="observe", **what),))
    assert await counters.observed_queues(database, tenant, observed) == list(observed.limits)
    await queue(database, tenant, 1, **{**fields, "queue_terms": observed})


async def test_what_a_share_begins_with_is_what_admission_expects() -> None:
    from gateway.upstreams.admission import queue as fair
    from gateway.upstreams.admission.slots import WorkClass

    weight = fair.CLASS_WEIGHTS[WorkClass.BACKGROUND]
    assert fair.EXPECTED_AT_FIRST * fair.OUTPUT_WEIGHT / weight == EXPECTED_AT_FIRST
    assert fair.ALPHA == claim_order.ALPHA


async def test_responses_that_cost_next_to_nothing_stop_no_claim(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    """Those that failed before their first turn, say."""
    nothing = cost_of(run_spec(), TokenUsage())
    for _ in range(4):
        await claim(database, ended=[EndedResponse(tenant, nothing, 0.0)] * ENDED_MAX)
    await queue(database, tenant, 2)
    await queue(database, other_tenant, 2)
    assert len(await claim(database, 1)) == 1
    assert len(await claim(database, 2)) == 2
