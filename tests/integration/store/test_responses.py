from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, insert, select

from gateway import ids
from gateway.errors import StoreConflict
from gateway.protocol.context import ContextItem
from gateway.store import messages, responses, usage
from gateway.store.tables import events
from gateway.store.tables import messages as messages_table
from gateway.store.tables import usage as usage_table
from tests.fakes.stored import (
    COMPLETED,
    CREATED,
    USAGE,
    finished,
    item,
    new_response,
    store_turn,
)

if TYPE_CHECKING:
    from sqlalchemy import Table

    from gateway.store.engine import Database
    from gateway.tenancy import TenantId


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def count(database: Database, tenant: TenantId, table: Table) -> int:
    async with database.transaction(tenant) as connection:
        return await connection.scalar(select(func.count()).select_from(table)) or 0


async def test_a_started_response_is_in_progress_and_has_no_body(
    database: Database, tenant: TenantId
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.body, stored.is_terminal) == ("in_progress", None, False)
    assert (stored.request, stored.created_at, stored.key_id) == (new.request, CREATED, new.key_id)


async def test_an_id_can_be_taken_once(database: Database, tenant: TenantId) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    with pytest.raises(StoreConflict) as caught:
        await responses.insert(database, tenant, new)
    assert caught.value.constraint == "pk_responses"


async def test_finishing_writes_body_items_and_usage_together(
    database: Database, tenant: TenantId
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    end = finished(new.uuid, [item("a")], [item("b")], body=b'{"id":"x"}')
    assert await responses.finish(database, tenant, end)
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.body) == ("completed", b'{"id":"x"}')
    assert (stored.completed_at, stored.is_terminal) == (COMPLETED, True)
    history = await messages.history(database, tenant, new.uuid, depth_max=9, items_max=9)
    assert history is not None
    assert history.items == (item("a"), item("b"))
    async with database.transaction(tenant) as connection:
        line = (await connection.execute(select(usage_table))).one()
    assert (line.input_tokens, line.cached_tokens) == (10, 4)
    assert (line.output_tokens, line.reasoning_tokens) == (7, 3)
    assert (line.key_id, line.model, line.at) == (new.key_id, new.model, COMPLETED)


async def test_an_ended_response_keeps_its_first_end(database: Database, tenant: TenantId) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    first = finished(new.uuid, [item("a")], status="cancelled", body=b"first")
    assert await responses.finish(database, tenant, first)
    assert not await responses.finish(database, tenant, finished(new.uuid, [item("b")]))
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.body) == ("cancelled", b"first")
    assert await count(database, tenant, messages_table) == 1


async def test_of_concurrent_ends_exactly_one_wins(database: Database, tenant: TenantId) -> None:
    new = new_response(status="queued")
    await responses.insert(database, tenant, new)
    ends = [
        finished(new.uuid, [item("a")], status=status)
        for status in ("completed", "cancelled", "failed", "incomplete")
    ]
    won = await asyncio.gather(*[responses.finish(database, tenant, end) for end in ends])
    assert sum(won) == 1
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert stored.status == ends[won.index(True)].status
    assert await count(database, tenant, messages_table) == 1
    assert await count(database, tenant, usage_table) == 1


async def test_nothing_is_written_when_an_item_is_refused(
    database: Database, tenant: TenantId
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    end = finished(new.uuid, [item("a"), item("b")])
    twice = [end.items[0], replace(end.items[1], position=0)]
    with pytest.raises(StoreConflict) as caught:
        await responses.finish(database, tenant, replace(end, items=twice))
    assert caught.value.constraint == "pk_messages"
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert stored.status == "in_progress"


async def test_a_status_that_is_no_end_cannot_finish(database: Database, tenant: TenantId) -> None:
    with pytest.raises(ValueError, match="no end"):
        await responses.finish(database, tenant, finished(ids.new_uuid(), status="queued"))


async def test_a_status_outside_the_vocabulary_is_refused(
    database: Database, tenant: TenantId
) -> None:
    with pytest.raises(StoreConflict) as caught:
        await responses.insert(database, tenant, new_response(status="pending"))
    assert caught.value.constraint == "ck_responses_status"


async def test_nul_and_lone_surrogates_survive(database: Database, tenant: TenantId) -> None:
    odd = "a\x00b\ud83dc\U0010ffff"
    raw = odd.encode("utf-8", "surrogatepass")
    context = ContextItem(
        kind="function_call",
        item_id=odd,
        json=raw,
        call_id=odd,
        name=odd,
        complete=False,
        ids=array("I", [0, 2**32 - 1, 200012]),
    )
    new = replace(new_response(), request=raw)
    await responses.insert(database, tenant, new)
    assert await responses.finish(database, tenant, finished(new.uuid, [context], body=raw))
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.request, stored.body) == (raw, raw)
    assert await messages.find_items(database, tenant, [odd]) == {odd: context}
    page = await messages.input_items(database, tenant, new.uuid, limit=9, order="asc", after=None)
    assert page is not None
    assert page.items == [raw]


async def test_an_item_id_may_be_longer_than_an_index_entry(
    database: Database, tenant: TenantId
) -> None:
    long = item("".join(chr(0x4E00 + place) for place in range(20_000)))
    new = new_response()
    await responses.insert(database, tenant, new)
    assert await responses.finish(database, tenant, finished(new.uuid, [long]))
    assert await messages.find_items(database, tenant, [long.item_id]) == {long.item_id: long}


async def test_deleting_erases_items_and_log_but_not_the_bill(
    database: Database, tenant: TenantId
) -> None:
    uuid = await store_turn(database, tenant, "a")
    kept = await store_turn(database, tenant, "b")
    async with database.transaction(tenant) as connection:
        rows = [
            {
                "tenant_id": tenant,
                "response_id": one,
                "first_entry": 0,
                "day": CREATED.date(),
                "epoch": 1,
                "entry_count": 2,
                "entries": b"..",
            }
            for one in (uuid, kept)
        ]
        await connection.execute(insert(events), rows)
    assert await responses.delete(database, tenant, uuid)
    assert await responses.load(database, tenant, uuid) is None
    assert await count(database, tenant, messages_table) == 2
    assert await count(database, tenant, events) == 1
    assert await count(database, tenant, usage_table) == 2
    assert not await responses.delete(database, tenant, uuid)


async def test_a_deleted_response_cannot_finish(database: Database, tenant: TenantId) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    assert await responses.delete(database, tenant, new.uuid)
    assert not await responses.finish(database, tenant, finished(new.uuid, [item("a")]))
    assert await count(database, tenant, messages_table) == 0
    assert await count(database, tenant, usage_table) == 0


async def test_an_unstored_response_is_metered_once(database: Database, tenant: TenantId) -> None:
    line = usage.UsageLine(ids.new_uuid(), ids.new_uuid(), "gpt-oss-20b", COMPLETED, USAGE)
    await usage.record(database, tenant, line)
    await usage.record(database, tenant, line)
    assert await count(database, tenant, usage_table) == 1
