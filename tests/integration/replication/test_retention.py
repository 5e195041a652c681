from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import StoreUnavailable
from gateway.retention import sweep
from gateway.retention.sweep import DAYS_AHEAD, Housekeeping, RetentionReport
from gateway.settings.sections import Retention
from gateway.store import tenants
from gateway.store.migration.migrate import upgrade
from gateway.store.postgres.database import Database
from gateway.store.schema import APP_ROLE, RUNS_ROLE
from tests.conftest import new_tenant, opened
from tests.fakes.aged import DAY, day_of, logged_ids, store_aged, store_key, store_span, stored_ids
from tests.fakes.logs import captured_logs
from tests.fakes.rows import count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

KEEP = Retention.model_construct(
    log_s=86_400, response_s=30 * 86_400, idempotency_key_s=86_400, traces_s=30 * 86_400
)
LOGGER = "gateway.retention.sweep"


def rounds(database: Database, *, interval_s: float = 3600, batches_max: int = 100) -> Housekeeping:
    return Housekeeping(
        database,
        KEEP,
        interval_s=interval_s,
        batch_rows_max=2,
        batches_max=batches_max,
        today=lambda: datetime.now(UTC).date(),
    )


@asynccontextmanager
async def running(one: Housekeeping) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(one.run())
        yield
        task.cancel()


async def days(database: Database) -> list[object]:
    async with database.owner_transaction() as connection:
        return list(await sweep.partition_days(connection))


@pytest.mark.slow
async def test_a_round_does_everything_and_reports_it(database: Database, tenant: TenantId) -> None:
    await sweep.make_partitions(database, day_of(3 * DAY), 0)
    kept = await store_aged(database, tenant, 3 * DAY)
    for _ in range(5):
        await store_aged(database, tenant, 31 * DAY)
        await store_key(database, tenant, kept, 2 * DAY)
    await store_aged(database, tenant, 4 * DAY, log_rows=3)
    for age in (29 * DAY, *[31 * DAY] * 3):
        await store_span(database, tenant, age)
    with captured_logs(of=LOGGER) as logged:
        report = await rounds(database).round()
    removed = {"log_rows": 13, "responses": 5, "idempotency_keys": 5, "traces": 3}
    nothing = dict.fromkeys(sweep.REMOVED, 0)
    assert report == RetentionReport(True, DAYS_AHEAD + 1, 1, 0, nothing | removed)
    assert {event["rule"]: event["count"] for event in logged} == {
        "days of logs": 1,
        "rows of logs": 13,
        "responses": 5,
        "idempotency keys": 5,
        "traces and spans": 3,
    }
    assert kept in await stored_ids(database, tenant)
    assert await logged_ids(database, tenant) == set()
    with captured_logs(of=LOGGER) as logged:
        assert await rounds(database).round() == RetentionReport(True, removed=nothing)
    assert logged == []


@pytest.mark.slow
async def test_a_round_is_bounded(database: Database, tenant: TenantId) -> None:
    for _ in range(5):
        await store_aged(database, tenant, 31 * DAY)
    one = rounds(database, batches_max=2)
    assert [(await one.round()).removed["responses"] for _ in range(3)] == [4, 1, 0]


@pytest.mark.slow
async def test_a_day_in_use_is_reported_and_goes_in_a_later_round(
    database: Database, tenant: TenantId
) -> None:
    await sweep.make_partitions(database, day_of(3 * DAY), 0)
    await store_aged(database, tenant, 3 * DAY)
    one = rounds(database)
    await one.prepare()
    async with database.runs_transaction() as connection:
        assert await sweep.is_alone(connection)
        with captured_logs(of=LOGGER) as logged:
            report = await one.round()
    assert report == RetentionReport(True, days_busy=1, removed=dict.fromkeys(sweep.REMOVED, 0))
    assert [event["count"] for event in logged] == [1]
    assert (await one.round()).days_dropped == 1


async def test_partitions_are_there_soon_after_the_start(database: Database) -> None:
    async with running(rounds(database)), asyncio.timeout(30):
        while len(await days(database)) < DAYS_AHEAD + 1:
            pass


async def test_what_runs_out_of_time_keeps_nothing_else_from_being_removed(
    database: Database, tenant: TenantId, database_url: str
) -> None:
    await tenants.set_policy(database, f"tenant-{tenant}", {"log_retention_s": 3600})
    await store_key(database, tenant, await store_aged(database, tenant, DAY), 2 * DAY)
    hasty = Database(database_url, pool_size_max=1, command_timeout_s=0.2)
    async with database.owner_transaction() as connection:
        await connection.script("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable):
            await rounds(hasty).round()
        assert await count(database, tenant, "idempotency_keys") == 0
    await hasty.close()


@pytest.mark.slow
async def test_rounds_go_on(database: Database, tenant: TenantId) -> None:
    async with running(rounds(database, interval_s=0.001)), asyncio.timeout(30):
        for _ in range(2):
            await store_aged(database, tenant, 31 * DAY)
            while await stored_ids(database, tenant):
                pass


@pytest.mark.slow
async def test_rounds_survive_a_database_that_is_away(
    database: Database, tenant: TenantId, postgres: PostgresServer, database_url: str
) -> None:
    await store_aged(database, tenant, 31 * DAY)
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await postgres.execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
    )
    failed = asyncio.Event()

    with captured_logs(failed.set, of=LOGGER) as logged:
        async with running(rounds(database, interval_s=0.001)), asyncio.timeout(30):
            await failed.wait()
            await postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            while await stored_ids(database, tenant):
                pass
    assert isinstance(logged[0]["error"], StoreUnavailable)


@pytest.mark.slow
@pytest.mark.usefixtures("template")
async def test_an_owner_without_superpowers_can_do_it_all(postgres: PostgresServer) -> None:
    """Row-level security binds this owner, the cascades to items included; no superuser is."""
    owner = "owner_" + ids.new_uuid().hex
    await postgres.execute(f"CREATE ROLE {owner} LOGIN PASSWORD 'secret'")
    await postgres.execute(f"GRANT {APP_ROLE}, {RUNS_ROLE} TO {owner}")
    name = await postgres.create(owner=owner)
    url = postgres.database_url(name, user=owner)
    await upgrade(url)
    async with opened(url) as database:
        tenant = await new_tenant(database)
        await sweep.make_partitions(database, day_of(31 * DAY), 0)
        old = await store_aged(database, tenant, 31 * DAY)
        await store_key(database, tenant, old, 2 * DAY)
        report = await rounds(database).round()
        assert (report.removed["responses"], report.days_made, report.days_dropped) == (
            1,
            DAYS_AHEAD + 1,
            1,
        )
    for table in ("messages", "events", "idempotency_keys"):
        left = await postgres.fetch(f"SELECT FROM {table}", url=postgres.database_url(name))
        assert left == []
    await postgres.drop(name)
    await postgres.execute(f"DROP ROLE {owner}")
