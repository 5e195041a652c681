"""Data retention controls of the admin API, by the ids that clients know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.admin.projects import required_project
from gateway.errors import PermissionDenied, StoreError
from gateway.services.governance.data_retention import DataRetention

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


NO_PRIVILEGE: Final = "42501"
"""The state of an error by which a server says that a user may not."""


class RetentionControls:
    """Data retention controls. Methods with the id of a project raise `ResourceNotFound` for an
    unknown one, those that change something `InvalidRequest` for an unknown type.
    """

    def __init__(
        self, database: Database, transactions: Transactions, forget: Callable[[], None]
    ) -> None:
        """Call `forget` after a change: it makes this process look up keys again."""
        self._controls = DataRetention(database)
        self._transactions = transactions
        self._forget = forget

    async def of_organization(self, tenant_id: TenantId) -> dict[str, Any]:
        return await self._controls.of_organization(tenant_id)

    async def set_of_organization(self, caller: AdminCaller, type_: str) -> dict[str, Any]:
        """Change the setting. Raises `PermissionDenied` if this process does not own the tables."""
        try:
            changed = await self._controls.set_of_organization(
                caller.tenant_id, type_, author=caller.author
            )
        except StoreError as error:
            if error.state != NO_PRIVILEGE:
                raise
            raise PermissionDenied(
                "The database's user of this server may not change organizations. Ask its operator "
                "to run: harmony-gateway data retention.",
                code="insufficient_permissions",
            ) from error
        self._forget()
        return changed

    async def of_project(self, tenant_id: TenantId, project_id: str) -> dict[str, Any]:
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
        return await self._controls.of_project(tenant_id, project.id)

    async def set_of_project(
        self, caller: AdminCaller, project_id: str, type_: str
    ) -> dict[str, Any]:
        """Change the setting. Raises `InvalidRequest`, also for an archived project."""
        tenant_id = caller.tenant_id
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
        changed = await self._controls.set_of_project(
            tenant_id, project.id, type_, author=caller.author, target=ids.project_id(project.id)
        )
        self._forget()
        return changed
