"""Responses and items as the store takes them, with every field that a test does not care for."""

from __future__ import annotations

from array import array
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway import ids
from gateway.entries import Finished, Queued, pack
from gateway.generation import TokenUsage
from gateway.protocol.context_item import ContextItem, StoredItem
from gateway.store import endings, responses
from gateway.store.claims import ClaimTerms
from gateway.store.endings import FinishedResponse
from gateway.store.events import LogRow
from gateway.store.postgres.statements import Statement
from gateway.store.responses import NewResponse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.entries import Status
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

CREATED = datetime(2026, 11, 20, 23, 59, tzinfo=UTC)
COMPLETED = datetime(2026, 11, 21, 0, 1, tzinfo=UTC)
USAGE = TokenUsage(
    input_tokens=10, cached_tokens=4, output_tokens=7, reasoning_tokens=3, recomputed_tokens=2
)

TERMS = ClaimTerms(lease_s=600.0, attempts_max=4, tenant_running_max=8)


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


def durable_response(
    *,
    uuid: UUID | None = None,
    status: str = "queued",
    owner: str | None = None,
    lease_s: float | None = None,
) -> NewResponse:
    """A background response: queued, or with an owner one that was claimed from the start."""
    return replace(
        new_response(uuid=uuid, status=status if owner is None else "in_progress"),
        background=True,
        durable=True,
        streamed=True,
        plan=b'{"inputs":1}',
        prompt_ids=array("I", [200_006, 7, 200_007]),
        owner=owner,
        lease_s=600.0 if owner and lease_s is None else lease_s,
        entries=(1, pack([Queued()])),
    )


def last_row(first_entry: int, status: Status = "completed") -> LogRow:
    """The row of a log that ends it."""
    return LogRow(first_entry, 1, pack([Finished(status, 1_795_000_009, "why", "code", "text")]))


async def let_time_pass(database: Database, tenant: TenantId, *, seconds: float) -> None:
    """For the leases of one tenant."""
    statement = Statement(
        "UPDATE responses SET lease_until = lease_until - make_interval(secs => :s)"
    )
    async with database.transaction(tenant) as connection:
        await connection.execute(statement, {"s": seconds})


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
    epoch: int = 0,
) -> FinishedResponse:
    return FinishedResponse(
        uuid=uuid,
        epoch=epoch,
        status=status,
        completed_at=COMPLETED,
        body=body,
        items=stored_items(inputs, outputs),
        tokens=USAGE,
    )


async def store_turn(
    database: Database, tenant: TenantId, name: str, *, parent: UUID | None = None
) -> UUID:
    """A finished response with the input `in-NAME` and the output `out-NAME`."""
    new = new_response(parent=parent)
    await responses.insert(database, tenant, new)
    said = replace(item(f"out-{name}"), includable=b'{"outputs":[]}')
    end = finished(new.uuid, [item(f"in-{name}")], [said])
    await endings.finish(database, tenant, end)
    return new.uuid
