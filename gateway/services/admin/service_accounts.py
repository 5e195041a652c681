"""Service accounts of a project, and the keys that they are made with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import ids
from gateway.errors import RateLimited, ResourceNotFound, shown
from gateway.protocol.request_errors import unknown_place
from gateway.services.admin.projects import required_project
from gateway.store.admin import service_accounts as rows
from gateway.store.admin.pages import PagePosition
from gateway.tenancy import ServiceAccount

if TYPE_CHECKING:
    from gateway.services.admin.transactions import AdminCaller, Transactions
    from gateway.store.admin.pages import Page
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import Project, ServiceAccountRole, TenantId


def unknown_account(account_id: str) -> ResourceNotFound:
    """The same for one that is unknown, deleted, and of another project or tenant."""
    return ResourceNotFound(
        f"No service account with id '{shown(account_id)}' was found in this project.",
        code="service_account_not_found",
        param="service_account_id",
    )


async def required_account(
    connection: Connection, project: Project, account_id: str
) -> ServiceAccount:
    """That of an id as the API shows it, in its project. Raises `ResourceNotFound`."""
    uuid = ids.parse_service_account_id(account_id)
    found = None
    if uuid is not None:
        found = await rows.find(connection, project.tenant_id, project.id, uuid)
    if found is None:
        raise unknown_account(account_id)
    return found


class ServiceAccounts:
    """All methods raise `ResourceNotFound` for an unknown project or account, and those that change
    something `InvalidRequest` for an archived project.
    """

    def __init__(self, transactions: Transactions, *, accounts_max: int) -> None:
        """`accounts_max` bounds those of one project."""
        self._transactions = transactions
        self._accounts_max = accounts_max

    async def insert(
        self,
        connection: Connection,
        caller: AdminCaller,
        project: Project,
        name: str,
        role: ServiceAccountRole,
    ) -> ServiceAccount:
        """Inside a transaction of the caller's. Raises `RateLimited` where there are as many as may
        be.
        """
        if await rows.count(connection, project.tenant_id, project.id) >= self._accounts_max:
            raise RateLimited(
                f"This project has {self._accounts_max} service accounts, which is as many as may "
                "be. Delete some that are not needed any more.",
                code="too_many_service_accounts",
            )
        # The time is the database's: this one is not stored.
        account = ServiceAccount(
            ids.new_uuid(), project.tenant_id, project.id, name, role, project.created_at
        )
        made = await rows.insert(connection, account)
        target = ids.service_account_id(made.id)
        told = {"role": role}
        await caller.note(connection, "service_account.created", target, project.id, data=told)
        return made

    async def get(self, tenant_id: TenantId, project_id: str, account_id: str) -> ServiceAccount:
        """An account by its id and that of its project."""
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            return await required_account(connection, project, account_id)

    async def list(
        self, tenant_id: TenantId, project_id: str, *, limit: int, after: str | None
    ) -> Page[ServiceAccount]:
        """The oldest first. Raises `InvalidRequest` for an unknown `after`."""
        place = None if after is None else ids.parse_service_account_id(after)
        if after is not None and place is None:
            raise unknown_place()
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            return await rows.page(connection, tenant_id, project.id, PagePosition(limit, place))

    async def change(
        self,
        caller: AdminCaller,
        project_id: str,
        account_id: str,
        *,
        name: str | None,
        role: ServiceAccountRole | None,
    ) -> ServiceAccount:
        """Change what is not None."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            account = await required_account(connection, project, account_id)
            changed = await rows.change(connection, account, name=name, role=role)
            if changed is None:
                raise unknown_account(account_id)
            given = {"name": name, "role": role}
            told = {field: value for field, value in given.items() if value is not None}
            await caller.note(
                connection,
                "service_account.updated",
                account_id,
                project.id,
                changes_requested=told,
            )
            return changed

    async def delete(self, caller: AdminCaller, project_id: str, account_id: str) -> None:
        """Delete it; its keys end at once."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            account = await required_account(connection, project, account_id)
            if not await rows.delete(connection, tenant_id, project.id, account.id):
                raise unknown_account(account_id)
            await caller.note(connection, "service_account.deleted", account_id, project.id)
