"""Conversations in a database, and responses that continue them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway import ids
from gateway.protocol.conversation_bodies import Conversation
from gateway.store import conversations, endings, responses
from tests.fakes.stored import CREATED, finished, item, new_response

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.protocol.context_item import ConversationPlace
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


async def conversation_of(database: Database, tenant: TenantId, *names: str) -> UUID:
    """A conversation with items of these names."""
    made = Conversation(ids.new_uuid(), CREATED, {})
    await conversations.create(database, tenant, made, [item(name) for name in names])
    return made.uuid


async def contents(database: Database, tenant: TenantId, uuid: UUID) -> conversations.Contents:
    """All that there is of it."""
    found = await conversations.read_contents(database, tenant, uuid, items_max=1000)
    assert found is not None
    return found


async def begin(
    database: Database, tenant: TenantId, uuid: UUID, place: ConversationPlace | None = None
) -> UUID:
    """A response that continues it, and has not ended; from `place` on, or from where it is."""
    if place is None:
        place = (await contents(database, tenant, uuid)).place
    new = replace(new_response(), conversation=place)
    await responses.insert(database, tenant, new)
    return new.uuid


async def end(
    database: Database,
    tenant: TenantId,
    response: UUID,
    status: str = "completed",
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> None:
    """Its end, with items of these names."""
    row = finished(
        response, [item(name) for name in inputs], [item(name) for name in outputs], status=status
    )
    await endings.finish(database, tenant, row)
