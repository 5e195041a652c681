from __future__ import annotations

import asyncio
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store import tenants
from tests.fakes.aged import DAY, HOUR, day_of, logged_ids, store_aged, store_key, stored_ids
from tests.fakes.rows import add_rows, all_rows, count

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

KEEP = Retention.model_construct(
    log_s=86_400, response_s=30 * 86_400, idempotency_key_s=86_400, traces_s=30 * 86_400
)
MANY = 1000


async def own(database: Database, tenant: TenantId, **changes: int) -> None:
    assert await tenants.set_policy(database, f"tenant-{tenant}", changes)


async def chain(database: Database, tenant: TenantId, *ages: timedelta) -> list[UUID]:
    """Responses each of which continues from the one before."""
    made: list[UUID] = []
    for age in ages:
        made.append(await store_aged(database, tenant, age, parent=made[-1] if made else None))
    return made


async def test_expired_responses_go_with_their_items_logs_and_keys(
    database: Database, tenant: TenantId
) -> None:
    old = await store_aged(database, tenant, 31 * DAY)
    await store_key(database, tenant, old, timedelta())
    await store_aged(database, tenant, 31 * DAY, log_rows=0)
    kept = await store_aged(database, tenant, 29 * DAY)
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 2
    assert await stored_ids(database, tenant) == {kept}
    assert await logged_ids(database, tenant) == {kept}
    assert await count(database, tenant, "messages") == 1
    assert await count(database, tenant, "idempotency_keys") == 0


