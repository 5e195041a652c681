"""The schema's revisions, and how to get to the newest.

The lock is one of a session: migrate over a direct connection, not through a transaction pooler.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import NullPool, exc, text
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.errors import StartupError, StoreError, StoreUnavailable
from gateway.store.locks import Lock
from gateway.store.migration.functions import create_ledger_tx
from gateway.store.migration.verification import Repaired, make_roles, repair_access
from gateway.store.postgres.driver import DRIVER_ERRORS, driver_url, translate
from gateway.store.schema import APP_ROLE, RUNS_ROLE, migrations_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

Result = TypeVar("Result")

CONTINUED: Final = "ids of transactions in the ledger, behind those of the cluster of the dump"
_LAST_AND_NEXT: Final = """
SELECT greatest(
    (SELECT CAST(CAST(tx AS text) AS bigint) FROM usage
     WHERE tx IS NOT NULL ORDER BY tx DESC LIMIT 1),
    (SELECT max(greatest(CAST(CAST(tx AS text) AS bigint), CAST(CAST(end_tx AS text) AS bigint)))
     FROM usage_cursors),
    0
), CAST(CAST(ledger_tx(pg_snapshot_xmax(pg_current_snapshot())) AS text) AS bigint)
"""
CONNECT_TIMEOUT_S: Final = 10.0
LOCK_PAUSE_S: Final = 0.1


def alembic_config(
    connection: Connection | None = None, on_step: Callable[[int], None] | None = None
) -> Config:
    config = Config(attributes={"connection": connection, "on_step": on_step})
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


async def upgrade(
    url: str,
    *,
    wait_s: float = 60.0,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    on_step: Callable[[int], None] | None = None,
) -> Repaired:
    """Bring the database at `url` to `schema.REVISION`, and check that it can be served from.

    `on_step` gets 1 after each migration. Of several processes one works, the others wait up to
    `wait_s` seconds. Within a process it runs one at a time, because Alembic's environment is
    global. Raises `StartupError`, and `StoreUnavailable` when the wait, or a lock on a busy table,
    took too long; finished migrations stay.
    """

    def work(connection: Connection) -> Repaired:
        make_roles(connection)
        command.upgrade(alembic_config(connection, on_step), "head")
        # A role that serves without owning the tables needs it to read their revision.
        connection.exec_driver_sql(f"GRANT SELECT ON alembic_version TO {APP_ROLE}")
        repaired = repair_access(connection)
        if not _continue_ids(connection):
            return repaired
        return replace(repaired, mended=(*repaired.mended, CONTINUED))

    return await run_locked(url, work, wait_s=wait_s, connect_timeout_s=connect_timeout_s)


def _continue_ids(connection: Connection) -> bool:
    # Continues ids behind those that a dump of another cluster brought. A transaction that can be
    # seen has an id below the end of the snapshot that sees it. False: the cluster has its own ids.
    # The owner is bound by row-level security as well; this role sees the rows of all tenants.
    connection.exec_driver_sql(f"SET LOCAL ROLE {RUNS_ROLE}")
    last, next_ = connection.exec_driver_sql(_LAST_AND_NEXT).one()
    connection.exec_driver_sql("RESET ROLE")
    is_foreign = bool(last > next_)
    if is_foreign:
        connection.exec_driver_sql(create_ledger_tx(last))
    connection.commit()
    return is_foreign


async def run_locked(
    url: str, work: Callable[[Connection], Result], *, wait_s: float, connect_timeout_s: float
) -> Result:
    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"dsn": driver_url(url), "timeout": connect_timeout_s},
        poolclass=NullPool,
        hide_parameters=True,
    )
    try:
        async with engine.connect() as connection:
            await _take_lock(connection, wait_s)
            # Alembic begins and commits by itself; the lock goes when the connection is closed.
            return await connection.run_sync(work)
    except (exc.SQLAlchemyError, *DRIVER_ERRORS) as error:
        raise meaning(error) from error
    except CommandError as error:
        raise StartupError(
            f"cannot migrate: {error}",
            remedy="Was this database used by a newer release? Then start that release.",
        ) from error
    finally:
        await engine.dispose()


async def _take_lock(connection: AsyncConnection, wait_s: float) -> None:
    # Polled: a session that waits within a statement would block the holder from building an index
    # concurrently, which waits for all statements that have begun.
    deadline = time.monotonic() + wait_s
    ask = text("SELECT pg_try_advisory_lock(:key)")
    while not await connection.scalar(ask, {"key": int(Lock.MIGRATION)}):
        await connection.commit()
        if time.monotonic() > deadline:
            raise StoreUnavailable("database: another process migrates it")
        await asyncio.sleep(LOCK_PAUSE_S)
    await connection.commit()


def meaning(error: BaseException) -> StoreError:
    if isinstance(error, exc.DBAPIError):
        cause = error.driver_exception
        if error.connection_invalidated:
            return StoreUnavailable(f"database: {type(cause).__name__}")
        return translate(cause)
    if isinstance(error, exc.SQLAlchemyError):
        return StoreError(f"database: {type(error).__name__}")
    return translate(error)
