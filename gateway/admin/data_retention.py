"""`…/data_retention`: the retention of content of an organization and of its projects.

A change counts for new requests once their key is looked up again (`auth.key_cache_ttl_s`). Stored
content stays until it expires or is erased.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field
from sqlalchemy import bindparam, select, update

from gateway import ids
from gateway.admin.core import CoreStatement, of_tenant, update_by_id
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import PROJECTS, TENANTS, required_project
from gateway.admin.routes import AuditedAs, audited, changed, read
from gateway.protocol.base import WireModel
from gateway.tenancy.policy import DEFAULT_RETENTION, ORGANIZATION_DEFAULT, check_retention_type

if TYPE_CHECKING:
    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.admin_bodies import Json
    from gateway.tenancy import TenantId

OF_ORGANIZATION: Final = "/organization/data_retention"
OF_PROJECT: Final = f"{PROJECT}/data_retention"


def routes(controls: RetentionControls) -> list[AdminRoute]:
    may_read: Final = "data_retention.read"
    may_write: Final = "data_retention.write"
    body = DataRetentionUpdate
    set_of_organization, set_of_project = controls.set_of_organization, controls.set_of_project
    return [
        read(OF_ORGANIZATION, may_read, controls.of_organization, organization_body),
        changed(OF_ORGANIZATION, may_write, set_of_organization, organization_body, body),
        read(OF_PROJECT, may_read, controls.of_project, project_body),
        changed(OF_PROJECT, may_write, set_of_project, project_body, body),
    ]


class DataRetentionUpdate(WireModel):
    """Data retention: `none`, `zero_data_retention`; of a project `organization_default`, too."""

    retention_type: Annotated[str, Field(max_length=64), AuditedAs("data_retention")]


def organization_body(type_: str | None) -> Json:
    return {"object": "organization.data_retention", "type": type_ or DEFAULT_RETENTION}


def project_body(type_: str | None) -> Json:
    return {"object": "project.data_retention", "type": type_ or ORGANIZATION_DEFAULT}


_OF_TENANT: Final = CoreStatement(
    select(TENANTS.c.retention_type).where(TENANTS.c.id == bindparam("tenant"))
)
_SET_OF_TENANT: Final = CoreStatement(
    update(TENANTS)
    .where(TENANTS.c.id == bindparam("tenant"))
    .values(retention_type=bindparam("type"))
)
_OF_PROJECT: Final = CoreStatement(
    select(PROJECTS.c.retention_type).where(*of_tenant(PROJECTS, "id"))
)


class RetentionControls:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def of_organization(self, tenant_id: TenantId) -> str | None:
        async with self._transactions.reading(tenant_id) as connection:
            retention_type: str | None = await connection.scalar(_OF_TENANT, {"tenant": tenant_id})
            return retention_type

    async def set_of_organization(self, caller: AdminCaller, body: DataRetentionUpdate) -> str:
        check_retention_type(body.retention_type, of_project=False)
        tenant_id = caller.tenant_id
        remedy = "Ask the operator of this server to run: harmony-gateway data retention."
        async with self._transactions.owning(remedy) as connection:
            wanted = {"tenant": tenant_id, "type": body.retention_type}
            await connection.execute(_SET_OF_TENANT, wanted)
            await caller.note(
                connection,
                "organization.updated",
                ids.tenant_id(tenant_id),
                changes_requested=audited(body),
            )
        return body.retention_type

    async def of_project(self, tenant_id: TenantId, project_id: str) -> str | None:
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            row = {"tenant": tenant_id, "id": project.id}
            retention_type: str | None = await connection.scalar(_OF_PROJECT, row)
            return retention_type

    async def set_of_project(
        self, caller: AdminCaller, project_id: str, body: DataRetentionUpdate
    ) -> str:
        check_retention_type(body.retention_type, of_project=True)
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            row = {"tenant": tenant_id, "id": project.id, "retention_type": body.retention_type}
            await connection.execute(update_by_id(PROJECTS, "retention_type"), row)
            await caller.note(
                connection,
                "project.updated",
                project_id,
                project.id,
                changes_requested=audited(body),
            )
        return body.retention_type
