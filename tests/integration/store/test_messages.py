from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

from gateway import ids
from gateway.errors import InvalidRequest, PreviousResponseNotFound
from gateway.protocol.pages import PageParams
from gateway.store import endings, messages, responses
from gateway.store.messages import NeededJson
from tests.fakes.stored import CREATED, finished, item, new_response, store_turn

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.protocol.context_item import Kind
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def store_chain(database: Database, tenant: TenantId, *names: str) -> list[UUID]:
    chain: list[UUID] = []
    for name in names:
        parent = chain[-1] if chain else None
        chain.append(await store_turn(database, tenant, name, parent=parent))
    return chain


async def history(
    database: Database, tenant: TenantId, uuid: UUID, *, depth_max: int = 100, items_max: int = 100
) -> messages.StoredHistory | None:
    return await messages.history(database, tenant, uuid, depth_max=depth_max, items_max=items_max)


async def listed(
    database: Database,
    tenant: TenantId,
    uuid: UUID,
    *,
    limit: int = 100,
    order: Literal["asc", "desc"] = "asc",
    after: str | None = None,
) -> tuple[list[str], bool]:
    page = await messages.input_items(database, tenant, uuid, PageParams(limit, after, order=order))
    assert page is not None
    return [line.decode()[7:-2] for line in page.rows], page.has_more


async def test_a_history_is_the_whole_chain_oldest_first(
    database: Database, tenant: TenantId
) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    await store_turn(database, tenant, "fork", parent=chain[0])
    found = await history(database, tenant, chain[-1])
    assert found is not None
    names = [one.item_id for one in found.items]
    assert names == ["in-1", "out-1", "in-2", "out-2", "in-3", "out-3"]
    assert found.items[0] == item("in-1")
    assert (found.status, found.root_created_at) == ("completed", CREATED)


async def test_a_history_ends_at_the_response_asked_for(
    database: Database, tenant: TenantId
) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    found = await history(database, tenant, chain[1])
    assert found is not None
    assert [one.item_id for one in found.items] == ["in-1", "out-1", "in-2", "out-2"]


async def test_responses_without_items_do_not_break_a_chain(
    database: Database, tenant: TenantId
) -> None:
    first = await store_turn(database, tenant, "1")
    second = new_response(parent=first)
    await responses.insert(database, tenant, second)
    third = await store_turn(database, tenant, "3", parent=second.uuid)
    found = await history(database, tenant, third)
    assert found is not None
    assert [one.item_id for one in found.items] == ["in-1", "out-1", "in-3", "out-3"]
    running = await history(database, tenant, second.uuid)
    assert running is not None
    assert running.status == "in_progress"


async def test_an_unknown_response_has_no_history(database: Database, tenant: TenantId) -> None:
    assert await history(database, tenant, ids.new_uuid()) is None


async def test_a_deleted_ancestor_is_named(database: Database, tenant: TenantId) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    assert await responses.delete(database, tenant, chain[0])
    with pytest.raises(PreviousResponseNotFound, match=ids.response_id(chain[0])):
        await history(database, tenant, chain[2])


@pytest.mark.parametrize(("depth_max", "items_max"), [(3, 6), (4, 7)])
async def test_a_history_may_reach_its_bounds(
    database: Database, tenant: TenantId, depth_max: int, items_max: int
) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    found = await history(database, tenant, chain[-1], depth_max=depth_max, items_max=items_max)
    assert found is not None
    assert len(found.items) == 6


@pytest.mark.parametrize(
    ("depth_max", "items_max", "what"), [(2, 100, "2 responses"), (100, 5, "5 items")]
)
async def test_a_history_beyond_a_bound_is_refused_with_the_bound(
    database: Database, tenant: TenantId, depth_max: int, items_max: int, what: str
) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    with pytest.raises(InvalidRequest, match=what) as caught:
        await history(database, tenant, chain[-1], depth_max=depth_max, items_max=items_max)
    assert caught.value.param == "previous_response_id"


async def test_input_items_are_the_context_without_the_own_output(
    database: Database, tenant: TenantId
) -> None:
    chain = await store_chain(database, tenant, "1", "2")
    forwards = ["in-1", "out-1", "in-2"]
    assert await listed(database, tenant, chain[1]) == (forwards, False)
    assert await listed(database, tenant, chain[1], order="desc") == (forwards[::-1], False)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 4, 5])
async def test_pages_of_any_size_make_the_whole_list(
    database: Database, tenant: TenantId, limit: int, order: Literal["asc", "desc"]
) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    whole, _ = await listed(database, tenant, chain[2], order=order)
    seen: list[str] = []
    has_more = True
    while has_more:
        after = seen[-1] if seen else None
        page, has_more = await listed(
            database, tenant, chain[2], limit=limit, order=order, after=after
        )
        seen += page
    assert seen == whole
    assert len(seen) == 5


