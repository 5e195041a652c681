"""Retention types of tenants and projects, changed together with what the audit log says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.store.governance import audit_log
from gateway.store.postgres.statements import Statement
from gateway.tenancy import DEFAULT_PROJECT_NAME, default_project

if TYPE_CHECKING:
    from gateway.governance.audit import AuditEvent
    from gateway.store.postgres.database import Database
    from gateway.tenancy import ProjectId, TenantId


class Retention(NamedTuple):
    """Retention type of an existing tenant or project; None: it has none of its own."""

    type: str | None


_OF_TENANT: Final = Statement("SELECT retention_type FROM tenants WHERE id = :tenant")
_SET_OF_TENANT: Final = Statement("""
UPDATE tenants SET retention_type = :type WHERE id = :tenant RETURNING true
""")
_OF_PROJECT: Final = Statement("""
SELECT retention_type FROM projects WHERE tenant_id = :tenant AND id = :project
""")
_SET_OF_PROJECT: Final = Statement("""
UPDATE projects SET retention_type = :type WHERE tenant_id = :tenant AND id = :project
RETURNING true
""")
# The default project may have no row yet.
_SET_OF_DEFAULT: Final = Statement("""
INSERT INTO projects (tenant_id, id, name, created_at, retention_type)
SELECT id, id, :name, created_at, :type FROM tenants WHERE id = :tenant
ON CONFLICT (tenant_id, id) DO UPDATE SET retention_type = excluded.retention_type
RETURNING true
""")


async def of_tenant(database: Database, tenant_id: TenantId) -> Retention | None:
    """Return the tenant's retention, or None if the tenant is unknown."""
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_OF_TENANT, {"tenant": tenant_id})).one_or_none()
    return None if row is None else Retention(row.retention_type)


async def set_of_tenant(
    database: Database, tenant_id: TenantId, type_: str, event: AuditEvent
) -> bool:
    """Set the tenant's retention, as the owner of the tables. Return False if it is unknown."""
    async with database.owner_transaction() as connection:
        wanted = {"tenant": tenant_id, "type": type_}
        if not await connection.scalar(_SET_OF_TENANT, wanted):
            return False
        await audit_log.record(connection, tenant_id, event)
    return True


async def of_project(
    database: Database, tenant_id: TenantId, project_id: ProjectId
) -> Retention | None:
    """Return the project's retention, or None if the project has no row."""
    asked = {"tenant": tenant_id, "project": project_id}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_OF_PROJECT, asked)).one_or_none()
    return None if row is None else Retention(row.retention_type)


async def set_of_project(
    database: Database, tenant_id: TenantId, project_id: ProjectId, type_: str, event: AuditEvent
) -> bool:
    """Set the project's retention. Return False if the project is unknown."""
    wanted = {"tenant": tenant_id, "project": project_id, "type": type_}
    wanted["name"] = DEFAULT_PROJECT_NAME
    is_default = project_id == default_project(tenant_id)
    statement = _SET_OF_DEFAULT if is_default else _SET_OF_PROJECT
    async with database.transaction(tenant_id) as connection:
        if not await connection.scalar(statement, wanted):
            return False
        await audit_log.record(connection, tenant_id, event)
    return True
