"""What a client was shown of a stored response is there afterwards, whoever ended it meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.engine import outcome
from gateway.engine.late_writes import Deposits, LateBounds, deposit
from gateway.engine.runner import Run
from gateway.entries import Tokens, TurnStarted
from gateway.errors import StoreUnavailable
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.store import endings, responses
from gateway.telemetry.metrics import Metrics
from tests.fakes.following import collected
from tests.fakes.harmony_script import script_ids
from tests.fakes.replica import LEASE_S, Replica, Speaker, folded, foreground, load, new_fold_for
from tests.fakes.rows import count
from tests.fakes.stored import finished, let_time_pass, new_response
from tests.integration.engine.test_archive import Kept, history, used

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry
    from gateway.eventlog.fold.fold import Fold
    from gateway.store.claims import Claim
    from gateway.store.endings import FinishedResponse
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

BEGINNING = "<|channel|>final<|message|>Hello the"
INTERRUPTED = outcome.interrupted(1_795_000_009)
SAID: list[Entry] = [TurnStarted(7), Tokens(tuple(script_ids(BEGINNING)))]


def interrupted(spec: RunSpec) -> Fold:
    return folded(spec, [*SAID, INTERRUPTED])


async def body_of(database: Database, spec: RunSpec) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads((await load(database, spec)).body or b"")
    return body


async def begun_and_reaped(database: Database, kept: Kept, spec: RunSpec) -> Claim:
    claim = await kept.archive.begin(spec)
    await let_time_pass(database, claim.tenant_id, seconds=601)
    assert await kept.archive.end_abandoned(claim.tenant_id, claim.uuid) is not None
    return claim


@pytest.fixture
def kept(database: Database) -> Kept:
    return Kept(database)


async def test_what_a_frozen_owner_has_of_its_response_is_kept_once_it_is_back(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = foreground(tenant)
    claim = await begun_and_reaped(database, kept, spec)
    assert (await body_of(database, spec))["output"] == []
    fold = interrupted(spec)
    for _ in range(2):  # the outcome of the first may have been lost
        await kept.archive.deposit(spec, INTERRUPTED, fold, claim)
    body = await body_of(database, spec)
    assert body == fold.response()
    assert (await load(database, spec)).status == body["status"] == "failed"
    assert await used(database, spec) == [fold.usage.output_tokens] == [len(script_ids(BEGINNING))]
    assert [one.item_id for one in await history(database, spec)] == [body["output"][0]["id"]]


async def test_a_run_whose_response_was_ended_elsewhere_shows_what_is_stored_then(
    database: Database, tenant: TenantId
) -> None:
    speaker = Speaker(BEGINNING, silent=True)
    frozen, other = Replica(database, speaker), Replica(database, Speaker(BEGINNING))
    spec = foreground(tenant)
    live = LiveLog(new_fold_for(spec.head), reader_events_max=100)
    run = Run(spec, MemoryJournal(live), frozen.engine)
    frozen.supervisor.start(run)
    await speaker.fell_silent()
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    await other.keeper.heartbeat()
    assert await other.reaper.round() == 1
    await frozen.keeper.heartbeat()
    shown = await collected(live.stream)
    assert shown[-1].type == "response.failed"
    told = orjson.loads(shown[-1].data)["response"]
    assert told == await body_of(database, spec)
    assert told["output"]
    assert await used(database, spec) == [told["usage"]["output_tokens"]]


@pytest.mark.parametrize("is_ended_otherwise", [True, False])
async def test_nothing_is_deposited_for_what_ended_otherwise_or_is_gone(
    database: Database, tenant: TenantId, is_ended_otherwise: bool
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    if is_ended_otherwise:
        await endings.finish(database, tenant, finished(new.uuid))
    else:
        await responses.delete(database, tenant, new.uuid)
    late = finished(new.uuid, status="failed", body=b"late")
    assert not await deposit(database, tenant, late)
    assert not await endings.deposit(database, tenant, late)
    assert await count(database, tenant, "usage") == int(is_ended_otherwise)


async def test_what_still_runs_under_its_claim_is_ended_by_the_deposit(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = foreground(tenant)
    claim = await kept.archive.begin(spec)
    end = outcome.not_stored(1_795_000_009)
    fold = folded(spec, [*SAID, end])
    await kept.archive.deposit(spec, end, fold, claim)
    assert await body_of(database, spec) == fold.response()


@pytest.mark.slow
async def test_of_a_deposit_and_the_one_who_reaps_both_may_come_first(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    for _ in range(10):
        spec = foreground(tenant)
        claim = await kept.archive.begin(spec)
        await let_time_pass(database, tenant, seconds=601)
        fold = interrupted(spec)
        await asyncio.gather(
            kept.archive.end_abandoned(tenant, claim.uuid),
            kept.archive.deposit(spec, INTERRUPTED, fold, claim),
        )
        assert await body_of(database, spec) == fold.response()
        assert await used(database, spec) == [fold.usage.output_tokens]


async def test_an_end_that_was_told_while_the_database_was_away_is_stored_when_it_is_back(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec, never = foreground(tenant), foreground(tenant)
    claim = await kept.archive.begin(spec)
    end = outcome.not_stored(1_795_000_009)
    fold = folded(spec, [*SAID, end])
    kept.archive.deposit_later(never, end, folded(never, [end]), None)
    kept.archive.deposit_later(spec, end, fold, claim)
    await kept.archive.flush()
    assert await body_of(database, spec) == fold.response()
    assert await used(database, spec) == [fold.usage.output_tokens]


def ending(uuid: UUID, size: int = 10) -> FinishedResponse:
    return finished(uuid, status="failed", body=b"x" * size)


@asynccontextmanager
async def working(deposits: Deposits) -> AsyncIterator[None]:
    task = asyncio.create_task(deposits.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_ends_wait_for_the_database_up_to_a_time_and_a_size(tenant: TenantId) -> None:
    asked: list[UUID] = []
    seen = asyncio.Event()

    async def unreachable(tenant_id: TenantId, end: FinishedResponse) -> bool:
        asked.append(end.uuid)
        if len(asked) >= 3:
            seen.set()
        raise StoreUnavailable("away")

    metrics = Metrics()
    bounds = LateBounds(size_max=100, patience_s=3600, retry_pause_s=0.001)
    deposits = Deposits(unreachable, metrics=metrics, bounds=bounds)
    kept, too_large = new_response().uuid, new_response().uuid
    async with working(deposits):
        deposits.put(tenant, ending(kept))
        deposits.put(tenant, ending(too_large, 99))
        await seen.wait()
    assert set(asked) == {kept}
    await deposits.flush(wait_s=0)
    late = Deposits(unreachable, metrics=metrics, bounds=replace(bounds, patience_s=-1))
    late.put(tenant, ending(kept))
    await late.flush(wait_s=3600)
    failed = metrics.registry.get_sample_value(
        "gateway_store_errors_total", {"kind": "StoreUnavailable"}
    )
    assert failed == 3


async def test_an_end_that_cannot_be_written_keeps_no_other_back(
    database: Database, tenant: TenantId
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    deposits = Deposits(partial(deposit, database), metrics=Metrics())
    deposits.put(tenant, replace(ending(new.uuid), status="no end"))
    deposits.put(tenant, ending(new.uuid))
    await deposits.flush(wait_s=60)
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert stored.status == "failed"
