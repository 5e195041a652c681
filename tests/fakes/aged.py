"""Responses of the past, with their items, logs and keys, written straight into the tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import func, insert, select

from gateway import ids
from gateway.log import FOLD_VERSION
from gateway.store.tables import RUNNING, events, idempotency_keys, messages, responses, traces

if TYPE_CHECKING:
    from sqlalchemy import Table

    from gateway.store.engine import Database
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
    async with database.transaction(tenant) as connection:
        await connection.execute(
            insert(responses).values(
                tenant_id=tenant, id=uuid, key_id=ids.new_uuid(), status=status, model="m",
                background=True, durable=log_rows > 0, stored=True, created_at=created_at,
                root_created_at=created_at, completed_at=completed_at, parent_id=parent,
                request=b"{}", fold_version=FOLD_VERSION,
            )
        )  # fmt: skip
        await connection.execute(
            insert(messages).values(
                **of_response, position=0, is_output=True, kind="message", item_id="x",
                complete=True, item=b"{}",
            )
        )  # fmt: skip
        for entry in range(log_rows):
            await connection.execute(
                insert(events).values(
                    **of_response, first_entry=entry, day=created_at.date(), epoch=1,
                    entry_count=1, entries=b".",
                )
            )  # fmt: skip
    return uuid


async def store_key(database: Database, tenant: TenantId, response: UUID, age: timedelta) -> None:
    """An idempotency key for that response, `age` old."""
    async with database.transaction(tenant) as connection:
        await connection.execute(
            insert(idempotency_keys).values(
                tenant_id=tenant, key_hash=ids.new_uuid().bytes, fingerprint=b"f",
                response_id=response, created_at=ago(age),
            )
        )  # fmt: skip


async def store_span(database: Database, tenant: TenantId, age: timedelta) -> str:
    """The id of a span that came `age` ago."""
    name = ids.new_uuid().hex
    async with database.transaction(tenant) as connection:
        await connection.execute(
            insert(traces).values(
                tenant_id=tenant, key=name.encode(), kind="span", trace_id="t", record_id=name,
                received_at=ago(age), record=b"{}",
            )
        )  # fmt: skip
    return name


async def count(database: Database, tenant: TenantId, table: Table) -> int:
    """How many rows the tenant has."""
    async with database.transaction(tenant) as connection:
        return await connection.scalar(select(func.count()).select_from(table)) or 0


async def stored_ids(database: Database, tenant: TenantId) -> set[UUID]:
    """The responses that are there."""
    async with database.transaction(tenant) as connection:
        return set(await connection.scalars(select(responses.c.id)))


async def logged_ids(database: Database, tenant: TenantId) -> set[UUID]:
    """The responses that have a log."""
    async with database.transaction(tenant) as connection:
        return set(await connection.scalars(select(events.c.response_id)))
