"""Claims against the rows that they are about."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.store import claims, responses
from gateway.store.postgres.statements import Statement
from tests.fakes.replica import LEASE_S, Speaker, background, foreground, replica, shown_text
from tests.fakes.staged_run import ANSWER
from tests.fakes.stored import let_time_pass

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

BEGINNING = "<|channel|>final<|message|>Hel"


@pytest.mark.slow
async def test_a_lease_is_renewed_even_after_it_has_lapsed(
    database: Database, tenant: TenantId
) -> None:
    spec = foreground(tenant)
    async with replica(database, Speaker(BEGINNING, silent=True)) as one:
        claim = await one.archive.begin(spec)
        await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        run, _ = one.begin(spec, claim)
        one.keeper.hold(claim, run)
        assert await one.keeper.heartbeat()
        stored = await responses.load(database, tenant, spec.head.uuid)
        assert stored is not None
        assert stored.is_held


@pytest.mark.slow
async def test_what_is_cancelled_elsewhere_stops_here_without_a_notice(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    speaker = Speaker(BEGINNING, silent=True)
    async with (
        replica(database, speaker) as owner,
        replica(database, Speaker(ANSWER)) as other,
        asyncio.TaskGroup() as group,
    ):
        keeping = group.create_task(owner.keeper.run())
        claim = await owner.archive.accept(spec, None, owned=True)
        assert claim is not None
        run, live = owner.begin(spec, claim)
        await owner.stalled(speaker)
        stored = await other.archive.cancel(tenant, spec.head.uuid)
        assert stored is not None
        assert stored.status == "cancelled"
        await owner.idle()
        assert live.handed_over
        assert speaker.closed == 1
        assert run.claim == claim
        keeping.cancel()
    body = orjson.loads(stored.body or b"")
    assert shown_text(body) == "Hel"


@pytest.mark.requirement("cancel.wins-once")
async def test_a_cancelled_run_that_goes_on_talking_changes_nothing(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        claim = await one.archive.accept(spec, None, owned=True)
        assert claim is not None
        cancelled = await one.archive.cancel(tenant, spec.head.uuid)
        _, live = one.begin(spec, claim)
        await one.idle()
        assert live.handed_over
        assert await responses.load(database, tenant, spec.head.uuid) == cancelled


async def test_a_run_that_ends_gives_up_its_claim(database: Database, tenant: TenantId) -> None:
    spec = replace(background(tenant), streamed=True)
    async with replica(database, Speaker(ANSWER)) as one:
        claim = await one.archive.accept(spec, None, owned=True)
        assert claim is not None
        _, live = one.begin(spec, claim)
        await one.idle()
        assert live.fold.shown.is_finished
        assert one.keeper._held == {}
        assert await claims.heartbeat(database, one.owner, [claim], lease_s=1) == frozenset()


@pytest.mark.slow
async def test_a_deleted_response_stops_its_run(database: Database, tenant: TenantId) -> None:
    spec = background(tenant)
    speaker = Speaker(BEGINNING, silent=True)
    async with replica(database, speaker) as one:
        claim = await one.archive.accept(spec, None, owned=True)
        assert claim is not None
        _, live = one.begin(spec, claim)
        await speaker.fell_silent()
        async with database.transaction(tenant) as connection:
            await connection.execute(Statement("DELETE FROM responses"))
        await one.keeper.heartbeat()
        await one.idle()
        assert live.handed_over
