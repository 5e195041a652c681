"""Connections and transactions: the only way from a store function to a statement.

Every transaction first takes, in one round trip, an unprivileged role, the tenant and time limits.
Nothing is left in the connection, so a transaction pooler (PgBouncer and its like) may sit in
between; then no statement stays prepared, because the next transaction may get another server
connection.

On a direct connection a transaction of one statement saves the round trips to begin and to end: the
session stands for a tenant, until it is to stand for another one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from typing_extensions import override

from gateway.encryption.cipher import ContentCipher
from gateway.encryption.keyring import OFF
from gateway.errors import StoreConflict, StoreError, StoreUnavailable
from gateway.store.postgres.driver import DRIVER_ERRORS, driver_url, ends_connection, translate
from gateway.store.postgres.statements import Of, Statement, by_tenant
from gateway.store.schema import APP_ROLE, EVERYONE, RUNS_ROLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from gateway.encryption.keyring import Keyring
    from gateway.tenancy import ProjectId, TenantId

STATEMENTS_MAX: Final = 200
CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_WAIT_S: Final = 2.0
"""Time to close, and to have the last statement cancelled."""

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
_OF_PROJECT: Final = "; SET LOCAL app.project_id = '{project}'"
_DO_NOT_WAIT: Final = "; SET LOCAL synchronous_commit = off"
# One plan for any number of rows. Row-level security hides from the planner how many rows there
# are: it expects one, and would compare each row of the table with each that was sent. If only such
# a join is possible, its cost has a penalty in the billions, for which a server with JIT compiles
# the statement: for more than a second, each time.
_IN_BULK: Final = (
    "; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_nestloop = off;"
    " SET LOCAL jit = off"
)
_FOR_TENANT: Final = (
    "SET ROLE {role}; SET app.tenant_id = '{tenant}'; SET statement_timeout = {timeout_ms};"
    " SET plan_cache_mode = force_generic_plan; SET enable_nestloop = off; SET jit = off;"
    " SET app.project_id = '{project}'"
)
# For whatever begins on a connection that stands for a tenant.
_AS_IF_NEW: Final = (
    "BEGIN; SET LOCAL ROLE NONE; SET LOCAL app.tenant_id = ''; SET LOCAL app.project_id = '';"
    " SET LOCAL plan_cache_mode = auto; SET LOCAL enable_nestloop = on; SET LOCAL jit TO DEFAULT; "
)
_WITHOUT_KEYS: Final = (None, EVERYONE)
"""Nothing of theirs is sealed with a tenant's key."""
_TRUSTED_S: Final = 2.0
"""Rest after which a connection is tried first, before a transaction is lost with it."""
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


_CANNOT_WRITE: Final = {
    "53100": "its disk is full",
    "58030": "its disk fails",
    "25006": "it is read-only, as a standby is",
}
"""SQLSTATEs by which a server refuses writes while it may go on answering."""


Row = Any
"""A `Record`, or what has the same fields."""


class Record(asyncpg.Record):  # type: ignore[misc] # asyncpg has no types
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Result(list[Any]):
    def one(self) -> Any:
        (row,) = self
        return row

    def one_or_none(self) -> Any:
        # Raises `ValueError` if there are several rows.
        return self.one() if self else None


@dataclass(slots=True)
class State:
    is_direct: bool = False
    """No pooler is in between: settings of the session stay."""
    is_for_runs: bool = False
    """Connection that has the role and limits of `Database.runs_transaction` for good."""
    is_new: bool = True
    """No transaction succeeded on it yet: if it is lost, so is the server."""
    session: str = ""
    used_at: float = -math.inf
    """Time of the event loop."""


