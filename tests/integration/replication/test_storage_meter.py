"""What tenants have stored, measured in real tables."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway.admin.limits import LimitOwner, Limits
from gateway.errors import RateLimited
from gateway.limits.stored_bytes import WHOLE_TENANT
from gateway.replication import storage_meter
from gateway.replication.storage_meter import StorageMeter
from gateway.store.postgres.statements import Statement
from gateway.tenancy import Principal
from tests.conftest import new_tenant
from tests.fakes.limited import at_once, caller, limiter, running

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

PROJECT = UUID(int=5)
PAST = UUID(int=77)
FILLED = [
    """
    INSERT INTO responses (tenant_id, id, key_id, status, model, background, stored, durable,
                           created_at, root_created_at, request, body, fold_version, project_id)
    SELECT CAST(:tenant AS uuid), gen_random_uuid(), gen_random_uuid(), 'completed', 'm', false,
           true, true, now(), now(), '', CAST(repeat('.', 96) AS bytea), 1, project_id
    FROM generate_series(1, 7), (VALUES (NULL), (CAST(:project AS uuid))) AS own (project_id)
    """,
    """
    INSERT INTO messages (tenant_id, response_id, position, is_output, kind, item_id, complete,
                          item, ids)
    SELECT tenant_id, id, 0, false, 'message', '', true, CAST(repeat('.', 46) AS bytea),
           CAST(repeat('.', 46) AS bytea)
    FROM responses WHERE tenant_id = :tenant
    """,
    """
    INSERT INTO events (tenant_id, response_id, first_entry, day, epoch, entry_count, entries)
    SELECT tenant_id, id, 0, CAST(created_at AT TIME ZONE 'UTC' AS date), 1, 1,
           CAST(repeat('.', 16) AS bytea)
    FROM responses WHERE tenant_id = :tenant
    """,
    """
    INSERT INTO conversations (tenant_id, id, created_at, metadata, project_id)
    VALUES (:tenant, gen_random_uuid(), now(), CAST(repeat('.', 36) AS bytea), :project)
    """,
    """
    INSERT INTO conversation_items (tenant_id, conversation_id, position, kind, item_id, complete,
                                    item)
    SELECT tenant_id, id, 0, 'message', '', true, CAST(repeat('.', 56) AS bytea)
    FROM conversations WHERE tenant_id = :tenant
    """,
    """
    INSERT INTO files (tenant_id, id, name, size_bytes, digest, created_at, project_id)
    VALUES (:tenant, gen_random_uuid(), '', 1000, '', now(), :project),
           (:tenant, gen_random_uuid(), '', 500, '', now(), NULL)
    """,
    """
    INSERT INTO tool_pages (tenant_id, key, asked, url, title, text, links, fetched_at)
    VALUES (:tenant, 'k', '', '', '', CAST(repeat('.', 96) AS bytea), '', now())
    """,
]
ERASED = "DELETE FROM responses WHERE tenant_id = :tenant AND project_id IS NULL"
EMPTIED = [
    f"DELETE FROM {table} WHERE tenant_id = :tenant AND project_id = :project"
    for table in ("responses", "conversations", "files")
]
DUE = Statement("UPDATE stored_bytes SET due_at = now() - interval '1 second'")
LEFT = Statement("SELECT count(*) FROM stored_bytes WHERE tenant_id = :tenant")


class Noted:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def storage_measured(self, **seen: Any) -> None:
        self.seen.append(seen)


async def execute(database: Database, tenant_id: TenantId, *statements: str) -> None:
    own = {"tenant": tenant_id, "project": PROJECT}
    async with database.transaction(tenant_id) as connection:
        for text in statements:
            given = {name: value for name, value in own.items() if f":{name}" in text}
            await connection.execute(Statement(text), given)


async def due(database: Database) -> None:
    async with database.runs_transaction() as connection:
        await connection.execute(DUE, {})


def overhead(rows: int, values: int) -> range:
    """A value of less than 127 bytes has one byte of length, or four before it is stored so."""
    return range(rows * values, 8 * rows * values + 1)


async def test_all_that_is_stored_is_measured_by_project_whatever_the_pages(
    database: Database,
) -> None:
    tenant, other = await new_tenant(database), await new_tenant(database)
    for one in (tenant, other):
        await execute(database, one, *FILLED)
    whole = await storage_meter.measure(database, tenant, rows_max=1_000)
    assert whole == await storage_meter.measure(database, tenant, rows_max=3)
    assert set(whole) == {WHOLE_TENANT, PROJECT, tenant}
    content = 7 * (96 + 2 * 46 + 16)
    assert whole[tenant] - content - 500 in overhead(7, 5)
    assert whole[PROJECT] - content - 1_000 - 36 - 56 in overhead(7, 5)
    assert whole[WHOLE_TENANT] - whole[tenant] - whole[PROJECT] - 96 in overhead(1, 4)
    await execute(database, tenant, ERASED)
    assert (await storage_meter.measure(database, tenant, rows_max=1_000))[tenant] == 500


@pytest.mark.slow
async def test_a_tenant_with_a_limit_is_measured_in_turn_by_one_process(database: Database) -> None:
    tenant, without, noted = await new_tenant(database), await new_tenant(database), Noted()
    await execute(database, tenant, *FILLED)
    limits = Limits(database)
    meters = [StorageMeter(database, database, noted, interval_s=3_600.0) for _ in range(3)]
    assert not await meters[0].once()
    place = LimitOwner.of_tenant(tenant)
    await limits.set_limits(place, {("stored_bytes", 0): 10_000})
    did = await asyncio.gather(*(one.once() for one in meters))
    assert sorted(did) == [False, False, True]
    assert not await meters[0].once()
    assert noted.seen[0]["fullest"] == noted.seen[0]["size_bytes"] / 10_000 > 0.3
    await due(database)
    assert await meters[1].once()
    await limits.set_limits(place, {("stored_bytes", 0): None})
    await limits.set_limits(LimitOwner.of_tenant(without), {("stored_bytes", 0): 1})
    assert await meters[2].once()
    async with database.runs_transaction() as connection:
        assert await connection.scalar(LEFT, {"tenant": tenant}) == 0
        assert await connection.scalar(LEFT, {"tenant": without}) == 1


@pytest.mark.slow
async def test_replicas_keep_to_what_was_measured_and_what_each_has_stored_since(
    database: Database,
) -> None:
    tenant = await new_tenant(database)
    await execute(database, tenant, *FILLED)
    await Limits(database).set_limits(LimitOwner.of_tenant(tenant), {("stored_bytes", 0): 10_000})
    meter = StorageMeter(database, database, Noted(), interval_s=3_600.0)
    assert await meter.once()
    limit = at_once("stored_bytes", 10_000, scope_id=tenant)
    principal = caller(limit, tenant_id=tenant)
    one, two = limiter(database, "one"), limiter(database, "two")
    async with running(one, two):
        left = (await one.figures(principal.tenant_id, principal.terms)).limits[0].remaining
        assert 4_000 < left < 6_500
        async with one.storing(principal, left - 10):
            pass
        await one.once()
        # The other knows both: what was measured, and what the first has stored since.
        with pytest.raises(RateLimited, match=r"Limit 10000, Used 9990, Requested 11\."):
            async with two.storing(principal, 11):
                raise NotImplementedError
        with pytest.raises(ZeroDivisionError):
            async with two.storing(principal, 10):
                raise ZeroDivisionError
        charge = await two.enter(principal, "m", "default", stores=10)
        assert charge is not None
        with pytest.raises(RateLimited):
            await two.enter(principal, "m", "default", stores=1)
        # What is not to be stored goes on.
        assert await two.enter(principal, "m", "default") is not None
        assert (await two.figures(principal.tenant_id, principal.terms)).limits[0].remaining == 0
        await two.once()
        await execute(database, tenant, "DELETE FROM responses WHERE tenant_id = :tenant")
        await due(database)
        assert await meter.once()
        await two.once()
        async with two.storing(principal, 100):
            pass


async def test_a_project_that_deletes_all_that_it_has_has_room_again(database: Database) -> None:
    tenant = await new_tenant(database)
    await execute(database, tenant, *FILLED)
    limit = at_once("stored_bytes", 2_000, scope="project", scope_id=PROJECT)
    await Limits(database).set_limits(
        LimitOwner(tenant, "project", PROJECT), {("stored_bytes", 0): limit.value}
    )
    meter = StorageMeter(database, database, Noted(), interval_s=3_600.0)
    assert await meter.once()
    one, principal = limiter(database, "one"), caller(limit, tenant_id=tenant)
    async with running(one):
        with pytest.raises(RateLimited):
            await one.enter(principal, "m", "default", stores=100)
        await execute(database, tenant, *EMPTIED)
        await due(database)
        assert await meter.once()
        await one.once()
        assert await one.enter(principal, "m", "default", stores=100) is not None


async def test_what_gate_1_refuses_stores_nothing(database: Database) -> None:
    tenant = await new_tenant(database)
    stored = at_once("stored_bytes", 100, scope_id=tenant)
    none = at_once("responses", 0, scope_id=tenant)
    one, principal = limiter(database, "one"), caller(stored, none, tenant_id=tenant)
    async with running(one):
        for _ in range(3):
            with pytest.raises(RateLimited, match="concurrent responses"):
                await one.enter(principal, "m", "default", stores=60)
    assert isinstance(principal, Principal)
    assert {size for _, size in one.gates.storage.watched()} == {0}
