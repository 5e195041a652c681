"""Responses: the row at the start, the one transaction at the end, and what reads it.

Whether a response is cancelled, completed or failed is decided by `finish` alone: its UPDATE has a
condition, so of several that try exactly one wins, on whatever replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into

from gateway.log import FOLD_VERSION
from gateway.store import usage
from gateway.store.messages import row_of
from gateway.store.tables import RUNNING, TERMINAL, events, messages, responses

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.generation import TokenUsage
    from gateway.protocol.context import StoredItem
    from gateway.store.engine import Database
    from gateway.tenancy import TenantId


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response that starts. `request` is JSON: the echo, and the options that it ran with.

    Times are aware. `root_created_at` is when the first response of its chain was created: its own
    `created_at` without a parent, otherwise that of the parent's `History`.
    """

    uuid: UUID
    key_id: UUID
    model: str
    created_at: datetime
    root_created_at: datetime
    request: bytes
    parent: UUID | None = None
    background: bool = False
    stored: bool = True
    status: str = "in_progress"


@dataclass(frozen=True, slots=True)
class FinishedResponse:
    """A response that ends. `body` is the final `Response` object, byte for byte as it is shown.

    `recoveries` is JSON for operators, never shown: which rules repaired its output, how often.

    `items` are its input and output, positions ascending. `tokens` None writes no usage line.
    """

    uuid: UUID
    status: str
    completed_at: datetime
    body: bytes
    recoveries: bytes = b"{}"
    items: Sequence[StoredItem] = ()
    tokens: TokenUsage | None = None


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A row of `responses`. `body` is None until it has finished."""

    uuid: UUID
    key_id: UUID
    model: str
    status: str
    created_at: datetime
    root_created_at: datetime
    completed_at: datetime | None
    parent: UUID | None
    background: bool
    stored: bool
    fold_version: int
    request: bytes
    body: bytes | None
    recoveries: bytes | None

    @property
    def is_terminal(self) -> bool:
        """Its status will not change any more."""
        return self.status in TERMINAL


_STORED = (
    responses.c.id.label("uuid"),
    responses.c.key_id,
    responses.c.model,
    responses.c.status,
    responses.c.created_at,
    responses.c.root_created_at,
    responses.c.completed_at,
    responses.c.parent_id.label("parent"),
    responses.c.background,
    responses.c.stored,
    responses.c.fold_version,
    responses.c.request,
    responses.c.body,
    responses.c.recoveries,
)


ROWS_AT_ONCE: Final = 500
"""Rows in one insert: making thousands ready would hold up the event loop."""

# Statements are built once: building one costs more than running it.
_INSERT: Final = insert_into(responses)
_INSERT_ITEMS: Final = insert_into(messages)
_END: Final = (
    update(responses)
    .where(
        responses.c.tenant_id == bindparam("of_tenant"),
        responses.c.id == bindparam("of_id"),
        responses.c.status.in_(RUNNING),
    )
    .values(
        status=bindparam("status"),
        completed_at=bindparam("completed_at"),
        body=bindparam("body"),
        recoveries=bindparam("recoveries"),
        owner=None,
        lease_until=None,
    )
    .returning(responses.c.key_id, responses.c.model)
)


def _is(tenant_id: TenantId, uuid: UUID) -> tuple[Any, Any]:
    return responses.c.tenant_id == tenant_id, responses.c.id == uuid


async def insert(database: Database, tenant_id: TenantId, new: NewResponse) -> None:
    """Record that a response has started. Raises `StoreConflict` when its id is taken."""
    async with database.transaction(tenant_id) as connection:
        await connection.execute(
            _INSERT,
            {
                "tenant_id": tenant_id,
                "id": new.uuid,
                "key_id": new.key_id,
                "status": new.status,
                "model": new.model,
                "background": new.background,
                "stored": new.stored,
                "created_at": new.created_at,
                "root_created_at": new.root_created_at,
                "parent_id": new.parent,
                "request": new.request,
                "fold_version": FOLD_VERSION,
            },
        )


async def finish(database: Database, tenant_id: TenantId, finished: FinishedResponse) -> bool:
    """End a running response: status, body, items and usage, all or nothing.

    False, with nothing written, when it is unknown, deleted, or had ended before.
    """
    if finished.status not in TERMINAL:
        raise ValueError(f"{finished.status} is no end")
    end = {
        "of_tenant": tenant_id,
        "of_id": finished.uuid,
        "status": finished.status,
        "completed_at": finished.completed_at,
        "body": finished.body,
        "recoveries": finished.recoveries,
    }
    async with database.transaction(tenant_id) as connection:
        ended = (await connection.execute(_END, end)).one_or_none()
        if ended is None:
            return False
        if finished.items:
            key = {"tenant_id": tenant_id, "response_id": finished.uuid}
            for start in range(0, len(finished.items), ROWS_AT_ONCE):
                items = finished.items[start : start + ROWS_AT_ONCE]
                await connection.execute(_INSERT_ITEMS, [key | row_of(item) for item in items])
        if finished.tokens is not None:
            line = usage.UsageLine(
                response=finished.uuid,
                key_id=ended.key_id,
                model=ended.model,
                at=finished.completed_at,
                tokens=finished.tokens,
            )
            await usage.add(connection, tenant_id, line)
    return True


async def load(database: Database, tenant_id: TenantId, uuid: UUID) -> StoredResponse | None:
    """The response; None when it is unknown, deleted, or another tenant's."""
    async with database.transaction(tenant_id) as connection:
        result = await connection.execute(select(*_STORED).where(*_is(tenant_id, uuid)))
    row = result.one_or_none()
    return StoredResponse(**row._mapping) if row else None  # noqa: SLF001 - public, in spite of its name


async def delete(database: Database, tenant_id: TenantId, uuid: UUID) -> bool:
    """Erase a response with its items and its log; its usage line stays. False: unknown."""
    remove = delete_from(responses).where(*_is(tenant_id, uuid)).returning(responses.c.created_at)
    async with database.transaction(tenant_id) as connection:
        created_at: datetime | None = await connection.scalar(remove)
        if created_at is None:
            return False
        # Items go by their foreign key, so that one which a concurrent `finish` adds goes too.
        await connection.execute(
            delete_from(events).where(
                events.c.tenant_id == tenant_id,
                events.c.response_id == uuid,
                events.c.day == created_at.astimezone(UTC).date(),
            )
        )
    return True
