"""Alembic's entry point: for `store.migrate` over its connection, for developers over `-x url=`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from alembic import context
from sqlalchemy.dialects.postgresql.base import ischema_names

from gateway.store.migration.migrate import run_locked
from gateway.store.tables.columns import Named, metadata

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.schema import SchemaItem


class TransactionId(Named):
    """A column of transaction ids, as it is read from a database."""

    def __init__(self) -> None:
        super().__init__("xid8")


ischema_names["xid8"] = TransactionId

LOCK_TIMEOUT = "SET lock_timeout = '2s'"
"""A migration that waits for a busy table makes everyone behind it wait too: better fail."""


def is_ours(_item: SchemaItem, name: str | None, kind: str, *_: object) -> bool:
    """Partitions of the log come and go with the days; the tables name only the whole."""
    return not (kind == "table" and (name or "").startswith("events_"))


def migrate_offline() -> None:
    context.configure(
        dialect_name="postgresql",
        target_metadata=metadata,
        literal_binds=True,
        transaction_per_migration=True,
    )
    context.execute(LOCK_TIMEOUT)
    with context.begin_transaction():
        context.run_migrations()


def migrate(connection: Connection) -> None:
    on_step = context.config.attributes.get("on_step") or (lambda _: None)
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        compare_server_default=True,
        include_object=is_ours,
        on_version_apply=lambda **_: on_step(1),
    )
    connection.exec_driver_sql(LOCK_TIMEOUT)
    connection.commit()
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    if context.is_offline_mode():
        migrate_offline()
        return
    connection = context.config.attributes.get("connection")
    if connection is not None:
        migrate(connection)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if not isinstance(url, str):
        raise SystemExit("Say which database: alembic -x url=postgresql://... COMMAND")
    asyncio.run(run_locked(url, migrate, wait_s=60, connect_timeout_s=10))


main()
