from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.entries import Queued, unpack
from gateway.errors import RateLimited, StoreConflict
from gateway.protocol.context_item import ContextItem
from gateway.protocol.pages import PageParams
from gateway.store import claims, endings, events, messages, responses, usage_lines
from tests.fakes.rows import add_rows, count
from tests.fakes.stored import (
    COMPLETED,
    CREATED,
    USAGE,
    durable_response,
    finished,
    item,
    new_response,
    store_turn,
    stored_items,
)

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def test_a_started_response_is_in_progress_and_has_no_body(
    database: Database, tenant: TenantId
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.body, stored.is_terminal) == ("in_progress", None, False)
    assert (stored.request, stored.created_at, stored.key_id) == (new.request, CREATED, new.key_id)


async def test_a_durable_response_is_stored_with_all_that_another_process_needs(
    database: Database, tenant: TenantId
) -> None:
    new = replace(durable_response(), items=stored_items([item("in")], []))
    await responses.insert(database, tenant, new)
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.epoch, stored.next_entry) == ("queued", 0, 1)
    assert (stored.durable, stored.streamed, stored.is_held) == (True, True, False)
    assert (stored.plan, stored.day) == (new.plan, CREATED.date())
    rows = await events.read(database, tenant, new.uuid, stored.day, bytes_max=99)
    assert [(row.first_entry, row.count, unpack(row.entries)) for row in rows] == [
        (0, 1, [Queued()])
    ]
    page = await messages.input_items(database, tenant, new.uuid, PageParams(9))
    assert page is not None
    assert page.rows == [item("in").json]


async def test_a_response_with_an_owner_is_claimed_from_the_start(
    database: Database, tenant: TenantId
) -> None:
    new = durable_response(owner="me", lease_s=600)
    await responses.insert(database, tenant, new)
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.status, stored.epoch, stored.is_held) == ("in_progress", 1, True)
    claim = claims.Claim(tenant, new.uuid, 1)
    assert await claims.heartbeat(database, "me", [claim], lease_s=0) == {new.uuid}
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert not stored.is_held


@pytest.mark.parametrize("change", [{"owner": "me"}, {"lease_s": 10.0}], ids=str)
def test_an_owner_without_a_lease_is_a_mistake(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs a lease"):
        replace(durable_response(), **change)


async def test_a_full_queue_refuses_one_more_and_stores_nothing_of_it(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    for _ in range(2):
        await responses.insert(database, tenant, replace(durable_response(), queued_max=2))
    refused = replace(durable_response(), queued_max=2)
    with pytest.raises(RateLimited, match="at most 2 may") as caught:
        await responses.insert(database, tenant, refused)
    assert caught.value.code == "rate_limit_exceeded"
    assert await responses.load(database, tenant, refused.uuid) is None
    await responses.insert(database, tenant, durable_response(owner="not queued"))
    await responses.insert(database, other_tenant, refused)


async def test_an_id_can_be_taken_once(database: Database, tenant: TenantId) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    with pytest.raises(StoreConflict) as caught:
        await responses.insert(database, tenant, new)
    assert caught.value.constraint == "pk_responses"


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
    await endings.finish(database, tenant, finished(new.uuid, [context], body=raw))
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert (stored.request, stored.body) == (raw, raw)
    assert await messages.find_items(database, tenant, [odd]) == {odd: context}
    page = await messages.input_items(database, tenant, new.uuid, PageParams(9))
    assert page is not None
    assert page.rows == [raw]


async def test_an_item_id_may_be_longer_than_an_index_entry(
    database: Database, tenant: TenantId
) -> None:
    long = item("".join(chr(0x4E00 + place) for place in range(20_000)))
    new = new_response()
    await responses.insert(database, tenant, new)
    await endings.finish(database, tenant, finished(new.uuid, [long]))
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
        await add_rows(connection, "events", *rows)
    assert await responses.delete(database, tenant, uuid)
    assert await responses.load(database, tenant, uuid) is None
    assert await count(database, tenant, "messages") == 2
    assert await count(database, tenant, "events") == 1
    assert await count(database, tenant, "usage") == 2
    assert not await responses.delete(database, tenant, uuid)


async def test_an_unstored_response_is_metered_once(database: Database, tenant: TenantId) -> None:
    line = usage_lines.UsageLine(ids.new_uuid(), ids.new_uuid(), "gpt-oss-20b", COMPLETED, USAGE)
    for _ in range(2):
        await usage_lines.record_all(database, [(tenant, line)])
    assert await count(database, tenant, "usage") == 1
