"""Transactions of the admin API, and their statements in SQLAlchemy Core.

SQLAlchemy only writes the SQL, once for each statement. It runs on asyncpg, with the role, the
tenant and the row-level security of the transaction.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sqlalchemy import Integer, bindparam, func, insert, select, update
from sqlalchemy.dialects.postgresql.asyncpg import dialect
from typing_extensions import override

from gateway.audit import COMMAND_LINE, Author
from gateway.errors import PermissionDenied, StoreError
from gateway.protocol.pages import Page
from gateway.protocol.request_errors import unknown_place
from gateway.store import audit_log
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.database import NO_PRIVILEGE, require_owner
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from sqlalchemy import ClauseElement, Column, ColumnElement, Table

    from gateway.errors import ResourceNotFound
    from gateway.protocol.pages import PageParams
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import ProjectId, TenantId

_COMMAND_LINE: Final = "Use the command line with the owner's URL."


@dataclass(frozen=True, slots=True)
class AdminCaller:
    """Caller that changes something of a tenant: an admin key, or an `operator`."""

    tenant_id: TenantId
    author: Author = COMMAND_LINE
    key_id: UUID | None = None

    async def note(
        self,
        connection: Connection,
        event: str,
        target: str,
        project_id: ProjectId | None = None,
        **details: Any,
    ) -> None:
        audit_event = self.author.event(event, target, project_id, **details)
        await audit_log.record(connection, self.tenant_id, audit_event)


class Transactions:
    """Transactions of one database. `forget` makes this process look keys up again; other replicas
    follow within `auth.key_cache_ttl_s`.
    """

    def __init__(self, database: Database, forget: Callable[[], None]) -> None:
        self._database = database
        self._forget = forget

    def reading(self, tenant_id: TenantId) -> AbstractAsyncContextManager[Connection]:
        return self._database.transaction(tenant_id)

    @asynccontextmanager
    async def in_turn(self, tenant_id: TenantId) -> AsyncIterator[Connection]:
        """Open a transaction for one change at a time of the tenant: its reads still hold at the
        commit.
        """
        async with self._database.transaction(tenant_id) as connection:
            await take_turns(connection, tenant_id, TenantLock.ADMINISTRATION)
            yield connection

    @asynccontextmanager
    async def changing(self, tenant_id: TenantId) -> AsyncIterator[Connection]:
        """Open such a transaction for what may change the terms of keys that were looked up."""
        async with self.in_turn(tenant_id) as connection:
            yield connection
        self._forget()

    @asynccontextmanager
    async def owning(self, remedy: str) -> AsyncIterator[Connection]:
        async with owning(self._database, remedy) as connection:
            yield connection
        self._forget()


class Ownership:
    """Ownership of the tables by this process's user; looked up once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_owner: bool | None = None

    async def is_owner(self) -> bool:
        if self._is_owner is None:
            try:
                with owned():
                    await require_owner(self._database)
                self._is_owner = True
            except PermissionDenied:
                self._is_owner = False
        return self._is_owner


@contextmanager
def owned(remedy: str = _COMMAND_LINE) -> Iterator[None]:
    """Turn a missing privilege within the block into `PermissionDenied`."""
    try:
        yield
    except StoreError as error:
        if error.state != NO_PRIVILEGE:
            raise
        raise PermissionDenied(
            "The database's user of this process may not do this: it does not own the tables. "
            f"{remedy}",
            code="insufficient_permissions",
        ) from error


@asynccontextmanager
async def owning(database: Database, remedy: str = _COMMAND_LINE) -> AsyncIterator[Connection]:
    with owned(remedy):
        async with database.owner_transaction() as connection:
            yield connection


T = TypeVar("T")

_DIALECT: Final = dialect()  # type: ignore[no-untyped-call] # SQLAlchemy has no types for it


class CoreStatement(Statement):
    """Core statement; its `bindparam`s without a value are its parameters."""

    __slots__ = ("_values",)

    def __init__(self, statement: ClauseElement) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT)
        self.text = self.sql = str(compiled)
        self.names = tuple(compiled.positiontup)
        self._values = {
            name: bind.value for name, bind in compiled.binds.items() if not bind.required
        }

    @override
    def arguments(self, parameters: Mapping[str, Any]) -> list[Any]:
        values = {**self._values, **parameters}
        return [values[name] for name in self.names]


