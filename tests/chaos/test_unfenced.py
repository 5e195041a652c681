"""The fence is what keeps a stale owner from writing, and the test build has none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.store import claims, events, responses
from gateway.store.claims import Claim
from gateway.store.events import LogBatch, LogRow
from tests.chaos import takeovers, unfenced
from tests.fakes.stored import CREATED, TERMS, durable_response, let_time_pass

if TYPE_CHECKING:
    import pytest

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

DAY = CREATED.date()


async def _begun(database: Database, tenant: TenantId) -> Claim:
    new = replace(durable_response(owner="me"), entries=None)
    await responses.insert(database, tenant, new)
    return Claim(tenant, new.uuid, 1)


async def test_only_without_the_fence_can_a_stale_owner_write(
    database: Database, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await _begun(database, tenant)
    stale = LogBatch(replace(claim, epoch=0), DAY, 0, 1, b"stale")
    assert await events.append(database, [stale]) == frozenset()
    for owner, name, _ in unfenced.TORN_OUT:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    unfenced.tear_out()
    for parcel in (stale, LogBatch(claim, DAY, 0, 1, b"good")):
        assert await events.append(database, [parcel]) == {claim.uuid}
    log = await events.read(database, tenant, claim.uuid, DAY, bytes_max=1_000)
    assert log == [LogRow(0, 1, b"stale"), LogRow(1, 1, b"good")]


async def test_takeovers_are_noted_by_the_clock_of_the_database(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    await takeovers.install(database_url)
    claim = await _begun(database, tenant)
    await let_time_pass(database, tenant, seconds=605)
    (taken,) = await claims.claim(database, "other", TERMS, limit=1, take_over=True)
    await claims.release(database, [taken.claim])
    await claims.claim(database, "third", TERMS, limit=1, take_over=False)
    lapsed, released = await takeovers.noted(database_url)
    assert taken.claim.uuid == claim.uuid
    assert lapsed.late_s >= 5
    assert not lapsed.released
    assert released.released
