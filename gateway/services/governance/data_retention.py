"""Data retention controls, as OpenAI's admin API has them: of a tenant, and of its projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.errors import ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.store.governance import data_retention as rows
from gateway.tenancy import default_project
from gateway.tenancy.retention import NONE, ORGANIZATION_DEFAULT, check_type

if TYPE_CHECKING:
    from gateway.governance.audit import Author
    from gateway.store.postgres.database import Database
    from gateway.tenancy import ProjectId, TenantId


class DataRetention:
    """Use cases of `…/data_retention`. A change counts for new requests as soon as their key is
    looked up again (`auth.key_cache_ttl_s`). What was stored before stays until it expires, or is
    erased.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_organization(self, tenant_id: TenantId) -> dict[str, Any]:
        """Return the tenant's setting as the API's object. Raises `ResourceNotFound`."""
        found = await rows.of_tenant(self._database, tenant_id)
        if found is None:
            raise ResourceNotFound("There is no such organization.")
        return _organization(found.type)

    async def set_of_organization(
        self, tenant_id: TenantId, retention_type: str, *, author: Author = COMMAND_LINE
    ) -> dict[str, Any]:
        """Change the tenant's setting. Raises `InvalidRequest` and `ResourceNotFound`."""
        check_type(retention_type, of_project=False)
        told = {"data_retention": retention_type}
        event = author.event("organization.updated", str(tenant_id), changes_requested=told)
        if not await rows.set_of_tenant(self._database, tenant_id, retention_type, event):
            raise ResourceNotFound("There is no such organization.")
        return _organization(retention_type)

    async def of_project(self, tenant_id: TenantId, project_id: ProjectId) -> dict[str, Any]:
        """Return the project's setting as the API's object. Raises `ResourceNotFound`."""
        found = await rows.of_project(self._database, tenant_id, project_id)
        if found is None and project_id != default_project(tenant_id):
            raise _unknown_project()
        return _project(None if found is None else found.type)

    async def set_of_project(
        self,
        tenant_id: TenantId,
        project_id: ProjectId,
        retention_type: str,
        *,
        author: Author = COMMAND_LINE,
        target: str | None = None,
    ) -> dict[str, Any]:
        """Change the project's setting; `target` is the project's public id.

        Raises `InvalidRequest` and `ResourceNotFound`.
        """
        check_type(retention_type, of_project=True)
        told = {"data_retention": retention_type}
        event = author.event(
            "project.updated", target or str(project_id), project_id, changes_requested=told
        )
        if not await rows.set_of_project(
            self._database, tenant_id, project_id, retention_type, event
        ):
            raise _unknown_project()
        return _project(retention_type)


def _organization(found: str | None) -> dict[str, Any]:
    return {"object": "organization.data_retention", "type": found or NONE}


def _project(found: str | None) -> dict[str, Any]:
    return {"object": "project.data_retention", "type": found or ORGANIZATION_DEFAULT}


def _unknown_project() -> ResourceNotFound:
    return ResourceNotFound("There is no such project.", param="project_id")
