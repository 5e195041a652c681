from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import pytest

from gateway import ids
from gateway.errors import ConversationLocked, InvalidRequest
from gateway.protocol.conversation_bodies import Conversation
from gateway.protocol.pages import PageParams
from gateway.store import conversations, messages
from tests.fakes.stored import item
from tests.fakes.turns import begin, conversation_of, end

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def listed(
    database: Database,
    tenant: TenantId,
    uuid: UUID,
    *,
    limit: int = 100,
    order: Literal["asc", "desc"] = "asc",
    after: str | None = None,
) -> tuple[list[str], bool]:
    page = await conversations.list_items(
        database, tenant, uuid, PageParams(limit, after, order=order)
    )
    assert page is not None
    return [line.decode()[7:-2] for line in page.rows], page.has_more


async def add(database: Database, tenant: TenantId, uuid: UUID, *names: str) -> bool:
    return await conversations.add_items(
        database, tenant, uuid, [item(name) for name in names], items_max=100
    )


async def test_a_conversation_is_found_as_it_was_made(database: Database, tenant: TenantId) -> None:
    made = Conversation(ids.new_uuid(), datetime.now(UTC), {"a": "\u0000b"})
    await conversations.create(database, tenant, made, [])
    assert await conversations.load(database, tenant, made.uuid) == made
    changed = await conversations.set_metadata(database, tenant, made.uuid, {"c": "d"})
    assert changed == Conversation(made.uuid, made.created_at, {"c": "d"})
    assert await conversations.load(database, tenant, made.uuid) == changed
    assert await listed(database, tenant, made.uuid) == ([], False)


async def test_items_stand_in_the_order_in_which_they_came(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1", "2")
    assert await add(database, tenant, uuid, "3", "4")
    assert await listed(database, tenant, uuid) == (["1", "2", "3", "4"], False)
    assert await listed(database, tenant, uuid, order="desc") == (["4", "3", "2", "1"], False)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_list_is_read_page_by_page(
    database: Database, tenant: TenantId, order: Literal["asc", "desc"]
) -> None:
    names = ["1", "2", "3", "4", "5"]
    uuid = await conversation_of(database, tenant, *names)
    walked: list[str] = []
    has_more, after = True, None
    while has_more:
        page, has_more = await listed(database, tenant, uuid, limit=2, order=order, after=after)
        walked += page
        after = page[-1]
    assert walked == (names if order == "asc" else names[::-1])
    assert await listed(database, tenant, uuid, order=order, after=after) == ([], False)


async def test_a_page_after_an_unknown_item_is_refused(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1")
    with pytest.raises(InvalidRequest) as refused:
        await listed(database, tenant, uuid, after="2")
    assert refused.value.param == "after"


async def test_one_item_is_found_and_deleted(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant, "1", "2", "3")
    found = await conversations.find_item(database, tenant, uuid, "2")
    assert found is not None
    assert found.json == item("2").json
    left = await conversations.delete_item(database, tenant, uuid, "2")
    assert left == (await conversations.load(database, tenant, uuid), True)
    assert await conversations.find_item(database, tenant, uuid, "2") == (None,)
    again = await conversations.delete_item(database, tenant, uuid, "2")
    assert again is not None
    assert again[1] is False
    assert await listed(database, tenant, uuid) == (["1", "3"], False)


async def test_an_id_is_taken_once(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant, "1", "2")
    asked = ("2", "3")
    found = await conversations.find_items(database, tenant, uuid, asked)
    assert [(name, one.json) for name, one in found.items()] == [("2", item("2").json)]
    assert await conversations.find_items(database, tenant, uuid, ()) == {}
    with pytest.raises(ConversationLocked):
        await add(database, tenant, uuid, "3", "2")
    assert await listed(database, tenant, uuid) == (["1", "2"], False)


async def test_a_conversation_has_an_end(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant, "1", "2")
    with pytest.raises(InvalidRequest) as refused:
        await conversations.add_items(database, tenant, uuid, [item("3"), item("4")], items_max=3)
    assert "at most 3 items" in refused.value.message
    await conversations.add_items(database, tenant, uuid, [item("3")], items_max=3)


async def test_items_that_are_added_at_once_are_all_there(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    names = [f"{number}" for number in range(8)]
    await asyncio.gather(*(add(database, tenant, uuid, name) for name in names))
    assert sorted((await listed(database, tenant, uuid))[0]) == names


async def test_a_deleted_conversation_is_gone_with_its_items(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "kept-nowhere")
    assert await conversations.delete_conversation(database, tenant, uuid)
    assert await messages.find_items(database, tenant, ["kept-nowhere"]) == {}
    await is_unknown(database, tenant, uuid)


async def test_nobody_else_sees_a_conversation(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "secret")
    await is_unknown(database, other_tenant, uuid)
    assert await messages.find_items(database, other_tenant, ["secret"]) == {}
    assert await listed(database, tenant, uuid) == (["secret"], False)


async def is_unknown(database: Database, tenant: TenantId, uuid: UUID) -> None:
    """For everything that can be done with a conversation."""
    assert await conversations.load(database, tenant, uuid) is None
    assert await conversations.set_metadata(database, tenant, uuid, {}) is None
    assert not await conversations.delete_conversation(database, tenant, uuid)
    assert not await add(database, tenant, uuid, "1")
    assert await conversations.find_items(database, tenant, uuid, ["secret"]) == {}
    assert await conversations.find_item(database, tenant, uuid, "secret") is None
    assert await conversations.delete_item(database, tenant, uuid, "secret") is None
    page = await conversations.list_items(database, tenant, uuid, PageParams(1))
    assert page is None


@pytest.mark.requirement("conversations.locked")
async def test_while_a_response_will_be_added_nobody_changes_the_items(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1")
    response = await begin(database, tenant, uuid)
    with pytest.raises(ConversationLocked):
        await add(database, tenant, uuid, "2")
    with pytest.raises(ConversationLocked):
        await conversations.delete_item(database, tenant, uuid, "1")
    with pytest.raises(ConversationLocked):
        await conversations.delete_conversation(database, tenant, uuid)
    assert await conversations.set_metadata(database, tenant, uuid, {"a": "b"}) is not None
    assert await listed(database, tenant, uuid) == (["1"], False)
    await end(database, tenant, response, "failed")
    assert await add(database, tenant, uuid, "2")
    assert await conversations.delete_conversation(database, tenant, uuid)


async def test_the_latest_item_of_an_id_is_found(database: Database, tenant: TenantId) -> None:
    earlier = await conversation_of(database, tenant, "once", "twice")
    later = await conversation_of(database, tenant, "twice")
    found = await messages.find_items(database, tenant, ["once", "twice", "never"])
    assert found == {name: item(name) for name in ("once", "twice")}
    await conversations.delete_conversation(database, tenant, later)
    assert await messages.find_items(database, tenant, ["twice"]) == {"twice": item("twice")}
    await conversations.delete_conversation(database, tenant, earlier)
    assert await messages.find_items(database, tenant, ["twice"]) == {}