class Session(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    @override
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state = State()


class Connection:
    """A connection of the pool. Raises the driver's errors."""

    __slots__ = ("_keyring", "driver", "state", "tenant_id")

    def __init__(self, driver: Any, keyring: Keyring = OFF) -> None:
        self.driver = driver
        self.state: State = driver.state
        self._keyring = keyring
        self.tenant_id: TenantId | None = None

    def cipher(self, tenant_id: TenantId) -> ContentCipher:
        # Raises `ContentSealed` if the tenant's keys are gone.
        return self._keyring.of(tenant_id)

    def reading_cipher(self, tenant_id: TenantId) -> ContentCipher:
        # Where the tenant's keys are gone, one that opens only what is plain.
        return self._keyring.find(tenant_id) or ContentCipher(tenant_id, {})

    async def renew(self, tenant_id: TenantId, lacks: Callable[[ContentCipher], bool]) -> None:
        if self._keyring.is_on:
            await self._keyring.renew(tenant_id, lacks)

    async def execute(
        self,
        statement: Statement,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Result:
        """Execute a statement, once for each set of parameters; the sets have the same names.

        Several sets take one round trip and return no rows. Before the rows of a tenant are
        returned, its keys are loaded, so that `cipher`, called afterwards, has every key that
        sealed them.
        """
        if parameters is None or isinstance(parameters, Mapping):
            arguments = statement.arguments(parameters or {})
            rows = Result(await self.driver.fetch(statement.sql, *arguments))
            if rows and self.tenant_id is not None:
                await self.renew(self.tenant_id, partial(_lacks, rows))
            return rows
        each = [statement.arguments(one) for one in parameters]
        await self.driver.executemany(statement.sql, each)
        return Result()

    async def scalars(
        self, statement: Statement, parameters: Mapping[str, Any] | None = None
    ) -> Result:
        # The values of the first column.
        return Result([row[0] for row in await self.execute(statement, parameters)])

    async def scalar(
        self, statement: Statement, parameters: Mapping[str, Any] | None = None
    ) -> Any:
        for row in await self.execute(statement, parameters):
            return row[0]
        return None

    async def count(self, statement: Statement, parameters: Mapping[str, Any]) -> int:
        arguments = statement.arguments(parameters)
        tag: str = await self.driver.execute(statement.sql, *arguments)
        return int(tag.rpartition(" ")[2])

    async def stand_for(self, session: str) -> None:
        # `session`: `SET` statements, skipped if they were the last ones executed for the session.
        if self.state.session != session:
            self.state.session = ""
            await self.driver.execute(session)
            self.state.session = session

    async def script(self, sql: str) -> str:
        tag: str = await self.driver.execute(sql)
        return tag


class Transaction:
    """Async context manager. Raises `StoreError`s for all driver errors, also those of its
    block.
    """

    __slots__ = (
        *("_begin", "_connection", "_database", "_is_begun", "_is_single", "_session"),
        "_tenant_id",
    )

    def __init__(
        self,
        database: Database,
        begin: str,
        *,
        is_single: bool = False,
        session: str = "",
        tenant_id: TenantId | None = None,
    ) -> None:
        """Prepare a transaction.

        `is_single`: it has one statement, so a connection for runs needs no `begin`. `session`: the
        `SET` statements that a direct connection gets once instead.
        """
        self._tenant_id = tenant_id
        self._database = database
        self._begin = begin
        self._is_single = is_single
        self._session = session

    async def __aenter__(self) -> Connection:
        if self._database.keyring.is_on and self._tenant_id not in _WITHOUT_KEYS:
            await self._database.keyring.ready((self._tenant_id,))
        try:
            while not await self._has_begun():
                pass
        except DRIVER_ERRORS as error:
            raise self._database.meaning(error) from error
        self._connection.tenant_id = self._tenant_id
        return self._connection

    async def _has_begun(self) -> bool:
        # False: the connection was lost while it was idle, and another one may work.
        self._connection = connection = await self._database.take()
        state = connection.state
        self._is_begun = not (self._is_single and state.is_for_runs)
        if not self._is_begun:
            return True
        try:
            rested_s = asyncio.get_running_loop().time() - state.used_at
            if self._session and state.is_direct and rested_s < _TRUSTED_S:
                await connection.stand_for(self._session)
                self._is_begun = False
            else:
                begin = self._begin
                if state.session:  # it may still stand for a tenant
                    begin = _AS_IF_NEW + begin.removeprefix("BEGIN; ")
                await connection.script(begin)
        except _LOST:
            await _drop(connection)
            if state.is_new:
                raise
            return False
        except BaseException:
            await _drop(connection)
            raise
        state.is_new = False
        return True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                await self._database.replace_connections()
            if error is None:
                await self._end("COMMIT")
            elif _is_intact(error):
                await self._end("ROLLBACK")
            else:
                await _drop(self._connection)
        except DRIVER_ERRORS as failure:
            if error is None:
                raise self._database.meaning(failure) from failure
        if isinstance(error, DRIVER_ERRORS):
            raise self._database.meaning(error) from error

    async def _end(self, how: str) -> None:
        connection = self._connection
        tag = how
        if self._is_begun:
            try:
                tag = await connection.script(how)
            except BaseException:
                await _drop(connection)
                raise
        connection.state.is_new = False
        await self._database.give_back(connection)
        if tag != how:
            # A statement failed, and whoever made it went on regardless.
            raise StoreUnavailable("a transaction that had failed was rolled back, not committed")


class Database:
    def __init__(  # noqa: PLR0913 - each is a bound, or what it stands on
        self,
        url: str,
        *,
        pool_size_max: int,
        command_timeout_s: float,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        statement_cache_size: int | None = None,
        for_runs: bool = False,
        keyring: Keyring = OFF,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """Make a pool that opens connections when they are needed.

        `command_timeout_s` bounds each statement, here and on the server (a frozen server costs it
        plus `CLOSE_WAIT_S`), and on the server the pause between two statements of a transaction.
        `for_runs`: only for `runs_transaction`. The caller closes `keyring`. `on_failure` gets the
        class of each error but conflicts.
        """
        self._dsn = driver_url(url)
        self._size_max = pool_size_max
        self._command_timeout_s = command_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._statements_max = statement_cache_size
        self._for_runs = for_runs
        self.keyring = keyring
        self._on_failure = on_failure
        self._timeout_ms = max(1, int(command_timeout_s * 1000))
        self._pool: asyncpg.Pool | None = None
        self._project: ProjectId | str = ""
        self._narrowing = ""
        self._whole = self
        self.write_fault = ""

    @property
    def taken(self) -> int:
        pool = self._pool
        return pool.get_size() - pool.get_idle_size() if pool else 0

    async def take(self) -> Connection:
        """Take a connection, the most recently used one, so that few stay warm.

        Raises the driver's errors: `TimeoutError` if none was free, or could be opened, in time.
        """
        if self._pool is None:
            # Not where the database is made: a pool belongs to the running loop.
            self._pool = asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._size_max,
                max_queries=math.inf,
                max_inactive_connection_lifetime=0,
                connect=self._open,
                # Without this asyncpg would reset all settings, in a round trip.
                reset=_note_use,
                connection_class=Session,
                record_class=Record,
                timeout=self._connect_timeout_s,
                command_timeout=self._command_timeout_s,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
                server_settings={"application_name": "harmony-gateway"},
            )
            await self._pool
        async with asyncio.timeout(self._connect_timeout_s):
            return Connection(await self._pool.acquire(), self.keyring)

    async def give_back(self, connection: Connection) -> None:
        assert self._pool is not None
        await self._pool.release(connection.driver)

    async def replace_connections(self) -> None:
        # They lead to what is a standby since a failover; a new one may lead to the primary.
        assert self._pool is not None
        await self._pool.expire_connections()

    async def _open(self, *dsn: str, **options: Any) -> Session:
        # The first connection that turns out to go through a pooler is opened again.
        kept = STATEMENTS_MAX if self._statements_max is None else self._statements_max
        session: Session = await asyncpg.connect(*dsn, **options, statement_cache_size=kept)
        try:
            session.state.is_direct = await _is_direct(session)
            if not session.state.is_direct and self._statements_max is None:
                self._statements_max = 0
                await session.close(timeout=CLOSE_WAIT_S)
                return await self._open(*dsn, **options)
            if self._for_runs and session.state.is_direct:
                await session.execute(_FOR_RUNS.format(timeout_ms=self._timeout_ms))
                session.state.is_for_runs = True
        except BaseException:
            session.terminate()
            raise
        return session

    def meaning(self, error: BaseException) -> StoreError:
        meaning = translate(error)
        reason = _CANNOT_WRITE.get(meaning.state)
        if reason is not None:
            self.write_fault = f"the database cannot write: {reason} ({meaning.state})"
        if self._on_failure is not None and not isinstance(meaning, StoreConflict):
            self._on_failure(type(meaning).__name__)
        return meaning

    async def close(self) -> None:
        # Connections in use are closed after `CLOSE_WAIT_S`. Safe to call twice.
        if self._pool is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await self._pool.close()

    async def ping(self) -> None:
        async with self.owner_transaction():
            pass

    async def try_write(self) -> None:
        # Leaves nothing behind. Raises `StoreUnavailable` if the database cannot write, and another
        # `StoreError` if its owner may not.
        async with self.owner_transaction() as connection:
            await connection.script(_TRY_WRITE)

    async def revision(self) -> str | None:
        # None: the database was never migrated.
        async with self.owner_transaction() as connection:
            if not await connection.scalar(_HAS_REVISION):
                return None
            revision: str | None = await connection.scalar(_REVISION)
            return revision

    def within(self, project_id: ProjectId | None) -> Database:
        """Return this database limited to one project, if any, for ids that clients name.

        Transactions of a tenant then see rows of that project alone, whatever a statement says (the
        policy `one_project`).
        """
        view = copy(self)
        if project_id is not None:
            view._project = project_id  # noqa: SLF001 - it is a copy of this one
            view._narrowing = _OF_PROJECT.format(project=project_id)  # noqa: SLF001
        return view

    def transaction(
        self, tenant_id: TenantId, *, in_bulk: bool = False, lock_key: int | None = None
    ) -> Transaction:
        """Return a transaction that sees and writes rows of one tenant; `in_bulk`: arrays of them.

        Its setting `app.has_lock` shows whether it got the advisory lock `lock_key`, which it does
        not wait for. Raises `StoreConflict`, and `StoreUnavailable`: after a lost commit the
        outcome is unknown.
        """
        begin = _ENTER + self._narrowing + (_IN_BULK if in_bulk else "")
        if lock_key is not None:
            begin += _TRY_LOCK.format(key=int(lock_key))
        return self._begin(begin, tenant_id=tenant_id, role=APP_ROLE, tenant=tenant_id)

    def bulk_transaction(self, tenant_id: TenantId, *, is_only: bool = True) -> Transaction:
        """Return a transaction for statements of a tenant that get arrays of rows or read by key.

        If the tenant is the only one, each statement may be committed by itself. Otherwise call
        `turn_to` before the statement of each tenant.
        """
        words = {"role": APP_ROLE, "tenant": tenant_id, "timeout_ms": self._timeout_ms}
        session = _FOR_TENANT.format(project=self._project, **words) if is_only else ""
        begin = (_ENTER + self._narrowing + _IN_BULK).format(**words)
        return Transaction(self._whole, begin, session=session, tenant_id=tenant_id)

    def runs_transaction(self, *, durable: bool = True, in_bulk: bool = False) -> Transaction:
        """Return a transaction over claims and logs of all tenants: no body, no item, no key.

        Without `durable` the commit does not wait for the disk and may be lost with the server.
        `in_bulk` is for one statement that gets arrays of rows.
        """
        begin = _ENTER + ("" if durable else _DO_NOT_WAIT) + (_IN_BULK if in_bulk else "")
        return self._begin(begin, is_single=in_bulk, role=RUNS_ROLE, tenant="")

    def owner_transaction(self) -> Transaction:
        # With the role that owns the tables: for tenants, keys and the schema, not for content.
        return self._begin(_ENTER_AS_OWNER)

    async def maintain(self, statement: str) -> None:
        # For statements that cannot run inside a transaction, such as VACUUM.
        try:
            connection = await self.take()
            try:
                await connection.script(statement)
            except BaseException:
                await _drop(connection)
                raise
            await self.give_back(connection)
        except DRIVER_ERRORS as error:
            raise self.meaning(error) from error

    def _begin(
        self,
        statements: str,
        *,
        is_single: bool = False,
        tenant_id: TenantId | None = None,
        **words: object,
    ) -> Transaction:
        begin = statements.format(timeout_ms=self._timeout_ms, **words)
        return Transaction(self._whole, begin, is_single=is_single, tenant_id=tenant_id)


async def turn_to(connection: Connection, tenant_id: TenantId) -> None:
    """Switch a transaction to another tenant, so that several commit together."""
    if connection.tenant_id == tenant_id:
        return
    await connection.script(_TURN_TO.format(tenant=tenant_id))
    connection.tenant_id = tenant_id


async def usable_groups(
    database: Database, rows: Sequence[tuple[TenantId, Of]]
) -> list[tuple[TenantId, list[tuple[int, Of]]]]:
    """Group rows by tenant, except for tenants without usable keys, which must not hold up
    others.
    """
    groups = by_tenant(rows)
    if not database.keyring.is_on:
        return groups
    usable = await database.keyring.usable([tenant_id for tenant_id, _ in groups])
    return [group for group in groups if group[0] in usable]


def _lacks(rows: Sequence[Row], cipher: ContentCipher) -> bool:
    return any(isinstance(value, bytes) and cipher.lacks(value) for row in rows for value in row)


async def _note_use(session: Session) -> None:
    # The time of last use is the only state that a transaction leaves in its connection.
    session.state.used_at = asyncio.get_running_loop().time()


async def _drop(connection: Connection) -> None:
    # Closing also cancels what the connection has under way.
    with suppress(*DRIVER_ERRORS):
        await connection.driver.close(timeout=CLOSE_WAIT_S)


async def _is_direct(session: Session) -> bool:
    # A pooler answers for many servers, so its cancellation key has a process id of its own.
    # Prepared under no name, because a named statement would stay in the pooler's server.
    prepared = await session.prepare("SELECT pg_backend_pid()", name="")
    return bool(await prepared.fetchval() == session.get_server_pid())


def _is_intact(error: BaseException) -> bool:
    # After a cancellation nobody can tell whether the connection may be used again.
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        # The statements prepared on it are of tables that have changed since.
        return False
    if isinstance(error, asyncpg.PostgresError):
        return not ends_connection(error)
    return not isinstance(error, (*DRIVER_ERRORS, asyncio.CancelledError))


NO_PRIVILEGE: Final = "42501"
_OWNERSHIP: Final = Statement("""
SELECT current_user AS asking, pg_get_userbyid(relowner) AS owner,
    pg_has_role(relowner, 'USAGE') AS may
FROM pg_class WHERE oid = 'responses'::regclass
""")


async def require_owner(database: Database) -> None:
    """Raise `StoreError` unless the user may do all that the tables' owner may.

    The server would refuse in the middle of the work.
    """
    async with database.owner_transaction() as connection:
        await check_owner(connection)


async def check_owner(connection: Connection) -> None:
    row = (await connection.execute(_OWNERSHIP)).one()
    if not row.may:
        raise StoreError(
            f"database: this takes {row.owner}, who owns the tables, and nothing was changed: "
            f"{row.asking} may not do all of it",
            state=NO_PRIVILEGE,
        )
