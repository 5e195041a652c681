"""What a transaction within a project sees, whatever a statement says and whatever ran before."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.protocol.conversation_bodies import Conversation
from gateway.store import conversations, messages, responses
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.tenancy import ProjectId, default_project
from tests.conftest import new_tenant
from tests.fakes.stored import item, new_response, stored_items

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.tenancy import TenantId

ALL = Statement("SELECT id FROM responses")


@pytest.fixture
async def single(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection: whatever begins has what ran before on it."""
    opened = Database(database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    yield opened
    await opened.close()


async def test_each_transaction_sees_its_own_project_whatever_ran_before(single: Database) -> None:
    tenant = await new_tenant(single)
    projects = [default_project(tenant), *(ProjectId(ids.new_uuid()) for _ in range(2))]
    made = {}
    for project in projects:
        named = None if project == default_project(tenant) else project
        made[project] = replace(new_response(), project_id=named)
        await responses.insert(single, tenant, made[project])

    async def seen(database: Database, tenant_id: TenantId, *, in_bulk: bool) -> set[object]:
        begin = database.bulk_transaction if in_bulk else database.transaction
        async with begin(tenant_id) as connection:
            return set(await connection.scalars(ALL))

    for in_bulk in (True, False, True, True, False):
        for project in projects:
            own = await seen(single.within(project), tenant, in_bulk=in_bulk)
            assert own == {made[project].uuid}
            whole = await seen(single, tenant, in_bulk=in_bulk)
            assert whole == {one.uuid for one in made.values()}
    async with single.runs_transaction() as connection:
        assert len(await connection.scalars(ALL)) == len(projects)


async def test_nothing_of_another_project_is_changed_or_planted(single: Database) -> None:
    tenant = await new_tenant(single)
    project, other = (ProjectId(ids.new_uuid()) for _ in range(2))
    theirs = replace(new_response(), project_id=project)
    await responses.insert(single, tenant, theirs)
    view = single.within(other)
    assert await responses.load(view, tenant, theirs.uuid) is None
    assert not await responses.delete(view, tenant, theirs.uuid)
    async with view.transaction(tenant) as connection:
        assert not await connection.count(Statement("UPDATE responses SET model = 'planted'"), {})
    stored = await responses.load(single.within(project), tenant, theirs.uuid)
    assert stored is not None
    assert stored.model == theirs.model


async def test_an_item_is_found_in_the_project_of_its_response_alone(single: Database) -> None:
    tenant = await new_tenant(single)
    project, other = (ProjectId(ids.new_uuid()) for _ in range(2))
    held = stored_items([item("held")], [])
    new = replace(new_response(), project_id=project, items=held)
    await responses.insert(single, tenant, new)
    assert await messages.find_items(single.within(project), tenant, ["held"])
    assert await messages.find_items(single.within(other), tenant, ["held"]) == {}


async def test_an_item_is_found_in_the_project_of_its_conversation_alone(single: Database) -> None:
    tenant = await new_tenant(single)
    project, other = (ProjectId(ids.new_uuid()) for _ in range(2))
    new = Conversation(ids.new_uuid(), datetime.now(UTC), {})
    await conversations.create(single, tenant, new, [item("held")], project_id=project)
    for view, found in ((single.within(project), {"held"}), (single.within(other), set())):
        assert (await conversations.find_items(view, tenant, new.uuid, ["held"])).keys() == found
        assert (await messages.find_items(view, tenant, ["held"])).keys() == found
