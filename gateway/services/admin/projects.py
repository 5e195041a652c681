"""Projects of a tenant: make, list, rename, archive, and which models they may ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, shown
from gateway.protocol.request_errors import unknown_place
from gateway.store.admin import projects as rows
from gateway.store.admin.pages import PagePosition
from gateway.tenancy import ProjectId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.services.admin.transactions import AdminCaller, Transactions
    from gateway.store.admin.pages import Page
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import ModelPermissions, Project, ProjectControls, TenantId


def project_uuid(project_id: str) -> ProjectId:
    """Raises `ResourceNotFound` for what is no id of a project."""
    uuid = ids.parse_project_id(project_id)
    if uuid is None:
        raise unknown_project(project_id)
    return ProjectId(uuid)


def unknown_project(project_id: str) -> ResourceNotFound:
    """The same for one that is unknown and one of another tenant."""
    return ResourceNotFound(
        f"No project with id '{shown(project_id)}' was found. GET /v1/organization/projects lists "
        "those that there are.",
        code="project_not_found",
        param="project_id",
    )


async def required_project(
    connection: Connection, tenant_id: TenantId, project_id: str, *, is_active: bool = False
) -> Project:
    """The project; with `is_active` it must not be archived. Raises `ResourceNotFound` and
    `InvalidRequest`.
    """
    uuid = project_uuid(project_id)
    if uuid == tenant_id:
        await rows.add_default(connection, tenant_id)
    project = await rows.find(connection, tenant_id, uuid)
    if project is None:
        raise unknown_project(project_id)
    if is_active and project.archived_at is not None:
        raise InvalidRequest(
            f"Project '{project_id}' is archived. Nothing of it can be changed any more; create "
            "another one.",
            code="project_archived",
            param="project_id",
        )
    return project


class Projects:
    """All methods with the id of a project raise `ResourceNotFound` for an unknown one."""

    def __init__(self, transactions: Transactions, *, projects_max: int) -> None:
        """`projects_max` bounds those of one tenant, archived ones included."""
        self._transactions = transactions
        self._projects_max = projects_max

    async def create(self, caller: AdminCaller, name: str) -> Project:
        """Raises `RateLimited` where the tenant has as many as it may."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            await rows.add_default(connection, tenant_id)
            if await rows.count(connection, tenant_id) >= self._projects_max:
                raise RateLimited(
                    f"Your organization has {self._projects_max} projects, which is as many as may "
                    "be, archived ones included. Ask the operator of this server for more.",
                    code="too_many_projects",
                )
            made = await rows.insert(connection, tenant_id, ProjectId(ids.new_uuid()), name)
            told = {"name": name, "title": name}
            await caller.note(connection, "project.created", _id(made), made.id, data=told)
            return made

    async def get(self, tenant_id: TenantId, project_id: str) -> Project:
        """A project by its id, archived or not."""
        async with self._transactions.reading(tenant_id) as connection:
            return await required_project(connection, tenant_id, project_id)

    async def list(
        self, tenant_id: TenantId, *, limit: int, after: str | None, with_archived: bool
    ) -> Page[Project]:
        """The oldest first; the default project is among them. Raises `InvalidRequest` for an
        unknown `after`.
        """
        place = None if after is None else ids.parse_project_id(after)
        if after is not None and place is None:
            raise unknown_place()
        async with self._transactions.reading(tenant_id) as connection:
            await rows.add_default(connection, tenant_id)
            return await rows.page(
                connection, tenant_id, PagePosition(limit, place), with_archived=with_archived
            )

    async def rename(self, caller: AdminCaller, project_id: str, name: str | None) -> Project:
        """None leaves the name as it is."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            if name is None:
                return project
            renamed = await rows.rename(connection, tenant_id, project.id, name)
            told = {"title": name}
            await caller.note(
                connection, "project.updated", project_id, project.id, changes_requested=told
            )
            return renamed or project

    async def archive(self, caller: AdminCaller, project_id: str) -> Project:
        """None of its keys works any more. One that is archived stays as it is. Raises
        `InvalidRequest` for the default project.
        """
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            if project.is_default:
                raise InvalidRequest(
                    "The default project cannot be archived: keys without a project belong to it.",
                    code="default_project",
                    param="project_id",
                )
            if project.archived_at is not None:
                return project
            archived = await rows.archive(connection, tenant_id, project.id)
            await caller.note(connection, "project.archived", project_id, project.id)
            return archived or project

    async def set_models(
        self, caller: AdminCaller, project_id: str, permissions: ModelPermissions | None
    ) -> Project:
        """Which models it may ask for; None: all that its tenant may use."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            changed = await rows.set_models(connection, tenant_id, project.id, permissions)
            event, told = "harmony.model_permissions.deleted", {}
            if permissions is not None:
                event = "harmony.model_permissions.updated"
                told = {"mode": permissions.mode, "model_ids": list(permissions.models)}
            await caller.note(connection, event, project_id, project.id, changes_requested=told)
            return changed or project

    async def set_controls(
        self,
        caller: AdminCaller,
        project_id: str,
        changes_of: Callable[[ProjectControls], Mapping[str, Any]],
    ) -> Project:
        """Change fields of `ProjectControls`, which `changes_of` tells from what they are."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            changes = changes_of(project.controls)
            wanted = replace(project, controls=replace(project.controls, **changes))
            changed = await rows.set_controls(connection, wanted)
            told = {
                name: sorted(value) if isinstance(value, frozenset) else value
                for name, value in changes.items()
            }
            await caller.note(
                connection, "project.updated", project_id, project.id, changes_requested=told
            )
            return changed or project


def _id(project: Project) -> str:
    return ids.project_id(project.id)
