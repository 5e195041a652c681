"""Service accounts of projects. All inside a transaction of the caller's, for their tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.admin.pages import PagedStatement
from gateway.store.postgres.statements import Statement
from gateway.tenancy import ProjectId, ServiceAccount, TenantId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from gateway.store.admin.pages import Page, PagePosition
    from gateway.store.postgres.database import Connection, Row
    from gateway.tenancy import ServiceAccountRole

_COLUMNS: Final = "tenant_id, project_id, id, name, role, created_at"
_IS_THERE: Final = "project_id = :project AND deleted_at IS NULL"
_INSERT: Final = Statement(f"""
INSERT INTO service_accounts ({_COLUMNS})
VALUES (:tenant, :project, :id, :name, :role, now())
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_COUNT: Final = Statement(f"""
SELECT count(*) FROM service_accounts WHERE tenant_id = :tenant AND {_IS_THERE}
""")  # noqa: S608 - constants only
_FIND: Final = Statement(f"""
SELECT {_COLUMNS} FROM service_accounts WHERE tenant_id = :tenant AND id = :id AND {_IS_THERE}
""")  # noqa: S608 - constants only
_FIND_ALL: Final = Statement(f"""
SELECT {_COLUMNS} FROM service_accounts
WHERE tenant_id = :tenant AND id = ANY(CAST(:ids AS uuid[]))
""")  # noqa: S608 - constants only
_CHANGE: Final = Statement(f"""
UPDATE service_accounts
SET name = coalesce(CAST(:name AS text), name), role = coalesce(CAST(:role AS text), role)
WHERE tenant_id = :tenant AND id = :id AND {_IS_THERE}
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
# Its keys end with it.
_DELETE: Final = Statement(f"""
WITH gone AS (
    UPDATE service_accounts SET deleted_at = now()
    WHERE tenant_id = :tenant AND id = :id AND {_IS_THERE}
    RETURNING id
), ended AS (
    UPDATE api_keys SET disabled_at = now()
    FROM gone
    WHERE api_keys.tenant_id = :tenant AND api_keys.owner_type = 'service_account'
      AND api_keys.owner_id = gone.id AND api_keys.disabled_at IS NULL
)
SELECT id FROM gone
""")  # noqa: S608 - constants only


def _account(row: Row) -> ServiceAccount:
    return ServiceAccount(
        row.id,
        TenantId(row.tenant_id),
        ProjectId(row.project_id),
        row.name,
        row.role,
        row.created_at,
    )


_LIST: Final = PagedStatement("service_accounts", _COLUMNS, _IS_THERE, _account)


async def insert(connection: Connection, account: ServiceAccount) -> ServiceAccount:
    """A new one; its time is the database's."""
    row = {
        "tenant": account.tenant_id,
        "project": account.project_id,
        "id": account.id,
        "name": account.name,
        "role": account.role,
    }
    return _account((await connection.execute(_INSERT, row)).one())


async def count(connection: Connection, tenant_id: TenantId, project_id: ProjectId) -> int:
    """How many the project has."""
    found: int = await connection.scalar(_COUNT, {"tenant": tenant_id, "project": project_id})
    return found


async def find(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId, account_id: UUID
) -> ServiceAccount | None:
    """None: unknown, deleted, or of another project."""
    asked = {"tenant": tenant_id, "project": project_id, "id": account_id}
    row = (await connection.execute(_FIND, asked)).one_or_none()
    return None if row is None else _account(row)


async def find_all(
    connection: Connection, tenant_id: TenantId, account_ids: Iterable[UUID]
) -> dict[UUID, ServiceAccount]:
    """Those of these ids, deleted ones and those of any project included."""
    asked = {"tenant": tenant_id, "ids": list(account_ids)}
    return {row.id: _account(row) for row in await connection.execute(_FIND_ALL, asked)}


async def change(
    connection: Connection,
    account: ServiceAccount,
    *,
    name: str | None,
    role: ServiceAccountRole | None,
) -> ServiceAccount | None:
    """Change what is not None. None: it was deleted meanwhile."""
    asked = {
        "tenant": account.tenant_id,
        "project": account.project_id,
        "id": account.id,
        "name": name,
        "role": role,
    }
    row = (await connection.execute(_CHANGE, asked)).one_or_none()
    return None if row is None else _account(row)


async def delete(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId, account_id: UUID
) -> bool:
    """Delete it and disable its keys. False: unknown."""
    asked = {"tenant": tenant_id, "project": project_id, "id": account_id}
    return await connection.scalar(_DELETE, asked) is not None


async def page(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId, place: PagePosition
) -> Page[ServiceAccount]:
    """A page of them. Raises `InvalidRequest` for an `after` that is none of them."""
    return await _LIST.page(connection, {"tenant": tenant_id, "project": project_id}, place)
