"""Rows of traces: written again, read back, apart from others', expired."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.protocol.trace_records import TraceRecord
from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store import traces
from tests.fakes.aged import DAY, store_span
from tests.fakes.rows import count

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

KEEP = Retention.model_construct(log_s=1, response_s=1, idempotency_key_s=1, traces_s=30 * 86_400)
TRACE = TraceRecord("trace", "t\0é", "t\0é", b"{}")
SPAN = TraceRecord("span", "t\0é", "s", b'{"a":1}', ids.new_uuid())


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def read(database: Database, tenant: TenantId, *, rows_max: int = 10) -> list[bytes]:
    records = await traces.read(database, tenant, TRACE.trace_id, rows_max=rows_max)
    return [record.json for record in records]


def spans(count: int) -> list[TraceRecord]:
    return [replace(SPAN, record_id=f"s{number}") for number in range(count)]


async def test_a_trace_is_read_before_its_spans(database: Database, tenant: TenantId) -> None:
    plain = replace(SPAN, trace_id="another")
    await traces.put(database, tenant, [SPAN, plain])
    await traces.put(database, tenant, [TRACE])
    trace, span = await traces.read(database, tenant, TRACE.trace_id, rows_max=10)
    assert (trace.kind, trace.record_id, trace.response, trace.json) == (
        "trace",
        TRACE.record_id,
        None,
        b"{}",
    )
    assert (span.kind, span.response, span.json) == ("span", SPAN.response, SPAN.json)
    assert await read(database, tenant, rows_max=1) == [TRACE.json]


async def test_what_comes_again_takes_the_place_of_the_former(
    database: Database, tenant: TenantId
) -> None:
    await traces.put(database, tenant, [SPAN])
    (before,) = await traces.read(database, tenant, SPAN.trace_id, rows_max=10)
    ended = replace(SPAN, json=b"ended", response=None)
    await traces.put(database, tenant, [ended])
    (after,) = await traces.read(database, tenant, SPAN.trace_id, rows_max=10)
    assert (after.json, after.response) == (b"ended", None)
    assert after.received_at > before.received_at


async def test_the_same_ids_of_two_tenants_are_two_records(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await traces.put(database, tenant, [SPAN])
    assert await read(database, other_tenant) == []
    await traces.put(database, other_tenant, [replace(SPAN, json=b"theirs")])
    assert await read(database, tenant) == [SPAN.json]
    assert await read(database, other_tenant) == [b"theirs"]


async def test_many_who_write_the_same_do_not_wait_for_each_other_in_a_circle(
    database: Database, tenant: TenantId
) -> None:
    many = spans(50)
    orders = [many, many[::-1], many[25:] + many[:25], many[::2] + many[1::2]]
    await asyncio.gather(*(traces.put(database, tenant, order) for order in orders * 3))
    assert await count(database, tenant, "traces") == 50


async def test_what_has_not_come_again_for_long_expires(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    kept = await store_span(database, tenant, 29 * DAY)
    for _ in range(3):
        await store_span(database, tenant, 31 * DAY)
    await store_span(database, other_tenant, 31 * DAY)
    removed = [await sweep.delete_expired("traces", database, KEEP, rows_max=3) for _ in range(3)]
    assert removed == [3, 1, 0]
    (left,) = await traces.read(database, tenant, "t", rows_max=10)
    assert left.record_id == kept
    assert await count(database, other_tenant, "traces") == 0


async def test_nothing_expires_twice_at_once(database: Database, tenant: TenantId) -> None:
    await store_span(database, tenant, 31 * DAY)
    async with database.runs_transaction() as connection:
        assert await sweep.is_alone(connection)
        assert await sweep.delete_expired("traces", database, KEEP, rows_max=3) == 0
    assert await sweep.delete_expired("traces", database, KEEP, rows_max=3) == 1
