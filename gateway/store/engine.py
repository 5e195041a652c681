"""Connections and transactions: the only way from a store function to a statement.

Every transaction of a tenant, or of the runs of all tenants, first takes, in one round trip and for
this transaction only, an unprivileged role, the tenant and time limits on the server. Nothing is
left in the connection, so a transaction pooler (PgBouncer and its like) may sit in between.
Prepared statements are unnamed by default for the same reason: a named one would live in a server
connection that the next transaction may not get. On a direct connection `statement_cache_size`
saves a round trip and the planning of each statement.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event, exc, text
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.store.dsn import driver_url
from gateway.store.tables import REVISION
from gateway.store.tables import APP_ROLE, RUNS_ROLE
from gateway.store.translation import DRIVER_ERRORS, translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from gateway.tenancy import TenantId

# A process that freezes inside a transaction must not keep its locks from those that go on for it.
_ENTER: Final = text(
    "SELECT set_config('role', :role, true), set_config('app.tenant_id', :tenant, true),"
    " set_config('statement_timeout', :timeout_ms, true),"
    " set_config('idle_in_transaction_session_timeout', :timeout_ms, true)"
)
_DO_NOT_WAIT: Final = text("SELECT set_config('synchronous_commit', 'off', true)")
_LIMIT_TIME: Final = text("SELECT set_config('statement_timeout', :timeout_ms, true)")
_REVISION: Final = text("SELECT version_num FROM alembic_version")
_HAS_REVISION: Final = text("SELECT to_regclass('alembic_version') IS NOT NULL")


class Database:
    """A bounded pool of connections to one database. Raises nothing but `StoreError`s."""

    def __init__(self, engine: AsyncEngine, *, command_timeout_s: float) -> None:
        self._engine = engine
        self._timeout_ms = str(max(1, int(command_timeout_s * 1000)))
        event.listen(engine.sync_engine, "checkout", _refuse_closed)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        pool_size_max: int,
        command_timeout_s: float,
        connect_timeout_s: float,
        statement_cache_size: int = 0,
    ) -> Database:
        """A pool for `url` (see `dsn`). Connections are opened when needed: `ping` tries one.

        `command_timeout_s` bounds each statement, on this side and on the server (a server that is
        frozen costs it twice, because the cancellation has to be given up as well), and on the
        server the pause between two of a transaction;
        `connect_timeout_s` the opening of a connection and, separately, the wait for a free one.
        Raises `StartupError` for a URL that is none.
        """
        engine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args={
                "dsn": driver_url(url),
                "timeout": connect_timeout_s,
                "command_timeout": command_timeout_s,
                "statement_cache_size": statement_cache_size,
                "prepared_statement_cache_size": statement_cache_size,
                "prepared_statement_name_func": None if statement_cache_size else _unnamed,
                "server_settings": {"application_name": "harmony-gateway"},
            },
            pool_size=pool_size_max,
            max_overflow=0,
            pool_timeout=connect_timeout_s,
            hide_parameters=True,
        )
        return cls(engine, command_timeout_s=command_timeout_s)

    async def close(self) -> None:
        """Close all connections. Safe to call twice."""
        await self._engine.dispose()

    async def ping(self) -> None:
        """Return when the database answers."""
        async with self.owner_transaction():
            pass

    async def revision(self) -> str | None:
        """The revision of the schema; None for a database that was never migrated."""
        async with self.owner_transaction() as connection:
            if not await connection.scalar(_HAS_REVISION):
                return None
            revision: str | None = await connection.scalar(_REVISION)
            return revision

    async def revision_is_current(self) -> bool:
        """Is the schema the one this release was written for?"""
        return await self.revision() == REVISION

    @asynccontextmanager
    async def transaction(self, tenant_id: TenantId) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees and writes rows of one tenant only.

        Raises `StoreUnavailable` (after a lost commit the outcome is unknown) and `StoreConflict`.
        """
        async with self._begin() as connection:
            await self._enter(connection, APP_ROLE, str(tenant_id))
            yield connection

    @asynccontextmanager
    async def runs_transaction(self, *, durable: bool = True) -> AsyncIterator[AsyncConnection]:
        """A transaction over the claims and logs of all tenants: no body, no item, no key.

        With `durable` False the commit does not wait for the disk, and may be lost with the
        server. Raises as `transaction` does.
        """
        async with self._begin() as connection:
            await self._enter(connection, RUNS_ROLE, "")
            if not durable:
                await connection.execute(_DO_NOT_WAIT)
            yield connection

    @asynccontextmanager
    async def owner_transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction as the owner of the tables: tenants, keys, the schema; no content."""
        async with self._begin() as connection:
            await connection.execute(_LIMIT_TIME, {"timeout_ms": self._timeout_ms})
            yield connection

    async def _enter(self, connection: AsyncConnection, role: str, tenant: str) -> None:
        await connection.execute(
            _ENTER, {"role": role, "tenant": tenant, "timeout_ms": self._timeout_ms}
        )

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.begin() as connection:
                yield connection
        except DRIVER_ERRORS as error:
            raise translate(error) from error


def _unnamed() -> str:
    return ""


def _refuse_closed(dbapi_connection: Any, _record: object, _proxy: object) -> None:
    """Replace a pooled connection that the server closed: costs no round trip, unlike a ping."""
    if dbapi_connection.driver_connection.is_closed():
        raise exc.DisconnectionError