async def test_an_item_sent_again_is_listed_once_at_its_latest_place(
    database: Database, tenant: TenantId
) -> None:
    first = await store_turn(database, tenant, "1")
    again = new_response(parent=first)
    await responses.insert(database, tenant, again)
    end = finished(again.uuid, [item("in-2"), item("in-1"), item("in-3")])
    await endings.finish(database, tenant, end)
    assert await listed(database, tenant, again.uuid) == (["out-1", "in-2", "in-1", "in-3"], False)
    assert await listed(database, tenant, again.uuid, after="in-1") == (["in-3"], False)


async def test_an_unknown_cursor_is_refused(database: Database, tenant: TenantId) -> None:
    chain = await store_chain(database, tenant, "1", "2")
    for cursor in ("nothing", "out-2"):
        with pytest.raises(InvalidRequest) as caught:
            await listed(database, tenant, chain[1], after=cursor)
        assert caught.value.param == "after"


async def test_a_list_behind_the_last_item_is_empty(database: Database, tenant: TenantId) -> None:
    uuid = await store_turn(database, tenant, "1")
    assert await listed(database, tenant, uuid, after="in-1") == ([], False)


async def test_an_unknown_response_has_no_list(database: Database, tenant: TenantId) -> None:
    page = await messages.input_items(database, tenant, ids.new_uuid(), PageParams(1, "x"))
    assert page is None


async def test_a_list_survives_a_deleted_ancestor(database: Database, tenant: TenantId) -> None:
    chain = await store_chain(database, tenant, "1", "2", "3")
    assert await responses.delete(database, tenant, chain[0])
    assert await listed(database, tenant, chain[2]) == (["in-2", "out-2", "in-3"], False)


async def test_items_are_found_by_id_the_latest_first(database: Database, tenant: TenantId) -> None:
    old = new_response()
    new = new_response()
    newest = item("same").with_ids(item("same").ids[:1])  # type: ignore[index]
    for uuid, one in ((old.uuid, item("same")), (new.uuid, newest)):
        await responses.insert(database, tenant, new_response(uuid=uuid))
        await endings.finish(database, tenant, finished(uuid, [one, item(f"{uuid}")]))
    latest = newest if new.uuid > old.uuid else item("same")
    found = await messages.find_items(database, tenant, ["same", f"{old.uuid}", "nothing"])
    assert found == {"same": latest, f"{old.uuid}": item(f"{old.uuid}")}


async def test_no_ids_find_nothing(database: Database, tenant: TenantId) -> None:
    assert await messages.find_items(database, tenant, []) == {}


async def test_a_history_has_the_state_of_the_last_response_that_used_tools(
    database: Database, tenant: TenantId
) -> None:
    states = [None, b"first", b"second", None]
    chain: list[UUID] = []
    for state in states:
        new = new_response(parent=chain[-1] if chain else None)
        await responses.insert(database, tenant, new)
        end = replace(finished(new.uuid, [], []), tool_state=state)
        await endings.finish(database, tenant, end)
        chain.append(new.uuid)
    found = [await history(database, tenant, uuid) for uuid in chain]
    assert [one and one.tool_state for one in found] == [None, b"first", b"second", b"second"]


async def test_json_comes_with_what_prompts_and_grants_take_it_for(
    database: Database, tenant: TenantId
) -> None:
    kinds: tuple[Kind, ...] = (
        *("message", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    )
    items = [replace(item(f"i{at}"), kind=kind) for at, kind in enumerate(kinds)]
    new = new_response()
    await responses.insert(database, tenant, new)
    await endings.finish(database, tenant, finished(new.uuid, items, []))
    for with_lists, wanted in ((False, kinds[2:]), (True, kinds[1:])):
        found = await messages.history(
            database,
            tenant,
            new.uuid,
            depth_max=9,
            items_max=9,
            needed=NeededJson(with_all=False, with_tool_lists=with_lists),
        )
        assert found is not None
        assert tuple(one.kind for one in found.items if one.json) == wanted
        assert [one.item_id for one in found.items.of_kinds({"mcp_list_tools"})] == ["i1"]
        assert found.items.of_kinds({"web_search_call"}) == ()


async def test_json_comes_with_what_may_be_sent_back(database: Database, tenant: TenantId) -> None:
    kinds: tuple[Kind, ...] = ("message", "function_call", "custom_tool_call_output", "reasoning")
    items = [replace(item(f"i{at}"), kind=kind) for at, kind in enumerate(kinds)]
    new = new_response()
    await responses.insert(database, tenant, new)
    await endings.finish(database, tenant, finished(new.uuid, items, []))
    for repeated, wanted in (((), []), (("i3", "unknown"), ["i3"])):
        found = await messages.history(
            *(database, tenant, new.uuid),
            depth_max=9,
            items_max=9,
            needed=NeededJson(with_all=False, repeated=repeated),
        )
        assert found is not None
        assert [one.item_id for one in found.items if one.json] == wanted
