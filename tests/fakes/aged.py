"""Responses of the past, with their items, logs and keys, written straight into the tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from gateway import ids
from gateway.entries import FOLD_VERSION
from gateway.store.packing import pack_text
from gateway.store.schema import RUNNING
from tests.fakes.rows import add_rows, all_rows

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def ago(age: timedelta) -> datetime:
    return datetime.now(UTC) - age


def day_of(age: timedelta) -> date:
    return ago(age).date()


def uuid_of(created_at: datetime) -> UUID:
    """An id as it was made then."""
    random_part = ids.new_uuid().int & ((1 << 80) - 1)
    return UUID(int=int(created_at.timestamp() * 1000) << 80 | random_part)


async def store_aged(
    database: Database,
    tenant: TenantId,
    age: timedelta,
    *,
    ended: timedelta | None = None,
    status: str = "completed",
    parent: UUID | None = None,
    log_rows: int = 2,
) -> UUID:
    """A response created `age` ago that ended at once, or `ended` ago, with one item.

    It is durable if it has a log.
    """
    created_at = ago(age)
    uuid = uuid_of(created_at)
    completed_at = None if status in RUNNING else ago(ended if ended is not None else age)
    of_response = {"tenant_id": tenant, "response_id": uuid}
    response = {
        "tenant_id": tenant, "id": uuid, "key_id": ids.new_uuid(), "status": status, "model": "m",
        "background": True, "durable": log_rows > 0, "stored": True, "created_at": created_at,
        "root_created_at": created_at, "completed_at": completed_at, "parent_id": parent,
        "request": b"{}", "fold_version": FOLD_VERSION,
    }  # fmt: skip
    said = {
        "position": 0, "is_output": True, "kind": "message", "item_id": b"x", "complete": True,
        "item": b"{}",
    }  # fmt: skip
    row = {"day": created_at.date(), "epoch": 1, "entry_count": 1, "entries": b"."}
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "responses", response)
        await add_rows(connection, "messages", of_response | said)
        for entry in range(log_rows):
            await add_rows(connection, "events", of_response | row | {"first_entry": entry})
    return uuid


async def store_key(database: Database, tenant: TenantId, response: UUID, age: timedelta) -> None:
    """An idempotency key for that response, `age` old."""
    key = {
        "tenant_id": tenant, "key_hash": ids.new_uuid().bytes, "fingerprint": b"f",
        "response_id": response, "created_at": ago(age),
    }  # fmt: skip
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "idempotency_keys", key)


async def store_span(database: Database, tenant: TenantId, age: timedelta) -> str:
    """The id of a span that came `age` ago."""
    name = ids.new_uuid().hex
    span = {
        "tenant_id": tenant, "key": name.encode(), "kind": "span", "trace_id": b"t",
        "record_id": pack_text(name), "received_at": ago(age), "record": b"{}",
    }  # fmt: skip
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "traces", span)
    return name


async def stored_ids(database: Database, tenant: TenantId) -> set[UUID]:
    """The responses that are there."""
    async with database.transaction(tenant) as connection:
        return {row.id for row in await all_rows(connection, "responses")}


async def logged_ids(database: Database, tenant: TenantId) -> set[UUID]:
    """The responses that have a log."""
    async with database.transaction(tenant) as connection:
        return {row.response_id for row in await all_rows(connection, "events")}