@cache
def insert_row(table: Table, *columns: str) -> CoreStatement:
    """Insert a row with these columns, named as their parameters, and return it."""
    values: dict[Any, Any] = {column: bindparam(column) for column in columns}
    values |= {name: func.now() for name in ("created_at", "updated_at") if name in table.c}
    return CoreStatement(insert(table).values(values).returning(table))


@cache
def update_by_id(table: Table, *columns: str) -> CoreStatement:
    """Update these columns of the row `id` of `tenant`, and return it."""
    values: dict[Any, Any] = {column: bindparam(column) for column in columns}
    values |= {"updated_at": func.now()} if "updated_at" in table.c else {}
    return CoreStatement(
        update(table).where(*of_tenant(table, "id")).values(values).returning(table)
    )


@cache
def mark_by_id(table: Table, column: str) -> CoreStatement:
    """Set this time of the row `id` of `tenant` to now, and return the row."""
    marked = update(table).where(*of_tenant(table, "id")).values({column: func.now()})
    return CoreStatement(marked.returning(table))


def of_tenant(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    """Return conditions: of `tenant`, and equal to the parameters of these columns."""
    return [
        table.c.tenant_id == bindparam("tenant"),
        *(table.c[column] == bindparam(column) for column in columns),
    ]


def named(*columns: str) -> dict[str, Any]:
    return {column: bindparam(column) for column in columns}


def in_seconds(name: str) -> ColumnElement[Any]:
    """Return the time in this parameter's number of seconds, null for null."""
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam(name, type_=Integer))


class ResourceRows(Generic[T]):
    def __init__(
        self,
        table: Table,
        made: Callable[[Row], T],
        parse_id: Callable[[str], UUID | None],
        not_found: Callable[[str], ResourceNotFound],
        *conditions: ColumnElement[bool],
        columns: Sequence[Column[Any]] = (),
    ) -> None:
        # `conditions` may have parameters. `columns`: by default all of the table.
        self._table = table
        self._columns = columns or tuple(table.c)
        self._made = made
        self._parse_id = parse_id
        self._not_found = not_found
        self._conditions = conditions

    async def get(self, connection: Connection, public_id: str, **parameters: Any) -> T:
        id_ = self._parse_id(public_id)
        if id_ is not None:
            for row in await connection.execute(self._find, {**parameters, "id": id_}):
                return self._made(row)
        raise self._not_found(public_id)

    async def count(self, connection: Connection, **parameters: Any) -> int:
        count: int = await connection.scalar(self._count, parameters)
        return count

    async def page(self, connection: Connection, params: PageParams, **parameters: Any) -> Page[T]:
        # Ids grow with time: the item of the cursor may be deleted meanwhile.
        query = {**parameters, "row_limit": params.limit + 1}
        if params.cursor is not None:
            query["cursor"] = self._parse_id(params.cursor)
            if query["cursor"] is None:
                raise unknown_place(params.cursor_name)
        descends = params.order_from_cursor == "desc"
        statement = self._statements[descends, params.cursor is not None]
        rows, has_more = params.of(await connection.execute(statement, query))
        return Page(list(map(self._made, rows)), has_more)

    @cached_property
    def _find(self) -> CoreStatement:
        statement = select(*self._columns).where(*of_tenant(self._table, "id"), *self._conditions)
        return CoreStatement(statement)

    @cached_property
    def _count(self) -> CoreStatement:
        counted = select(func.count()).select_from(self._table)
        return CoreStatement(counted.where(*of_tenant(self._table), *self._conditions))

    @cached_property
    def _statements(self) -> dict[tuple[bool, bool], CoreStatement]:
        return {
            (descends, is_behind): self._statement(descends=descends, is_behind=is_behind)
            for descends in (False, True)
            for is_behind in (False, True)
        }

    def _statement(self, *, descends: bool, is_behind: bool) -> CoreStatement:
        key = self._table.c.id
        conditions = [*of_tenant(self._table), *self._conditions]
        if is_behind:
            place: Any = bindparam("cursor")
            conditions.append(key < place if descends else key > place)
        return CoreStatement(
            select(*self._columns)
            .where(*conditions)
            .order_by(key.desc() if descends else key)
            .limit(bindparam("row_limit"))
        )
