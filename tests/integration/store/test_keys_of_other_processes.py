"""Content that other processes sealed, with keys that were made since or are away: nobody else's is
held up by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.encryption.keyring import Keyring, KeyringPolicy
from gateway.entries import Tokens, pack
from gateway.errors import ContentSealed, StoreUnavailable
from gateway.ids import new_uuid
from gateway.store import claims, events, flushes, remote_logs, responses
from gateway.store.claims import Claim
from gateway.store.events import LogBatch, day_of
from gateway.store.postgres.database import Database, turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.remote_logs import UNKNOWN, LogQuery
from gateway.store.tenants import insert_tenant
from gateway.store.tools import mcp_servers
from gateway.tenancy import TenantId
from tests.fakes.keys import MemoryKeys, MemoryProvider
from tests.fakes.stored import CREATED, TERMS, durable_response, new_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

DAY = day_of(CREATED)
ENTRIES = pack([Tokens((1,))])


@dataclass
class Replicas:
    """Two processes over one database, and what they ask for keys. Both know tenant `one`."""

    here: Database
    there: Database
    provider: MemoryProvider
    one: TenantId
    two: TenantId

    async def rotate(self, tenant_id: TenantId, number: int = 2) -> None:
        """There it is known that a tenant has a new key, and here it is not."""
        await self.there.keyring.add(tenant_id, number)
        self.there.keyring.forget(tenant_id)
        await self.there.keyring.ready([tenant_id])

    async def attempts(self, *uuids: UUID) -> list[int]:
        asked = Statement("SELECT attempts FROM responses WHERE id = :id")
        async with self.here.runs_transaction() as connection:
            return [await connection.scalar(asked, {"id": uuid}) for uuid in uuids]


@pytest.fixture
async def replicas(database_url: str) -> AsyncIterator[Replicas]:
    keys, provider = MemoryKeys(), MemoryProvider()
    bounds: dict[str, Any] = {"pool_size_max": 3, "command_timeout_s": 30, "connect_timeout_s": 30}
    policy = KeyringPolicy(seals_all=True, retry_s=1000)
    here = Database(database_url, **bounds, keyring=Keyring(keys, [provider], policy))
    there = Database(database_url, **bounds, keyring=Keyring(keys, [MemoryProvider()], policy))
    one, two = TenantId(new_uuid()), TenantId(new_uuid())
    await insert_tenant(here, one, "one")
    await insert_tenant(here, two, "two")
    await here.keyring.ready([one])
    await there.keyring.ready([one, two])
    yield Replicas(here, there, provider, one, two)
    for database in (here, there):
        await database.close()


async def test_what_another_sealed_with_a_newer_key_is_read(replicas: Replicas) -> None:
    await replicas.rotate(replicas.one)
    new = new_response()
    await responses.insert(replicas.there, replicas.one, new)
    stored = await responses.load(replicas.here, replicas.one, new.uuid)
    assert stored is not None
    assert stored.request == new.request
    await replicas.rotate(replicas.one, 3)
    log = durable_response(owner="there")
    await responses.insert(replicas.there, replicas.one, log)
    batch = LogBatch(Claim(replicas.one, log.uuid, 1), DAY, 1, 1, ENTRIES)
    assert await events.append(replicas.there, [batch])
    (row,) = await events.read(replicas.here, replicas.one, log.uuid, DAY, bytes_max=10**6)
    assert row.entries.endswith(ENTRIES[1:])


@pytest.mark.slow
async def test_a_claim_opens_what_was_sealed_with_a_newer_key(replicas: Replicas) -> None:
    await replicas.rotate(replicas.one)
    first, second = durable_response(), durable_response()
    await responses.insert(replicas.there, replicas.one, first)
    await responses.insert(replicas.there, replicas.two, second)
    found = await claims.claim(replicas.here, "here", TERMS, limit=9, take_over=True)
    assert {run.claim.uuid for run in found} == {first.uuid, second.uuid}
    assert {run.request for run in found} == {first.request}


@pytest.mark.slow
async def test_a_response_that_does_not_open_costs_no_other_its_claim(replicas: Replicas) -> None:
    broken, whole = durable_response(), durable_response()
    for new in (broken, whole):
        await responses.insert(replicas.there, replicas.one, new)
    async with replicas.there.transaction(replicas.one) as connection:
        await connection.execute(
            Statement("UPDATE responses SET plan = request WHERE id = :id"), {"id": broken.uuid}
        )
    (run,) = await claims.claim(replicas.here, "here", TERMS, limit=9, take_over=True)
    assert run.claim.uuid == whole.uuid


@pytest.mark.slow
async def test_responses_of_tenants_whose_keys_are_away_lose_no_attempt(replicas: Replicas) -> None:
    known, unknown = durable_response(), durable_response()
    await responses.insert(replicas.there, replicas.one, known)
    await responses.insert(replicas.there, replicas.two, unknown)
    replicas.provider.is_away = True
    for _ in range(TERMS.attempts_max + 1):
        await claims.claim(replicas.here, "here", TERMS, limit=9, take_over=True)
    assert await replicas.attempts(known.uuid, unknown.uuid) == [1, 0]
    # It is not even looked at while they are away, and taken up afterwards.
    work = await claims.work(replicas.here, TERMS, take_over=True)
    assert (work.is_queued, work.is_left) == (False, False)
    (run,) = await claims.claim(replicas.there, "there", TERMS, limit=9, take_over=True)
    assert (run.claim.uuid, run.attempts, run.request) == (unknown.uuid, 1, unknown.request)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_abandoned_responses_that_nobody_can_open_keep_no_other_waiting(
    replicas: Replicas, *, is_gone: bool
) -> None:
    closed, open_ = (
        replace(new_response(), uuid=uuid, owner="gone", lease_s=0)
        for uuid in sorted([new_uuid(), new_uuid()])
    )
    await responses.insert(replicas.there, replicas.two, closed)
    await responses.insert(replicas.there, replicas.one, open_)
    replicas.provider.is_away, replicas.provider.refuses = not is_gone, is_gone
    asked: dict[str, Any] = {"limit": 1, "attempts_max": 2, "orphan_s": 3600}
    assert await claims.abandoned(replicas.here, **asked) == [(replicas.two, closed.uuid)]
    with pytest.raises(ContentSealed if is_gone else StoreUnavailable):
        await responses.load(replicas.here, replicas.two, closed.uuid)
    assert await claims.abandoned(replicas.here, **asked) == [(replicas.one, open_.uuid)]


async def test_rows_of_no_tenant_need_no_keys(replicas: Replicas) -> None:
    replicas.provider.is_away = True
    assert await mcp_servers.of_tenant(replicas.here, mcp_servers.OPERATOR) == []


async def test_entries_wait_for_keys_that_are_away(replicas: Replicas) -> None:
    """They are not dropped, as those of a tenant whose keys are gone."""
    new = durable_response(owner="here")
    await responses.insert(replicas.there, replicas.two, new)
    replicas.provider.is_away = True
    batch = LogBatch(Claim(replicas.two, new.uuid, 1), DAY, 1, 1, ENTRIES)
    with pytest.raises(StoreUnavailable):
        await events.append(replicas.here, [batch])
    replicas.provider.is_away, replicas.provider.refuses = False, True
    replicas.here.keyring = Keyring(
        MemoryKeys(), [replicas.provider], KeyringPolicy(seals_all=True)
    )
    assert await events.append(replicas.here, [batch]) == frozenset()


@pytest.mark.slow
async def test_a_look_brings_what_opens_of_all_logs(replicas: Replicas) -> None:
    await replicas.rotate(replicas.one)
    asked: list[LogQuery] = []
    for tenant_id in (replicas.one, replicas.two):
        for flushed in (False, True):
            new = durable_response(owner="there")
            await responses.insert(replicas.there, tenant_id, new)
            batch = LogBatch(Claim(tenant_id, new.uuid, 1), DAY, 1, 1, ENTRIES)
            if flushed:
                fences = await flushes.fences(replicas.there, "there", [tenant_id])
                async with replicas.there.runs_transaction() as connection:
                    await flushes.add(connection, "there", fences[tenant_id], [batch])
            else:
                assert await events.append(replicas.there, [batch])
            query = LogQuery(tenant_id, new.uuid, new.uuid.bytes, DAY, UNKNOWN, "there")
            asked.append(replace(query, entries=0))
    async with replicas.there.owner_transaction() as connection:
        await turn_to(connection, replicas.two)
        broken = "UPDATE events SET entries = entries || entries WHERE response_id = :id"
        await connection.execute(Statement(broken), {"id": asked[2].uuid})
    keys = {one.key for one in asked}
    found = await remote_logs.poll(replicas.here, asked, {}, keys)
    of_broken = asked[2].key
    brought = {key for key, _, row in found.parts if row.entries.endswith(ENTRIES[1:])}
    assert brought == keys - {of_broken}
