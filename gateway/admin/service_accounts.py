"""`/v1/organization/projects/{id}/service_accounts`: machines that have keys of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.admin.pages import PAGE, conversation_page, page_params
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import required_project
from gateway.admin.routes import AdminRoute
from gateway.errors import RateLimited, ResourceNotFound, shown
from gateway.protocol.admin.objects import deleted_body, service_account_body
from gateway.protocol.admin.requests import (
    ServiceAccountUpdate,
)
from gateway.protocol.request_errors import unknown_place
from gateway.store.admin import service_accounts as rows
from gateway.store.admin.pages import PagePosition
from gateway.tenancy import ServiceAccount

if TYPE_CHECKING:
    from gateway.admin.routes import AdminCall
    from gateway.admin.transactions import AdminCaller, Transactions
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


ALL = f"{PROJECT}/service_accounts"
ONE = f"{ALL}/{{service_account_id}}"
KIND = "organization.project.service_account"


def routes(accounts: ServiceAccounts) -> list[AdminRoute]:
    """List the routes of service accounts; `keys` has the ones that make keys."""
    answers = ServiceAccountEndpoints(accounts)
    return [
        AdminRoute("GET", ALL, "service_accounts.read", answers.list, query=PAGE),
        AdminRoute("GET", ONE, "service_accounts.read", answers.get),
        AdminRoute(
            "POST", ONE, "service_accounts.write", answers.update, body=ServiceAccountUpdate
        ),
        AdminRoute("DELETE", ONE, "service_accounts.write", answers.delete),
    ]


class ServiceAccountEndpoints:
    """Endpoints of service accounts."""

    def __init__(self, accounts: ServiceAccounts) -> None:
        self._accounts = accounts

    async def list(self, call: AdminCall) -> dict[str, Any]:
        """List the service accounts of one project."""
        asked = page_params(call.request.query_params)
        page = await self._accounts.list(
            call.principal.tenant_id,
            call.path["project_id"],
            limit=asked.limit,
            after=asked.after,
        )
        return conversation_page(list(map(service_account_body, page.rows)), has_more=page.has_more)

    async def get(self, call: AdminCall) -> dict[str, Any]:
        """GET by id; 404 for one of another project."""
        return service_account_body(await self._accounts.get(*_tenant_and_account(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """Change the name or the role of a service account."""
        asked = await call.body(ServiceAccountUpdate)
        changed = await self._accounts.change(
            *_caller_and_account(call), name=asked.name, role=asked.role
        )
        return service_account_body(changed)

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """DELETE: its keys end with it."""
        await self._accounts.delete(*_caller_and_account(call))
        return deleted_body(KIND, call.path["service_account_id"])


def _tenant_and_account(call: AdminCall) -> tuple[Any, str, str]:
    path = call.path
    return call.principal.tenant_id, path["project_id"], path["service_account_id"]


def _caller_and_account(call: AdminCall) -> tuple[AdminCaller, str, str]:
    return call.caller, call.path["project_id"], call.path["service_account_id"]
