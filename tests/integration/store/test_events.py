from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import ids
from gateway.store import claims, events, responses
from gateway.store.claims import Claim, LogHead
from gateway.store.events import ROW_BYTES, SHORT_ROW_BYTES, SHORT_ROWS_MIN, LogBatch, LogRow
from gateway.store.postgres.statements import Statement
from tests.fakes.stored import CREATED, durable_response
from tests.fakes.unsealed_only import plain_only

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

DAY = CREATED.date()
TAKE_OVER = Statement("UPDATE responses SET epoch = epoch + 1 WHERE id = :uuid")
IS_ANYBODY_WAITING = Statement("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

LOCK_FREE = Statement(
    "SELECT id FROM responses WHERE id = ANY(CAST(:uuids AS uuid[])) FOR NO KEY UPDATE SKIP LOCKED"
)


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def begin(database: Database, tenant: TenantId, *, uuid: UUID | None = None) -> Claim:
    """A claim on a response whose log is empty."""
    new = replace(durable_response(uuid=uuid, owner="me"), entries=None)
    await responses.insert(database, tenant, new)
    return Claim(tenant, new.uuid, 1)


def parcel(claim: Claim, first_entry: int, entries: bytes = b".", *, count: int = 1) -> LogBatch:
    return LogBatch(claim, DAY, first_entry, count, entries)


async def read(
    database: Database, claim: Claim, *, from_entry: int = 0, bytes_max: int = 2**40
) -> list[LogRow]:
    return await events.read(
        database, claim.tenant_id, claim.uuid, DAY, from_entry=from_entry, bytes_max=bytes_max
    )


async def head(database: Database, claim: Claim) -> LogHead:
    return (await claims.heads(database, [(claim.tenant_id, claim.uuid)]))[claim.uuid]


async def test_what_is_appended_is_read_in_order(database: Database, tenant: TenantId) -> None:
    claim = await begin(database, tenant)
    assert await events.append(database, [parcel(claim, 0, b"ab", count=2)]) == {claim.uuid}
    assert await events.append(database, [parcel(claim, 2, b"c")]) == {claim.uuid}
    assert await read(database, claim) == [LogRow(0, 2, b"ab"), LogRow(2, 1, b"c")]
    assert await head(database, claim) == LogHead(1, 3, "in_progress")


async def test_parcels_of_many_tenants_are_committed_together(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    held = [await begin(database, who) for who in (tenant, other_tenant, tenant)]
    stale = replace(await begin(database, tenant), epoch=9)
    parcels = [parcel(claim, 0, claim.uuid.bytes) for claim in [*held, stale]]
    assert await events.append(database, parcels) == {claim.uuid for claim in held}
    for claim in held:
        assert await read(database, claim) == [LogRow(0, 1, claim.uuid.bytes)]
    assert await read(database, stale) == []


@pytest.mark.parametrize("epoch", [0, 2])
async def test_a_parcel_of_another_epoch_is_fenced_off(
    database: Database, tenant: TenantId, epoch: int
) -> None:
    claim = await begin(database, tenant)
    stale = replace(claim, epoch=epoch)
    assert await events.append(database, [parcel(stale, 0)]) == frozenset()
    assert await read(database, claim) == []


async def test_a_parcel_that_would_leave_a_gap_or_repeat_is_fenced_off(
    database: Database, tenant: TenantId
) -> None:
    claim = await begin(database, tenant)
    assert await events.append(database, [parcel(claim, 1)]) == frozenset()
    await events.append(database, [parcel(claim, 0)])
    assert await events.append(database, [parcel(claim, 0)]) == frozenset()
    assert await read(database, claim) == [LogRow(0, 1, b".")]


async def test_a_response_that_is_not_running_or_unknown_takes_no_parcel(
    database: Database, tenant: TenantId
) -> None:
    queued = durable_response()
    await responses.insert(database, tenant, queued)
    unknown = Claim(tenant, ids.new_uuid(), 1)
    parcels = [parcel(Claim(tenant, queued.uuid, 0), 1), parcel(unknown, 0)]
    assert await events.append(database, parcels) == frozenset()
    assert await events.append(database, []) == frozenset()


@asynccontextmanager
async def waiting_append(
    connection: Connection, database: Database, parcels: list[LogBatch]
) -> AsyncIterator[asyncio.Task[frozenset[UUID]]]:
    """Inside, an append waits for the transaction of `connection`, which took the first over."""
    await connection.execute(TAKE_OVER, {"uuid": parcels[0].claim.uuid})
    append = asyncio.create_task(events.append(database, parcels))
    while not await connection.scalar(IS_ANYBODY_WAITING):
        assert not append.done()
    yield append


async def test_a_takeover_that_commits_while_an_append_waits_fences_it_off(
    database: Database, tenant: TenantId
) -> None:
    claim, untouched = await begin(database, tenant), await begin(database, tenant)
    parcels = [parcel(claim, 0), parcel(untouched, 0)]
    async with (
        database.runs_transaction() as connection,
        waiting_append(connection, database, parcels) as append,
    ):
        pass
    assert await append == {untouched.uuid}
    assert await read(database, claim) == []
    assert await head(database, claim) == LogHead(2, 0, "in_progress")


async def test_a_takeover_that_is_undone_lets_the_append_through(
    database: Database, tenant: TenantId
) -> None:
    claim = await begin(database, tenant)
    async with (
        database.runs_transaction() as connection,
        waiting_append(connection, database, [parcel(claim, 0)]) as append,
    ):
        await connection.script("ROLLBACK")
    assert await append == {claim.uuid}
    assert await head(database, claim) == LogHead(1, 1, "in_progress")


async def append_to_all(database: Database, held: list[Claim]) -> object:
    return await events.append(database, [parcel(claim, 0) for claim in held])


async def renew_all(database: Database, held: list[Claim]) -> object:
    return await claims.heartbeat(database, "me", held, lease_s=600)


@pytest.mark.parametrize("work", [append_to_all, renew_all, claims.release])
async def test_heads_are_locked_in_one_order_so_that_nobody_waits_in_a_circle(
    database: Database,
    tenant: TenantId,
    work: Callable[[Database, list[Claim]], Coroutine[None, None, object]],
) -> None:
    held = sorted([await begin(database, tenant) for _ in range(5)], key=lambda claim: claim.uuid)
    uuids = [claim.uuid for claim in held]
    async with database.runs_transaction() as connection:
        await connection.execute(LOCK_FREE, {"uuids": uuids[:1]})
        waiting = asyncio.create_task(work(database, held[::-1]))
        while not await connection.scalar(IS_ANYBODY_WAITING):
            assert not waiting.done()
        assert sorted(await connection.scalars(LOCK_FREE, {"uuids": uuids})) == uuids
    await waiting


async def test_a_log_is_read_from_the_row_that_holds_the_entry(
    database: Database, tenant: TenantId
) -> None:
    claim = await begin(database, tenant)
    rows = [LogRow(0, 2, b"ab"), LogRow(2, 3, b"cde"), LogRow(5, 1, b"f")]
    for row in rows:
        await events.append(
            database, [parcel(claim, row.first_entry, row.entries, count=row.count)]
        )
    starts = [0, 0, 1, 1, 1, 2]
    for entry, start in enumerate(starts):
        assert await read(database, claim, from_entry=entry) == rows[start:]
    # Beyond the head the reader gets the last row again, and drops what it has.
    assert await read(database, claim, from_entry=6) == rows[2:]


async def test_rows_of_one_version_that_follow_on_each_other_are_read_as_one(
    database: Database, tenant: TenantId
) -> None:
    claim = await begin(database, tenant)
    parts = [b"\x01a", b"\x01bc", b"\x03d", b"\x01e"]
    for first, part in zip([0, 1, 3, 4], parts, strict=True):
        await events.append(database, [parcel(claim, first, part, count=len(part) - 1)])
    async with database.transaction(tenant) as connection:
        await events.add(connection, claim, CREATED, LogRow(9, 1, b"\x01z"))
    rest = [LogRow(3, 1, b"\x03d"), LogRow(4, 1, b"\x01e"), LogRow(9, 1, b"\x01z")]
    assert await read(database, claim) == [LogRow(0, 3, b"\x01abc"), *rest]
    assert await read(database, claim, from_entry=2) == [LogRow(1, 2, b"\x01bc"), *rest]


@pytest.mark.parametrize(("bytes_max", "rows"), [(1, 1), (22, 1), (23, 2), (44, 2), (999, 3)])
@plain_only("bounds are of what is stored")
async def test_reading_stops_with_the_row_that_reaches_the_bound(
    database: Database, tenant: TenantId, bytes_max: int, rows: int
) -> None:
    assert ROW_BYTES == 20
    claim = await begin(database, tenant)
    for number in range(3):
        await events.append(database, [parcel(claim, number, b"%d." % number)])
    assert len(await read(database, claim, bytes_max=bytes_max)) == rows


@plain_only("bounds are of what is stored")
async def test_a_log_read_in_pages_is_the_whole_log(database: Database, tenant: TenantId) -> None:
    claim = await begin(database, tenant)
    for number in range(7):
        await events.append(database, [parcel(claim, 3 * number, b"." * number, count=3)])
    pages: list[LogRow] = []
    entry = 0
    while page := [
        row
        for row in await read(database, claim, from_entry=entry, bytes_max=150)
        if row.first_entry >= entry
    ]:
        pages += page
        entry = page[-1].first_entry + page[-1].count
    assert pages == await read(database, claim)
    assert entry == 21


@pytest.mark.parametrize(("hours", "day"), [(0, 20), (1, 19), (-1, 20), (-2, 21)])
def test_the_day_of_a_log_is_that_of_utc(hours: int, day: int) -> None:
    zone = timezone(timedelta(hours=hours))
    hour = 0 if hours > 0 else 22
    assert events.day_of(datetime(2026, 11, 20, hour, tzinfo=zone)) == date(2026, 11, day)


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from(b"111112"), st.integers(0, 70)),
        max_size=12,
    ),
    from_entry=st.integers(0, 16),
)
async def test_a_long_page_joins_rows_as_a_short_one_does(
    database: Database, tenant: TenantId, rows: list[tuple[int, int, int]], from_entry: int
) -> None:
    """Whatever is missing, in what version it is packed, and however long a row is."""
    claim = await begin(database, tenant)
    first_entry = 0
    for missing, version, size in rows:
        first_entry += missing
        await insert_row(database, claim, LogRow(first_entry, 1, bytes([version]) + b"." * size))
        first_entry += 1
    bound = (ROW_BYTES + SHORT_ROW_BYTES) * SHORT_ROWS_MIN
    long = await read(database, claim, from_entry=from_entry, bytes_max=bound)
    short = await read(database, claim, from_entry=from_entry, bytes_max=bound - 1)
    assert short == long


async def insert_row(database: Database, claim: Claim, row: LogRow) -> None:
    """Whether it can follow on what there is, or not."""
    async with database.transaction(claim.tenant_id) as connection:
        await events.add(connection, claim, CREATED, row)
