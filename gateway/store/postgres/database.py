"""Connections and transactions: the only way from a store function to a statement.

Every transaction of a tenant, or of the runs of all tenants, first takes, in one round trip, an
unprivileged role, the tenant and time limits on the server, all for this transaction only. Nothing
is left in the connection, so a transaction pooler (PgBouncer and its like) may sit in between.
Prepared statements stay in a connection only where there is no pooler: a named one would live in a
server connection that the next transaction may not get. On a direct connection they save a round
trip and the planning of each statement.

Nor does a transaction of one statement take its round trips to begin and to end on a direct
connection: it stands for a tenant, until it is to stand for another one. Whatever else is done on
it begins as ever, with a role and a tenant of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.dsn import driver_url
from gateway.store.postgres.pool import Pool
from gateway.store.postgres.statements import Statement
from gateway.store.postgres.translation import DRIVER_ERRORS, ends_connection, translate
from gateway.store.postgres.writability import Writability
from gateway.store.schema import APP_ROLE, REVISION, RUNS_ROLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from gateway.errors import StoreError
    from gateway.tenancy import TenantId

STATEMENTS_MAX: Final = 200
"""Prepared statements that a direct connection keeps: more than requests need."""

_LOST: Final = (
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
)

# A process that freezes inside a transaction must not keep its locks from those that go on for it.
_ENTER: Final = (
    "BEGIN; SET LOCAL ROLE {role}; SET LOCAL app.tenant_id = '{tenant}';"
    " SET LOCAL statement_timeout = {timeout_ms};"
    " SET LOCAL idle_in_transaction_session_timeout = {timeout_ms}"
)
_DO_NOT_WAIT: Final = "; SET LOCAL synchronous_commit = off"
# One plan for any number of rows. Row-level security hides from the planner how many rows there
# are: it takes them for one, and would compare each of the table with each that was sent. Where
# only such a join is left its cost is a fine in the billions, for which a server that may compile
# statements compiles them: for more than a second, each time.
_IN_BULK: Final = (
    "; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_nestloop = off;"
    " SET LOCAL jit = off"
)
_FOR_TENANT: Final = (
    "SET ROLE {role}; SET app.tenant_id = '{tenant}'; SET statement_timeout = {timeout_ms};"
    " SET plan_cache_mode = force_generic_plan; SET enable_nestloop = off; SET jit = off"
)
# For whatever begins on a connection that stands for a tenant.
_AS_IF_NEW: Final = (
    "BEGIN; SET LOCAL ROLE NONE; SET LOCAL app.tenant_id = '';"
    " SET LOCAL plan_cache_mode = auto; SET LOCAL enable_nestloop = on; SET LOCAL jit TO DEFAULT; "
)
_TRUSTED_S: Final = 2.0
"""So long after its last transaction a connection is taken to be there still. Of one that was lost
while it rested longer it has to be found out before there is something to lose."""
_FOR_RUNS: Final = (
    f"SET ROLE {RUNS_ROLE}; SET statement_timeout = {{timeout_ms}};"
    " SET plan_cache_mode = force_generic_plan; SET enable_nestloop = off; SET jit = off"
)
_TRY_LOCK: Final = (
    "; SELECT set_config('app.has_lock', CAST(pg_try_advisory_xact_lock({key}) AS text), true)"
)
_ENTER_AS_OWNER: Final = "BEGIN; SET LOCAL statement_timeout = {timeout_ms}"
# More than there is room for in what files have left, and where the tables are. Dropping it writes
# to the catalog, and to the server's log.
_TRY_WRITE: Final = """
SET LOCAL temp_tablespaces = '';
CREATE TEMP TABLE harmony_gateway_probe ON COMMIT DROP AS
SELECT sha512(n::text::bytea) FROM generate_series(1, 1000) AS n
"""
_TURN_TO: Final = "SET LOCAL app.tenant_id = '{tenant}'"
_REVISION: Final = Statement("SELECT version_num FROM alembic_version")
_HAS_REVISION: Final = Statement("SELECT to_regclass('alembic_version') IS NOT NULL")


class Transaction:
    """An async context manager: commits when left without an error, else rolls back.

    Entered, it gives the connection. Raises `StoreError`s for all that the driver raises, whether
    in here or in what it is wrapped around.
    """

    __slots__ = (
        "_begin", "_connection", "_is_begun", "_is_single", "_pool", "_session", "_writability",
    )  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        begin: str,
        writability: Writability,
        *,
        is_single: bool = False,
        session: str = "",
    ) -> None:
        """`writability` learns from what fails. `is_single`: it has one statement, so a connection
        for runs needs no `begin`.

        `session` is for one that has, too: what a direct connection is told once, in its place.
        """
        self._pool = pool
        self._begin = begin
        self._writability = writability
        self._is_single = is_single
        self._session = session

    async def __aenter__(self) -> Connection:
        try:
            while not await self._has_begun():
                pass
        except DRIVER_ERRORS as error:
            raise self._meaning(error) from error
        return self._connection

    async def _has_begun(self) -> bool:
        """False: the connection had been lost while nobody used it. There may be another."""
        self._connection = connection = await self._pool.take()
        self._is_begun = not (self._is_single and connection.is_for_runs)
        if not self._is_begun:
            return True
        try:
            if self._session and self._may_go_alone(connection):
                await connection.stand_for(self._session)
                self._is_begun = False
            else:
                await connection.script(
                    _as_if_new(self._begin) if connection.session else self._begin
                )
        except _LOST:
            await self._pool.drop(connection)
            if connection.is_new:
                raise
            return False
        except BaseException:
            await self._pool.drop(connection)
            raise
        connection.is_new = False
        return True

    def _may_go_alone(self, connection: Connection) -> bool:
        rested_s = asyncio.get_running_loop().time() - connection.used_at
        return connection.is_direct and rested_s < _TRUSTED_S

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._end("COMMIT")
            elif _is_intact(error):
                await self._end("ROLLBACK")
            else:
                await self._pool.drop(self._connection)
        except DRIVER_ERRORS as failure:
            if error is None:
                raise self._meaning(failure) from failure
        if isinstance(error, DRIVER_ERRORS):
            raise self._meaning(error) from error

    def _meaning(self, error: BaseException) -> StoreError:
        meaning = translate(error)
        self._writability.learn(meaning)
        return meaning

    async def _end(self, how: str) -> None:
        connection = self._connection
        if not self._is_begun:
            connection.is_new = False
            await self._pool.give_back(connection)
            return
        try:
            tag = await connection.script(how)
        except BaseException:
            await self._pool.drop(connection)
            raise
        await self._pool.give_back(connection)
        if tag != how:
            # A statement failed, and whoever made it went on regardless.
            raise StoreUnavailable("a transaction that had failed was rolled back, not committed")


class Database:
    """A bounded pool of connections to one database. Raises nothing but `StoreError`s."""

    def __init__(self, pool: Pool, *, command_timeout_s: float) -> None:
        self._pool = pool
        self.writability = Writability()
        self._timeout_ms = _milliseconds(command_timeout_s)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        pool_size_max: int,
        command_timeout_s: float,
        connect_timeout_s: float,
        statement_cache_size: int | None = None,
        for_runs: bool = False,
    ) -> Database:
        """A pool for `url` (see `dsn`). Connections are opened when needed: `ping` tries one.

        `command_timeout_s` bounds each statement, on this side and on the server (a server that is
        frozen costs it and the wait for a goodbye), and on the server the pause between two of a
        transaction; `connect_timeout_s` the opening of a connection and, separately, the wait for a
        free one. `statement_cache_size` None: as many as are useful on a connection that is found
        to be direct, and none behind a pooler. `for_runs`: for nothing but `runs_transaction`, of
        which those `in_bulk` take one round trip then, on a direct connection. Raises
        `StartupError` for a URL that is none.
        """
        opened = _opener(
            driver_url(url),
            command_timeout_s=command_timeout_s,
            connect_timeout_s=connect_timeout_s,
            statement_cache_size=statement_cache_size,
            for_runs=for_runs,
        )
        pool = Pool(opened, size_max=pool_size_max, wait_s=connect_timeout_s)
        return cls(pool, command_timeout_s=command_timeout_s)

    async def close(self) -> None:
        """Close all connections. Safe to call twice."""
        await self._pool.close()

    async def ping(self) -> None:
        """Return when the database answers."""
        async with self.owner_transaction():
            pass

    async def try_write(self) -> None:
        """Write a little, of which nothing is left. Raises `StoreError` when that fails.

        `StoreUnavailable` means that the database cannot, anything else that its owner may not.
        """
        async with self.owner_transaction() as connection:
            await connection.script(_TRY_WRITE)

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

    def transaction(
        self, tenant_id: TenantId, *, in_bulk: bool = False, lock_key: int | None = None
    ) -> Transaction:
        """A transaction that sees and writes rows of one tenant only; `in_bulk`: arrays of them.

        With a `lock_key` the setting `app.has_lock` says in it whether it got that advisory lock,
        which it does not wait for. Raises `StoreUnavailable` (after a lost commit the outcome is
        unknown) and `StoreConflict`.
        """
        begin = _ENTER + (_IN_BULK if in_bulk else "")
        if lock_key is not None:
            begin += _TRY_LOCK.format(key=lock_key)
        return self._begin(begin, role=APP_ROLE, tenant=tenant_id)

    def bulk_transaction(self, tenant_ids: Sequence[TenantId]) -> Transaction:
        """A transaction for a statement of each of these tenants, which gets arrays of rows, or
        finds what it reads by its key.

        It begins with the first of them; before each of the others comes `turn_to`. Raises as
        `transaction` does; when it is of one tenant it may be committed by each statement.
        """
        words = {"role": APP_ROLE, "tenant": tenant_ids[0], "timeout_ms": self._timeout_ms}
        session = _FOR_TENANT.format(**words) if len(tenant_ids) == 1 else ""
        begin = (_ENTER + _IN_BULK).format(**words)
        return Transaction(self._pool, begin, self.writability, session=session)

    def runs_transaction(self, *, durable: bool = True, in_bulk: bool = False) -> Transaction:
        """A transaction over the claims and logs of all tenants: no body, no item, no key.

        With `durable` False the commit does not wait for the disk, and may be lost with the
        server. `in_bulk` is for one statement, which gets arrays of rows. Raises as `transaction`
        does.
        """
        begin = _ENTER + ("" if durable else _DO_NOT_WAIT) + (_IN_BULK if in_bulk else "")
        return self._begin(begin, is_single=in_bulk, role=RUNS_ROLE, tenant="")

    def owner_transaction(self) -> Transaction:
        """A transaction as the owner of the tables: tenants, keys, the schema; no content."""
        return self._begin(_ENTER_AS_OWNER)

    def _begin(self, statements: str, *, is_single: bool = False, **words: object) -> Transaction:
        begin = statements.format(timeout_ms=self._timeout_ms, **words)
        return Transaction(self._pool, begin, self.writability, is_single=is_single)


def _as_if_new(begin: str) -> str:
    """The same beginning, whatever the connection stands for."""
    return _AS_IF_NEW + begin.removeprefix("BEGIN; ")


async def turn_to(connection: Connection, tenant_id: TenantId) -> None:
    """From here on see and write rows of this tenant, in a transaction that began with another's.

    So rows of several tenants can be committed together, and each statement sees those of one.
    """
    await connection.script(_TURN_TO.format(tenant=tenant_id))


def _opener(
    dsn: str,
    *,
    command_timeout_s: float,
    connect_timeout_s: float,
    statement_cache_size: int | None,
    for_runs: bool,
) -> Callable[[], Awaitable[Connection]]:
    async def opened() -> Connection:
        driver = await asyncpg.connect(
            dsn,
            timeout=connect_timeout_s,
            command_timeout=command_timeout_s,
            # Statements are kept by `Connection`, which knows when it may.
            statement_cache_size=0,
            server_settings={"application_name": "harmony-gateway"},
        )
        is_direct = await _is_direct(driver)
        statements_max = statement_cache_size
        if statements_max is None:
            statements_max = STATEMENTS_MAX if is_direct else 0
        connection = Connection(driver, statements_max=statements_max, is_direct=is_direct)
        if for_runs and is_direct:
            await _keep_for_runs(connection, command_timeout_s)
        return connection

    return opened


async def _keep_for_runs(connection: Connection, command_timeout_s: float) -> None:
    try:
        await connection.script(_FOR_RUNS.format(timeout_ms=_milliseconds(command_timeout_s)))
    except BaseException:
        connection.driver.terminate()
        raise
    connection.is_for_runs = True


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


async def _is_direct(driver: asyncpg.Connection) -> bool:
    """Is the other end of the connection the server that executes its statements?

    A pooler answers for many servers, so what it gives its clients to cancel with is its own.
    """
    try:
        pid: int = await driver.fetchval("SELECT pg_backend_pid()")
    except BaseException:
        driver.terminate()
        raise
    return bool(pid == driver.get_server_pid())


def _is_intact(error: BaseException) -> bool:
    """May the connection be used again after a rollback? After a cancellation nobody can tell."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        # What is prepared on it was made for tables that have changed.
        return False
    if isinstance(error, asyncpg.PostgresError):
        return not ends_connection(error)
    return not isinstance(error, (*DRIVER_ERRORS, asyncio.CancelledError))
