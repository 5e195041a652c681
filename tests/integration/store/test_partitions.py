from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway import ids
from gateway.errors import StoreError
from gateway.retention import sweep
from gateway.retention.sweep import Dropped
from gateway.settings.sections import Retention
from gateway.store import tenants
from gateway.store.postgres.statements import Statement
from tests.fakes.aged import DAY, HOUR, day_of, logged_ids, store_aged
from tests.fakes.rows import add_rows, all_rows

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

LOG_S = 86_400
WAITS_FOR_LOGS = Statement("""
SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'events'::regclass AND NOT granted)
""")
END = Statement("UPDATE responses SET status = 'completed', completed_at = now() WHERE id = :id")


def today() -> date:
    return day_of(timedelta())


async def existing_days(database: Database) -> list[date]:
    async with database.owner_transaction() as connection:
        return await sweep.partition_days(connection)


async def partition_of(database: Database, tenant: TenantId, response: object) -> set[str]:
    query = Statement("SELECT tableoid::regclass::text FROM events WHERE response_id = :response")
    async with database.transaction(tenant) as connection:
        return set(await connection.scalars(query, {"response": response}))


async def test_partitions_are_made_ahead_and_only_once(database: Database) -> None:
    made = await sweep.make_partitions(database, today(), 2)
    assert made == (today(), today() + DAY, today() + 2 * DAY)
    assert await sweep.make_partitions(database, today(), 2) == ()
    assert await sweep.make_partitions(database, today() + DAY, 2) == (today() + 3 * DAY,)
    assert await existing_days(database) == [today() + DAY * ahead for ahead in range(4)]


async def test_rows_go_into_the_partition_of_their_day(
    database: Database, tenant: TenantId
) -> None:
    await sweep.make_partitions(database, today(), 0)
    newest = await store_aged(database, tenant, timedelta())
    before = await store_aged(database, tenant, DAY)
    assert await partition_of(database, tenant, newest) == {f"events_{today():%Y%m%d}"}
    assert await partition_of(database, tenant, before) == {"events_default"}


async def test_a_partition_is_walled_off_like_the_whole(
    database: Database, postgres: PostgresServer, database_url: str
) -> None:
    await sweep.make_partitions(database, today(), 0)
    name = f"events_{today():%Y%m%d}"
    rows = await postgres.fetch(
        "SELECT relname, relrowsecurity, relforcerowsecurity, relacl FROM pg_class"
        f" WHERE relname IN ('events_default', '{name}')",
        url=database_url,
    )
    assert sorted(tuple(row) for row in rows) == [
        (name, True, True, None),
        ("events_default", True, True, None),
    ]
    with pytest.raises(StoreError, match="42501"):
        async with database.runs_transaction() as connection:
            await connection.execute(Statement(f"SELECT FROM {name}"))


async def test_a_day_with_rows_in_the_default_partition_keeps_them_there(
    database: Database, tenant: TenantId
) -> None:
    early = await store_aged(database, tenant, timedelta())
    assert await sweep.make_partitions(database, today(), 1) == (today() + DAY,)
    late = await store_aged(database, tenant, timedelta())
    for response in (early, late):
        assert await partition_of(database, tenant, response) == {"events_default"}


@pytest.mark.slow
async def test_processes_that_prepare_at_once_do_not_fail_each_other(database: Database) -> None:
    made = await asyncio.gather(*(sweep.make_partitions(database, today(), 5) for _ in range(4)))
    days = [day for days in made for day in days]
    assert len(days) == len(set(days))
    await sweep.make_partitions(database, today(), 5)
    assert await existing_days(database) == [today() + DAY * ahead for ahead in range(6)]


async def test_others_append_while_a_partition_is_made(
    database: Database, tenant: TenantId
) -> None:
    await sweep.make_partitions(database, today(), 0)
    row = {
        "tenant_id": tenant, "response_id": ids.new_uuid(), "first_entry": 0, "day": today(),
        "epoch": 1, "entry_count": 1, "entries": b".",
    }  # fmt: skip
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "events", row)
        assert await sweep.make_partitions(database, today(), 1) == (today() + DAY,)


async def with_partition(database: Database, tenant: TenantId, age: timedelta) -> date:
    """The day of a response that old, with its partition."""
    await sweep.make_partitions(database, day_of(age), 0)
    await store_aged(database, tenant, age)
    return day_of(age)


async def test_a_day_goes_when_nobody_may_read_its_logs_any_more(
    database: Database, tenant: TenantId
) -> None:
    old = await with_partition(database, tenant, 3 * DAY)
    recent = await with_partition(database, tenant, DAY)
    await with_partition(database, tenant, timedelta())
    assert await sweep.drop_partitions(database, LOG_S) == Dropped(days=(old,))
    assert await existing_days(database) == [recent, today()]
    assert len(await logged_ids(database, tenant)) == 2
    assert await sweep.drop_partitions(database, LOG_S) == Dropped()


