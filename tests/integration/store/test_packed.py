"""What a history is read as, beside what was written: the same items, whatever is in them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.protocol.context_item import ContextItem
from gateway.store import messages, responses
from gateway.store.messages import NeededJson
from tests.fakes.stored import new_response, stored_items
from tests.fakes.unsealed_only import plain_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.packing import PackedItems
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

PLAIN = ContextItem("message", "msg_1", b"{}", "user", ids=array("I", [1, 200_000, 2**32 - 1]))
LATIN = ContextItem("message", "msg_é\n", b'{"a":"\xff"}', "assistant", "commentary")
BROKEN = ContextItem("message", "\ud800", b"", "assistant", "final_answer", ids=array("I"))
CALL = ContextItem("function_call", "fc_1", b"{}", call_id="c 1", name="näme", complete=False)
OUTPUT = ContextItem("function_call_output", "fo_1", b"{}", call_id="", ids=array("I", [7]))
THOUGHT = ContextItem("reasoning", "rs_1", b"\x00", ids=array("I", [9]))
EVERY = (PLAIN, LATIN, BROKEN, CALL, OUTPUT, THOUGHT)


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def read(database: Database, tenant: TenantId, items: Sequence[ContextItem]) -> PackedItems:
    new = new_response()
    await responses.insert(database, tenant, new)
    async with database.transaction(tenant) as connection:
        await messages.add(connection, tenant, new.uuid, stored_items(items, []))
    found = await messages.history(database, tenant, new.uuid, depth_max=9, items_max=9)
    assert found is not None
    return found.items


@pytest.mark.parametrize(
    "items", [(), (PLAIN,), (LATIN,), (BROKEN,), (CALL, OUTPUT), (OUTPUT, THOUGHT, PLAIN), EVERY]
)
async def test_items_are_read_as_they_were_written(
    database: Database, tenant: TenantId, items: tuple[ContextItem, ...]
) -> None:
    found = await read(database, tenant, items)
    assert tuple(found) == items
    assert len(found) == len(items)


@plain_only("sizes are those of what is stored")
async def test_packed_items_are_a_sequence_and_are_made_once(
    database: Database, tenant: TenantId
) -> None:
    found = await read(database, tenant, EVERY)
    assert found.json_bytes == sum(len(one.json) for one in EVERY)
    assert (found[0], found[-1], found[1:3]) == (PLAIN, THOUGHT, (LATIN, BROKEN))
    assert found[0] is next(iter(found))


async def test_the_json_of_items_that_have_ids_is_not_read_where_nobody_needs_it(
    database: Database, tenant: TenantId
) -> None:
    system = ContextItem("message", "msg_2", b"{'s'}", "system", ids=array("I", [1]))
    new = new_response()
    await responses.insert(database, tenant, new)
    async with database.transaction(tenant) as connection:
        items = stored_items([PLAIN, LATIN, system], [])
        await messages.add(connection, tenant, new.uuid, items)
    found = await messages.history(
        *(database, tenant, new.uuid), depth_max=9, items_max=9, needed=NeededJson(with_all=False)
    )
    assert found is not None
    assert [one.json for one in found.items] == [b"", LATIN.json, system.json]


async def test_nothing_is_found_of_an_unknown_response(
    database: Database, tenant: TenantId
) -> None:
    found = await messages.history(database, tenant, ids.new_uuid(), depth_max=9, items_max=9)
    assert found is None


@pytest.mark.parametrize("items", [(PLAIN,), (OUTPUT, THOUGHT, PLAIN), EVERY])
async def test_the_first_items_and_all_ids_are_known_without_the_others(
    database: Database, tenant: TenantId, items: tuple[ContextItem, ...]
) -> None:
    found = await read(database, tenant, items)
    for _ in range(2):
        assert found.item_ids() == {one.item_id for one in items}
        assert found.named({"unknown"}) == ()
        assert found.named({items[-1].item_id, "unknown"}) == items[-1:]
        assert [found.first(count) for count in range(len(items) + 1)] == [
            items[:count] for count in range(len(items) + 1)
        ]
        assert tuple(found) == items


async def test_columns_say_what_items_with_ids_are(database: Database, tenant: TenantId) -> None:
    items = (OUTPUT, THOUGHT, PLAIN)
    columns = (await read(database, tenant, items)).columns()
    assert columns is not None
    starts = columns.starts()
    for at, item in enumerate(items):
        label = columns.labels[columns.names[at]]
        assert label == (item.kind, item.role, item.phase, item.complete)
        assert columns.ids[starts[at] : starts[at + 1]] == item.ids


@pytest.mark.parametrize("items", [(), (PLAIN, LATIN), (CALL,)])
async def test_there_are_no_columns_of_items_without_ids(
    database: Database, tenant: TenantId, items: tuple[ContextItem, ...]
) -> None:
    assert (await read(database, tenant, items)).columns() is None


async def test_there_are_no_columns_of_items_that_were_made(
    database: Database, tenant: TenantId
) -> None:
    found = await read(database, tenant, (PLAIN,))
    assert tuple(found) == (PLAIN,)
    assert found.columns() is None
