"""Responses and items as the store takes them, with every field that a test does not care for."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway import ids
from gateway.generation import TokenUsage
from gateway.protocol.context import ContextItem, StoredItem
from gateway.store import responses
from gateway.store.responses import FinishedResponse, NewResponse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.engine import Database
    from gateway.tenancy import TenantId

CREATED = datetime(2026, 11, 20, 23, 59, tzinfo=UTC)
COMPLETED = datetime(2026, 11, 21, 0, 1, tzinfo=UTC)
USAGE = TokenUsage(input_tokens=10, cached_tokens=4, output_tokens=7, reasoning_tokens=3)


def new_response(
    *, uuid: UUID | None = None, parent: UUID | None = None, status: str = "in_progress"
) -> NewResponse:
    return NewResponse(
        uuid=uuid or ids.new_uuid(),
        key_id=ids.new_uuid(),
        model="gpt-oss-20b",
        created_at=CREATED,
        root_created_at=CREATED,
        request=b'{"model":"gpt-oss-20b"}',
        parent=parent,
        status=status,
    )


def item(item_id: str) -> ContextItem:
    return ContextItem(
        kind="message",
        item_id=item_id,
        json=f'{{"id":"{item_id}"}}'.encode(),
        role="user",
        ids=array("I", [1, 2, 3]),
    )


def stored_items(inputs: Sequence[ContextItem], outputs: Sequence[ContextItem]) -> list[StoredItem]:
    both = [*inputs, *outputs]
    return [StoredItem(place, place >= len(inputs), one) for place, one in enumerate(both)]


def finished(
    uuid: UUID,
    inputs: Sequence[ContextItem] = (),
    outputs: Sequence[ContextItem] = (),
    *,
    status: str = "completed",
    body: bytes = b"{}",
) -> FinishedResponse:
    return FinishedResponse(
        uuid=uuid,
        status=status,
        completed_at=COMPLETED,
        body=body,
        items=stored_items(inputs, outputs),
        tokens=USAGE,
    )


async def store_turn(
    database: Database,
    tenant: TenantId,
    name: str,
    *,
    parent: UUID | None = None,
) -> UUID:
    """A finished response with the input `in-NAME` and the output `out-NAME`."""
    new = new_response(parent=parent)
    await responses.insert(database, tenant, new)
    end = finished(new.uuid, [item(f"in-{name}")], [item(f"out-{name}")])
    assert await responses.finish(database, tenant, end)
    return new.uuid
