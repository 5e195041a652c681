"""Who may write to a conversation, what it is given, and what a chain that began in it goes on."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from gateway import ids
from gateway.errors import (
    ConversationLocked,
    InvalidRequest,
    PreviousResponseNotFound,
    ResourceNotFound,
)
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.pages import PageParams
from gateway.store import claims, conversations, endings, messages, responses
from gateway.store.postgres.database import Connection, Result
from gateway.store.responses import IdempotencyKey
from tests.fakes.stored import (
    CREATED,
    TERMS,
    durable_response,
    finished,
    item,
    last_row,
    let_time_pass,
    new_response,
    stored_items,
)
from tests.fakes.turns import begin, contents, conversation_of, end

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.store.postgres.statements import Statement
    from gateway.tenancy import TenantId


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def names_in(database: Database, tenant: TenantId, uuid: UUID) -> list[str]:
    return [one.item_id for one in (await contents(database, tenant, uuid)).items]


async def turn(database: Database, tenant: TenantId, uuid: UUID, name: str) -> UUID:
    response = await begin(database, tenant, uuid)
    await end(database, tenant, response, inputs=[f"in-{name}"], outputs=[f"out-{name}"])
    return response


async def test_a_response_is_added_when_it_ends(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant, "first")
    response = await begin(database, tenant, uuid)
    assert (await contents(database, tenant, uuid)).is_locked
    assert await names_in(database, tenant, uuid) == ["first"]
    await end(database, tenant, response, inputs=["in"], outputs=["out-1", "out-2"])
    found = await contents(database, tenant, uuid)
    assert not found.is_locked
    assert tuple(found.items) == tuple(map(item, ("first", "in", "out-1", "out-2")))
    assert found.created_at == CREATED


@pytest.mark.parametrize("status", ["completed", "incomplete"])
async def test_an_answer_is_added_also_if_it_is_not_whole(
    database: Database, tenant: TenantId, status: str
) -> None:
    uuid = await conversation_of(database, tenant)
    await end(database, tenant, await begin(database, tenant, uuid), status, inputs=["in"])
    assert await names_in(database, tenant, uuid) == ["in"]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_what_has_no_answer_leaves_the_conversation_as_it_was(
    database: Database, tenant: TenantId, status: str
) -> None:
    uuid = await conversation_of(database, tenant, "first")
    await end(database, tenant, await begin(database, tenant, uuid), status, inputs=["in"])
    assert await names_in(database, tenant, uuid) == ["first"]
    await turn(database, tenant, uuid, "next")
    assert await names_in(database, tenant, uuid) == ["first", "in-next", "out-next"]


async def test_a_response_without_items_adds_nothing(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant)
    await end(database, tenant, await begin(database, tenant, uuid))
    await turn(database, tenant, uuid, "next")
    assert await names_in(database, tenant, uuid) == ["in-next", "out-next"]


async def test_an_end_that_is_repeated_adds_nothing_twice(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    response = await begin(database, tenant, uuid)
    for _ in range(2):
        await end(database, tenant, response, inputs=["in"])
    assert await names_in(database, tenant, uuid) == ["in"]


async def test_one_writer_at_a_time(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant)
    place = (await contents(database, tenant, uuid)).place
    tries = [begin(database, tenant, uuid, place) for _ in range(8)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    refusals = [result for result in results if isinstance(result, BaseException)]
    assert len(refusals) == 7
    assert all(isinstance(refusal, ConversationLocked) for refusal in refusals)


async def test_who_has_read_too_early_does_not_write(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant, "1")
    for change in (
        turn(database, tenant, uuid, "between"),
        conversations.add_items(database, tenant, uuid, [item("2")], items_max=9),
        conversations.delete_item(database, tenant, uuid, "1"),
    ):
        place = (await contents(database, tenant, uuid)).place
        await change
        with pytest.raises(ConversationLocked):
            await begin(database, tenant, uuid, place)
    place = (await contents(database, tenant, uuid)).place
    await conversations.delete_item(database, tenant, uuid, "never there")
    await conversations.set_metadata(database, tenant, uuid, {"a": "b"})
    await begin(database, tenant, uuid, place)


async def test_a_refused_response_leaves_nothing_behind(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    place = (await contents(database, tenant, uuid)).place
    await begin(database, tenant, uuid, place)
    key = IdempotencyKey(b"hash", b"print", 600)
    late = replace(durable_response(), conversation=place, idempotency=key)
    with pytest.raises(ConversationLocked):
        await responses.insert(database, tenant, late)
    assert await responses.load(database, tenant, late.uuid) is None
    assert await responses.find_key(database, tenant, key.key_hash, ttl_s=600) is None


async def test_an_unknown_conversation_is_not_written_to(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    theirs = await conversation_of(database, other_tenant)
    for uuid in (ids.new_uuid(), theirs):
        assert await conversations.read_contents(database, tenant, uuid, items_max=9) is None
        with pytest.raises(ResourceNotFound):
            await begin(database, tenant, uuid, ConversationPlace(uuid, 0))
    assert not (await contents(database, other_tenant, theirs)).is_locked


async def test_a_writer_that_was_deleted_holds_nothing(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    response = await begin(database, tenant, uuid)
    await responses.delete(database, tenant, response)
    await turn(database, tenant, uuid, "next")
    assert await names_in(database, tenant, uuid) == ["in-next", "out-next"]


async def test_a_response_that_another_replica_ends_is_added(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    place = (await contents(database, tenant, uuid)).place
    new = replace(
        durable_response(owner="gone"), conversation=place, items=stored_items([item("in")], [])
    )
    await responses.insert(database, tenant, new)
    await let_time_pass(database, tenant, seconds=601)
    runs = await claims.claim(database, "other", TERMS, limit=99, take_over=True)
    (claimed,) = [run for run in runs if run.claim.uuid == new.uuid]
    assert (await contents(database, tenant, uuid)).is_locked
    said = replace(stored_items([], [item("out")])[0], position=1)
    row = replace(finished(new.uuid, epoch=claimed.claim.epoch), items=[said], entries=last_row(1))
    await endings.finish(database, tenant, row)
    assert await names_in(database, tenant, uuid) == ["in", "out"]


async def test_a_conversation_that_is_too_long_is_refused(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1", "2", "3")
    with pytest.raises(InvalidRequest) as refused:
        await conversations.read_contents(database, tenant, uuid, items_max=2)
    assert (refused.value.param, refused.value.code) == ("conversation", "invalid_value")


async def history(database: Database, tenant: TenantId, uuid: UUID, **bounds: int) -> list[str]:
    found = await messages.history(
        database,
        tenant,
        uuid,
        depth_max=bounds.get("depth_max", 9),
        items_max=bounds.get("items_max", 99),
    )
    assert found is not None
    return [one.item_id for one in found.items]


async def listed(
    database: Database,
    tenant: TenantId,
    uuid: UUID,
    order: Literal["asc", "desc"] = "asc",
    after: str | None = None,
) -> list[str]:
    page = await messages.input_items(database, tenant, uuid, PageParams(99, after, order=order))
    assert page is not None
    return [line.decode()[7:-2] for line in page.rows]


async def chained(database: Database, tenant: TenantId, parent: UUID) -> UUID:
    new = new_response(parent=parent)
    await responses.insert(database, tenant, new)
    await end(database, tenant, new.uuid, inputs=["in-chain"], outputs=["out-chain"])
    return new.uuid


async def test_a_chain_that_began_in_a_conversation_has_what_was_in_it_then(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1", "2")
    await turn(database, tenant, uuid, "a")
    root = await turn(database, tenant, uuid, "b")
    await turn(database, tenant, uuid, "c")
    leaf = await chained(database, tenant, root)
    before = ["1", "2", "in-a", "out-a"]
    own = ["in-b", "out-b", "in-chain", "out-chain"]
    assert await history(database, tenant, root) == [*before, *own[:2]]
    assert await history(database, tenant, leaf) == [*before, *own]
    assert await listed(database, tenant, root) == [*before, "in-b"]
    assert await listed(database, tenant, leaf) == [*before, *own[:3]]
    assert await listed(database, tenant, leaf, "desc", after="in-a") == ["2", "1"]
    with pytest.raises(InvalidRequest):
        await history(database, tenant, leaf, items_max=7)
    with pytest.raises(InvalidRequest):
        await history(database, tenant, leaf, depth_max=1)
    await conversations.delete_item(database, tenant, uuid, "2")
    assert await history(database, tenant, leaf) == ["1", *before[2:], *own]


async def test_a_chain_says_that_its_conversation_was_deleted(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1")
    leaf = await chained(database, tenant, await turn(database, tenant, uuid, "a"))
    await conversations.delete_conversation(database, tenant, uuid)
    with pytest.raises(PreviousResponseNotFound) as refused:
        await history(database, tenant, leaf)
    assert ids.conversation_id(uuid) in refused.value.message
    assert "deleted" in refused.value.message
    assert await listed(database, tenant, leaf) == ["in-a", "out-a", "in-chain"]


async def test_a_deletion_and_a_writer_exclude_each_other(
    database: Database, tenant: TenantId
) -> None:
    """Whichever is first: the other finds it out, however close they are."""
    for _ in range(10):
        uuid = await conversation_of(database, tenant, "1")
        place = (await contents(database, tenant, uuid)).place
        writer, deleted = await asyncio.gather(
            begin(database, tenant, uuid, place),
            conversations.delete_item(database, tenant, uuid, "1"),
            return_exceptions=True,
        )
        refused = [one for one in (writer, deleted) if isinstance(one, ConversationLocked)]
        assert len(refused) == 1, (writer, deleted)


@contextmanager
def statements() -> Iterator[list[str]]:
    """What this task sends to the database meanwhile; other gateways of the process do, too."""
    sent: list[str] = []
    task = asyncio.current_task()
    execute = Connection.execute

    async def noted(connection: Connection, statement: Statement, *parameters: Any) -> Result:
        if asyncio.current_task() is task:
            sent.append(statement.sql)
        return await execute(connection, statement, *parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "execute", noted)
        yield sent


async def test_a_turn_costs_one_statement_more_than_a_link_of_a_chain(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "1")
    with statements() as of_turn:
        response = await turn(database, tenant, uuid, "a")
    with statements() as of_chain:
        await history(database, tenant, response)
        await chained(database, tenant, response)
    assert len(of_turn) == len(of_chain) + 1, (of_turn, of_chain)


async def test_a_conversation_has_the_state_of_its_last_response(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "a")
    assert (await contents(database, tenant, uuid)).tool_state is None
    for state in (b"first", None, b"second"):
        response = await begin(database, tenant, uuid)
        row = replace(finished(response, [], []), tool_state=state)
        await endings.finish(database, tenant, row)
        found = await contents(database, tenant, uuid)
        assert (found.tool_state, found.is_locked) == (state, False)


async def test_what_a_response_was_accepted_with_stays_whoever_ends_it(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant, "a")
    found = await contents(database, tenant, uuid)
    new = replace(new_response(), conversation=found.place, tool_state=b"before")
    await responses.insert(database, tenant, new)
    assert (await contents(database, tenant, uuid)).tool_state == b"before"
    await endings.finish(database, tenant, finished(new.uuid, [], []))
    assert (await contents(database, tenant, uuid)).tool_state == b"before"