async def test_every_tenant_has_a_time_of_its_own(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await own(database, other_tenant, response_retention_s=3600)
    kept = await store_aged(database, tenant, 2 * HOUR)
    await store_aged(database, other_tenant, 2 * HOUR)
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 1
    assert await stored_ids(database, tenant) == {kept}
    assert await stored_ids(database, other_tenant) == set()
    await own(database, tenant, response_retention_s=40 * 86_400)
    older = await store_aged(database, tenant, 31 * DAY)
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 0
    assert await stored_ids(database, tenant) == {kept, older}


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_what_runs_is_never_touched(
    database: Database, tenant: TenantId, status: str
) -> None:
    running = await store_aged(database, tenant, 31 * DAY, status=status)
    nothing = Retention.model_construct(log_s=1, response_s=1, idempotency_key_s=1, traces_s=1)
    assert await sweep.delete_responses(database, nothing, rows_max=MANY) == 0
    assert await sweep.delete_logs(database, nothing, rows_max=MANY) == 0
    assert await stored_ids(database, tenant) == await logged_ids(database, tenant) == {running}


async def test_what_a_response_continues_from_is_kept_with_it(
    database: Database, tenant: TenantId
) -> None:
    ages = (40 * DAY, 35 * DAY, HOUR)
    kept = await chain(database, tenant, *ages)
    running = await store_aged(database, tenant, 50 * DAY)
    kept += [running, await store_aged(database, tenant, HOUR, status="queued", parent=running)]
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 0
    assert await stored_ids(database, tenant) == set(kept)


async def test_a_chain_goes_from_its_end(database: Database, tenant: TenantId) -> None:
    made = await chain(database, tenant, *(DAY * age for age in (40, 39, 38, 37, 36)))
    assert await sweep.delete_responses(database, KEEP, rows_max=2) == 2
    assert await stored_ids(database, tenant) == set(made[:3])
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 3
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 0


async def test_a_branch_that_is_kept_keeps_the_trunk_only(
    database: Database, tenant: TenantId
) -> None:
    root, trunk = await chain(database, tenant, 40 * DAY, 39 * DAY)
    young = await store_aged(database, tenant, HOUR, parent=trunk)
    old = await store_aged(database, tenant, 38 * DAY, parent=trunk)
    await store_aged(database, tenant, 37 * DAY, parent=old)
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 2
    assert await stored_ids(database, tenant) == {root, trunk, young}


async def test_a_tree_goes_once_all_its_branches_have(database: Database, tenant: TenantId) -> None:
    root, trunk = await chain(database, tenant, 40 * DAY, 39 * DAY)
    for age in (38, 37):
        await store_aged(database, tenant, DAY * age, parent=trunk)
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 2
    assert await stored_ids(database, tenant) == {root, trunk}
    assert await sweep.delete_responses(database, KEEP, rows_max=MANY) == 2


async def test_logs_in_the_default_partition_expire_by_tenant(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await own(database, other_tenant, log_retention_s=3 * 86_400)
    await store_aged(database, tenant, 2 * DAY, log_rows=3)
    kept = await store_aged(database, tenant, 2 * DAY, ended=HOUR)
    other = await store_aged(database, other_tenant, 2 * DAY)
    await store_aged(database, other_tenant, 4 * DAY)
    assert (
        await sweep.delete_logs(database, KEEP, rows_max=MANY)
        + (await sweep.delete_logs(database, KEEP, rows_max=MANY))
        == 5
    )
    assert await logged_ids(database, tenant) == {kept}
    assert await logged_ids(database, other_tenant) == {other}
    assert len(await stored_ids(database, tenant)) == 2


@pytest.mark.slow
async def test_a_tenant_with_less_time_loses_rows_from_the_partitions_of_all(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await sweep.make_partitions(database, day_of(2 * HOUR), 1)
    await own(database, other_tenant, log_retention_s=3600)
    kept = await store_aged(database, tenant, 2 * HOUR)
    await store_aged(database, other_tenant, 2 * HOUR, log_rows=3)
    late = await store_aged(database, other_tenant, 2 * HOUR, ended=timedelta(minutes=30))
    assert await sweep.delete_logs(database, KEEP, rows_max=2) == 2
    assert await sweep.delete_logs(database, KEEP, rows_max=2) == 1
    assert await sweep.delete_logs(database, KEEP, rows_max=2) == 0
    assert await logged_ids(database, tenant) == {kept}
    assert await logged_ids(database, other_tenant) == {late}


async def test_logs_that_their_partition_takes_along_are_not_deleted_one_by_one(
    database: Database, tenant: TenantId
) -> None:
    await sweep.make_partitions(database, day_of(2 * DAY), 0)
    await store_aged(database, tenant, 2 * DAY)
    assert await sweep.delete_logs(database, KEEP, rows_max=MANY) == 0
    assert await count(database, tenant, "events") == 2


async def test_a_log_whose_response_is_gone_goes_too(database: Database, tenant: TenantId) -> None:
    uuid = await store_aged(database, tenant, HOUR)
    async with database.transaction(tenant) as connection:
        log = await all_rows(connection, "events")
    short = Retention.model_construct(
        log_s=86_400, response_s=60, idempotency_key_s=60, traces_s=60
    )
    assert await sweep.delete_responses(database, short, rows_max=MANY) == 1
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "events", *(dict(row) for row in log))
    assert await logged_ids(database, tenant) == {uuid}
    assert await sweep.delete_logs(database, KEEP, rows_max=MANY) == len(log)


async def test_idempotency_keys_expire_and_their_responses_stay(
    database: Database, tenant: TenantId
) -> None:
    uuid = await store_aged(database, tenant, 2 * DAY)
    for age in (2 * DAY, 2 * DAY, 2 * DAY, HOUR):
        await store_key(database, tenant, uuid, age)
    assert await sweep.delete_expired("idempotency_keys", database, KEEP, rows_max=2) == 2
    assert await sweep.delete_expired("idempotency_keys", database, KEEP, rows_max=2) == 1
    assert await sweep.delete_expired("idempotency_keys", database, KEEP, rows_max=2) == 0
    assert await count(database, tenant, "idempotency_keys") == 1
    assert await stored_ids(database, tenant) == {uuid}


@pytest.mark.slow
async def test_processes_that_delete_at_once_delete_everything_once(
    database: Database, tenant: TenantId
) -> None:
    for _ in range(20):
        await store_aged(database, tenant, 31 * DAY)

    async def remove() -> int:
        return await sweep.delete_responses(database, KEEP, rows_max=3)

    deleted = 0
    while await stored_ids(database, tenant):
        deleted += sum(await asyncio.gather(*(remove() for _ in range(3))))
    assert deleted == 20
    assert await count(database, tenant, "events") == 0


async def test_nothing_is_deleted_beside_another_process(
    database: Database, tenant: TenantId
) -> None:
    uuid = await store_aged(database, tenant, 31 * DAY)
    await store_key(database, tenant, uuid, 2 * DAY)
    keys = partial(sweep.delete_expired, "idempotency_keys")
    every = (sweep.delete_responses, sweep.delete_logs, keys)
    async with database.runs_transaction() as connection:
        assert await sweep.is_alone(connection)
        for delete in every:
            assert await delete(database, KEEP, rows_max=MANY) == 0
    assert [await delete(database, KEEP, rows_max=MANY) for delete in every] == [1, 0, 0]


@pytest.mark.parametrize(
    ("days", "gaps"),
    [
        ([], [(date.min, date.max)]),
        (
            [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 4)],
            [
                (date.min, date(2026, 1, 1)),
                (date(2026, 1, 3), date(2026, 1, 4)),
                (date(2026, 1, 5), date.max),
            ],
        ),
    ],
)
def test_gaps_are_the_days_without_a_partition(
    days: list[date], gaps: list[tuple[date, date]]
) -> None:
    assert sweep._gaps(days) == gaps
