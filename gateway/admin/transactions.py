"""Transactions of the admin API."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.audit import OPERATOR, Actor, Author
from gateway.errors import PermissionDenied, StoreError
from gateway.store import audit_log
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.database import NO_PRIVILEGE, require_owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import ProjectId, TenantId


_COMMAND_LINE: Final = "Use the command line with the owner's URL."


@dataclass(frozen=True, slots=True)
class AdminCaller:
    """Caller that changes something of a tenant: an admin key, or an `operator`."""

    tenant_id: TenantId
    key_id: UUID | None = None
    address: str | None = None
    request_id: str | None = None
    operator: Actor = OPERATOR

    @property
    def author(self) -> Author:
        actor = self.operator
        if self.key_id is not None:
            actor = Actor("api_key", ids.api_key_id(self.key_id), "user")
        return Author(actor, self.address, self.request_id)

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
    async def changing(self, tenant_id: TenantId) -> AsyncIterator[Connection]:
        """Open a transaction for one change at a time of the tenant: its reads still hold at the
        commit.
        """
        async with self.adding(tenant_id) as connection:
            yield connection
        self._forget()

    @asynccontextmanager
    async def adding(self, tenant_id: TenantId) -> AsyncIterator[Connection]:
        """Open such a transaction for what changes nothing of keys that were looked up."""
        async with self._database.transaction(tenant_id) as connection:
            await take_turns(connection, tenant_id, TenantLock.ADMINISTRATION)
            yield connection

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