async def test_the_tenant_that_keeps_its_logs_longest_decides(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    day = await with_partition(database, tenant, 3 * DAY)
    name = f"tenant-{other_tenant}"
    await tenants.set_policy(database, name, {"log_retention_s": 5 * 86_400})
    assert await sweep.drop_partitions(database, LOG_S) == Dropped()
    await tenants.set_policy(database, name, {"log_retention_s": 3600})
    assert await sweep.drop_partitions(database, 5 * 86_400) == Dropped()
    assert await sweep.drop_partitions(database, LOG_S) == Dropped(days=(day,))


async def test_a_response_that_ended_lately_keeps_its_day(
    database: Database, tenant: TenantId
) -> None:
    await sweep.make_partitions(database, day_of(3 * DAY), 0)
    await store_aged(database, tenant, 3 * DAY, ended=HOUR)
    assert await sweep.drop_partitions(database, LOG_S) == Dropped()
    assert await sweep.drop_partitions(database, 1800) == Dropped(days=(day_of(3 * DAY),))


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_a_response_that_runs_keeps_its_day(
    database: Database, tenant: TenantId, status: str
) -> None:
    await sweep.make_partitions(database, day_of(3 * DAY), 0)
    running = await store_aged(database, tenant, 3 * DAY, status=status)
    assert await sweep.drop_partitions(database, 1) == Dropped()
    assert await logged_ids(database, tenant) == {running}


async def test_a_response_that_ends_while_its_day_is_looked_at_keeps_it(
    database: Database, tenant: TenantId
) -> None:
    await sweep.make_partitions(database, day_of(3 * DAY), 0)
    running = await store_aged(database, tenant, 3 * DAY, status="in_progress")
    async with asyncio.TaskGroup() as group, database.owner_transaction() as other:
        await other.script("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        dropping = group.create_task(sweep.drop_partitions(database, LOG_S))
        while not (dropping.done() or await other.scalar(WAITS_FOR_LOGS)):
            """It looks at other tables first."""
        async with database.transaction(tenant) as connection:
            await connection.execute(END, {"id": running})
    assert dropping.result() == Dropped()
    assert await logged_ids(database, tenant) == {running}


async def test_a_tenant_that_is_held_keeps_its_day_and_others_lose_theirs_in_it(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    day = await with_partition(database, tenant, 3 * DAY)
    await store_aged(database, other_tenant, 3 * DAY)
    hold = Statement("UPDATE tenants SET held_at = now() WHERE id = :tenant")
    async with database.owner_transaction() as connection:
        await connection.execute(hold, {"tenant": tenant})
    assert await sweep.drop_partitions(database, LOG_S) == Dropped()
    assert not await sweep._drop(database, day, 0.2)
    keep = Retention.model_construct(log_s=LOG_S, response_s=1, idempotency_key_s=1, traces_s=1)
    assert await sweep.delete_logs(database, keep, rows_max=9) == 2
    assert await logged_ids(database, other_tenant) == set()
    assert len(await logged_ids(database, tenant)) == 1
    async with database.owner_transaction() as connection:
        await connection.script("UPDATE tenants SET held_at = NULL")
    assert await sweep.drop_partitions(database, LOG_S) == Dropped(days=(day,))


async def test_a_day_that_is_in_use_is_left_to_a_later_round(
    database: Database, tenant: TenantId
) -> None:
    day = await with_partition(database, tenant, 3 * DAY)
    async with database.transaction(tenant) as connection:
        await all_rows(connection, "events")
        dropped = await sweep.drop_partitions(database, LOG_S, lock_wait_s=0.01)
        assert dropped == Dropped(busy=(day,))
    assert await sweep.drop_partitions(database, LOG_S) == Dropped(days=(day,))


async def test_a_response_that_appeared_since_the_look_at_its_day_keeps_it(
    database: Database, tenant: TenantId
) -> None:
    day = await with_partition(database, tenant, 3 * DAY)
    assert not await sweep._is_needed(database, day, LOG_S)
    running = await store_aged(database, tenant, 3 * DAY, status="in_progress")
    assert not await sweep._drop(database, day, 0.2)
    assert running in await logged_ids(database, tenant)


async def test_nothing_is_made_or_dropped_beside_another_process(
    database: Database, tenant: TenantId
) -> None:
    day = await with_partition(database, tenant, 3 * DAY)
    async with database.runs_transaction() as connection:
        assert await sweep.is_alone(connection)
        assert await sweep.make_partitions(database, today(), 1) == ()
        assert await sweep.drop_partitions(database, LOG_S) == Dropped(busy=(day,))
    assert await sweep.drop_partitions(database, LOG_S) == Dropped(days=(day,))


async def test_nothing_is_left_in_the_session(
    database: Database, tenant: TenantId, database_url: str
) -> None:
    """What a transaction pooler hands to the next one is as it was: role, limits, locks."""
    await with_partition(database, tenant, 3 * DAY)
    await sweep.drop_partitions(database, LOG_S)
    async with database.owner_transaction() as connection:
        await connection.script("ROLLBACK; BEGIN")
        state = await connection.execute(
            Statement(
                "SELECT current_user = session_user, current_setting('lock_timeout'),"
                " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
            )
        )
        assert tuple(state.one()) == (True, "0", 0)


async def test_a_mistake_is_no_lock_in_the_way(
    database: Database, postgres: PostgresServer, database_url: str
) -> None:
    """A table of that name which is no partition needs a person to look at it."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(f"CREATE TABLE events_{today():%Y%m%d} ()")
    finally:
        await connection.close()
    with pytest.raises(StoreError, match="42P07"):
        await sweep.make_partitions(database, today(), 0)
