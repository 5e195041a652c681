"""`…/service_accounts`: machines that have keys of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from sqlalchemy import Uuid, any_, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from gateway import ids
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import required_project
from gateway.admin.routes import audited, changed, deleted, listed, read
from gateway.admin.transactions import (
    CoreStatement,
    ResourceRows,
    insert_row,
    mark_by_id,
    of_tenant,
    update_by_id,
)
from gateway.errors import RateLimited, ResourceNotFound, shown
from gateway.protocol.admin_bodies import DisplayName, Json, seconds_of
from gateway.protocol.base import NullableModel
from gateway.store.tables import TABLES
from gateway.tenancy import ProjectId, ServiceAccount, TenantId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Row
    from gateway.tenancy import Project, ServiceAccountRole

ACCOUNTS_MAX: Final = 1_000
API_KEYS: Final = TABLES["api_keys"]
SERVICE_ACCOUNTS: Final = TABLES["service_accounts"]

ALL = f"{PROJECT}/service_accounts"
ONE = f"{ALL}/{{service_account_id}}"
KIND = "organization.project.service_account"


def routes(accounts: ServiceAccounts) -> list[AdminRoute]:
    # `keys` has the routes that make keys of service accounts.
    reads: Final = "service_accounts.read"
    writes: Final = "service_accounts.write"
    return [
        listed(ALL, reads, accounts.list, service_account_body),
        read(ONE, reads, accounts.get, service_account_body),
        changed(ONE, writes, accounts.change, service_account_body, ServiceAccountUpdate),
        deleted(ONE, writes, accounts.delete, KIND),
    ]


class ServiceAccountUpdate(NullableModel):
    """`POST …/service_accounts/{id}`: omitted fields stay."""

    name: DisplayName | None = None
    role: Literal["member", "owner"] | None = None


def service_account_body(account: ServiceAccount) -> Json:
    return {
        "id": ids.service_account_id(account.id),
        "object": KIND,
        "name": account.name,
        "role": account.role,
        "created_at": seconds_of(account.created_at),
    }


_IS_THERE: Final = (
    SERVICE_ACCOUNTS.c.project_id == bindparam("project"),
    SERVICE_ACCOUNTS.c.deleted_at.is_(None),
)
_FIND_ALL: Final = CoreStatement(
    select(SERVICE_ACCOUNTS).where(
        *of_tenant(SERVICE_ACCOUNTS),
        SERVICE_ACCOUNTS.c.id == any_(bindparam("ids", type_=ARRAY(Uuid))),
    )
)
_END_KEYS: Final = CoreStatement(
    update(API_KEYS)
    .where(
        *of_tenant(API_KEYS),
        API_KEYS.c.owner_type == "service_account",
        API_KEYS.c.owner_id == bindparam("id"),
        API_KEYS.c.disabled_at.is_(None),
    )
    .values(disabled_at=func.now())
)


def _account(row: Row) -> ServiceAccount:
    return ServiceAccount(
        row.id,
        TenantId(row.tenant_id),
        ProjectId(row.project_id),
        row.name,
        row.role,
        row.created_at,
    )


async def find_accounts(
    connection: Connection, tenant_id: TenantId, account_ids: Iterable[UUID]
) -> dict[UUID, ServiceAccount]:
    parameters = {"tenant": tenant_id, "ids": list(account_ids)}
    return {row.id: _account(row) for row in await connection.execute(_FIND_ALL, parameters)}


def unknown_account(account_id: str) -> ResourceNotFound:
    """Return the same error for an unknown, deleted, or foreign account."""
    return ResourceNotFound(
        f"No service account with id '{shown(account_id)}' was found in this project.",
        code="service_account_not_found",
        param="service_account_id",
    )


_ROWS: Final = ResourceRows(
    SERVICE_ACCOUNTS, _account, ids.parse_service_account_id, unknown_account, *_IS_THERE
)


async def required_account(
    connection: Connection, project: Project, account_id: str
) -> ServiceAccount:
    return await _ROWS.get(connection, account_id, tenant=project.tenant_id, project=project.id)


class ServiceAccounts:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def insert(
        self,
        connection: Connection,
        caller: AdminCaller,
        project: Project,
        name: str,
        role: ServiceAccountRole,
    ) -> ServiceAccount:
        place = {"tenant_id": project.tenant_id, "project_id": project.id}
        count = await _ROWS.count(connection, tenant=project.tenant_id, project=project.id)
        if count >= ACCOUNTS_MAX:
            raise RateLimited(
                f"This project has {ACCOUNTS_MAX} service accounts, which is as many as may "
                "be. Delete some that are not needed any more.",
                code="too_many_service_accounts",
            )
        values = {**place, "id": ids.new_uuid(), "name": name, "role": role}
        inserted = await connection.execute(insert_row(SERVICE_ACCOUNTS, *values), values)
        account = _account(inserted.one())
        target = ids.service_account_id(account.id)
        data = {"role": role}
        await caller.note(connection, "service_account.created", target, project.id, data=data)
        return account

    async def get(self, tenant_id: TenantId, project_id: str, account_id: str) -> ServiceAccount:
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            return await required_account(connection, project, account_id)

    async def list(
        self, tenant_id: TenantId, project_id: str, page: PageParams
    ) -> Page[ServiceAccount]:
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            return await _ROWS.page(connection, page, tenant=tenant_id, project=project.id)

    async def change(
        self, caller: AdminCaller, project_id: str, account_id: str, body: ServiceAccountUpdate
    ) -> ServiceAccount:
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            account = await required_account(connection, project, account_id)
            if changes := audited(body):
                values = {"tenant": tenant_id, "id": account.id, **changes}
                statement = update_by_id(SERVICE_ACCOUNTS, *changes)
                account = _account((await connection.execute(statement, values)).one())
            await caller.note(
                connection,
                "service_account.updated",
                account_id,
                project.id,
                changes_requested=changes,
            )
            return account

    async def delete(self, caller: AdminCaller, project_id: str, account_id: str) -> None:
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            account = await required_account(connection, project, account_id)
            row = {"tenant": tenant_id, "id": account.id}
            await connection.execute(mark_by_id(SERVICE_ACCOUNTS, "deleted_at"), row)
            await connection.execute(_END_KEYS, row)
            await caller.note(connection, "service_account.deleted", account_id, project.id)
