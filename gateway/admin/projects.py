"""`/v1/organization/projects`: projects, and the models, tools and tiers that they allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field
from sqlalchemy import Boolean, Text, bindparam, or_, select, true
from sqlalchemy.dialects.postgresql import insert

from gateway import ids
from gateway.admin.routes import AdminRoute, AuditedAs, audited, changed, deleted, listed, read
from gateway.admin.transactions import (
    CoreStatement,
    ResourceRows,
    insert_row,
    mark_by_id,
    update_by_id,
)
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, shown
from gateway.protocol.admin_bodies import (
    MODELS_MAX,
    DisplayName,
    Json,
    ModelId,
    NoBody,
    ShortText,
    seconds_of,
)
from gateway.protocol.base import Many, NullableModel, WireModel
from gateway.protocol.request_errors import unsupported
from gateway.store.callers import controls_of_row
from gateway.store.tables import TABLES
from gateway.tenancy import DEFAULT_PROJECT_NAME, Project, ProjectId, TenantId
from gateway.tenancy.policy import HostedTool, ModelPermissions, ModelsMode, TierDefault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.admin.routes import AdminCall
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Row
    from gateway.tenancy.policy import ProjectControls, TenantPolicy

PROJECTS_MAX: Final = 1_000
"""Projects per tenant, archived ones included."""
PROJECTS: Final = TABLES["projects"]
TENANTS: Final = TABLES["tenants"]

ALL = "/organization/projects"
ONE = f"{ALL}/{{project_id}}"
MODELS = f"{ONE}/model_permissions"
TOOLS = f"{ONE}/hosted_tool_permissions"
TIERS = f"{ONE}/service_tier_settings"
TOOLS_LACKING: Final = ("file_search", "image_generation")
"""OpenAI's that this server does not have."""


def routes(projects: Projects) -> list[AdminRoute]:
    async def tools(call: AdminCall) -> Json:
        project = await projects.get(call.principal.tenant_id, call.path["project_id"])
        return hosted_tools_body(project.controls, call.principal.policy)

    async def set_tools(call: AdminCall) -> Json:
        body = await call.body(HostedToolsUpdate)
        project = await projects.set_tools(call.caller, call.path["project_id"], body)
        return hosted_tools_body(project.controls, call.principal.policy)

    reads: Final = "projects.read"
    writes: Final = "projects.write"
    may_read: Final = "model_permissions.read"
    may_write: Final = "model_permissions.write"
    set_models, delete_models = projects.set_models, projects.delete_models
    return [
        listed(ALL, reads, projects.list, project_body, flags=("include_archived",)),
        changed(ALL, writes, projects.create, project_body, ProjectCreate),
        read(ONE, reads, projects.get, project_body),
        changed(ONE, writes, projects.rename, project_body, ProjectUpdate),
        changed(f"{ONE}/archive", writes, projects.archive, project_body, NoBody),
        read(MODELS, may_read, projects.get, model_permissions_body),
        changed(MODELS, may_write, set_models, model_permissions_body, ModelPermissionsUpdate),
        deleted(MODELS, may_write, delete_models, "project.model_permissions"),
        AdminRoute("GET", TOOLS, reads, tools),
        AdminRoute("POST", TOOLS, writes, set_tools, HostedToolsUpdate),
        read(TIERS, reads, projects.get, service_tiers_body),
        changed(TIERS, writes, projects.set_tiers, service_tiers_body, ServiceTiersUpdate),
    ]


class ProjectCreate(NullableModel):
    """`POST /organization/projects`. Where a project's data is kept is not for it to choose."""

    name: Annotated[DisplayName, AuditedAs("name", "title")]
    external_key_id: ShortText | None = None
    geography: ShortText | None = None
    residency: dict[str, Any] | None = None


class ProjectUpdate(NullableModel):
    """`POST /organization/projects/{id}`: omitted fields stay."""

    name: Annotated[DisplayName | None, AuditedAs("title")] = None
    external_key_id: ShortText | None = None
    geography: ShortText | None = None


class ModelPermissionsUpdate(WireModel):
    """`POST …/model_permissions`: the models that a project may use, or those that it may not."""

    mode: ModelsMode
    model_ids: Annotated[Many[ModelId], Field(max_length=MODELS_MAX)]


class ToolPermission(WireModel):
    """Permission of a project's requests to use a hosted tool."""

    enabled: bool


class HostedToolsUpdate(NullableModel):
    """`POST …/hosted_tool_permissions`: omitted fields stay."""

    code_interpreter: ToolPermission | None = None
    file_search: ToolPermission | None = None
    image_generation: ToolPermission | None = None
    mcp: ToolPermission | None = None
    web_search: ToolPermission | None = None

    def tools_off(self, before: frozenset[HostedTool]) -> frozenset[HostedTool]:
        """Return the tools that are off afterwards."""
        for name in TOOLS_LACKING:
            permission: ToolPermission | None = getattr(self, name)
            if permission is not None and permission.enabled:
                raise unsupported(f"{name}.enabled", "This server has no such hosted tool")
        off = set(before)
        for tool in get_args(HostedTool):
            if (choice := getattr(self, tool)) is not None:
                off.discard(tool) if choice.enabled else off.add(tool)
        return frozenset(off)


def _listed(value: object) -> object:
    # OpenAI writes the word `all` instead of a list.
    return ["all"] if value == "all" else value


class ServiceTiersUpdate(NullableModel):
    """`POST …/service_tier_settings`: omitted fields stay."""

    default: TierDefault | None = None
    enabled_tiers: (
        Annotated[Many[Literal["all", "flex", "fast", "ultrafast"]], BeforeValidator(_listed)]
        | None
    ) = None

    def columns(self, controls: ProjectControls) -> dict[str, Any]:
        tiers: Sequence[str] | None = controls.tiers
        if self.enabled_tiers is not None:
            tiers = None if "all" in self.enabled_tiers else self.enabled_tiers
        listed_once = None if tiers is None else list(dict.fromkeys(tiers))
        default = self.default or controls.tier_default
        return {"service_tiers": listed_once, "service_tier_default": default}


def check_supported(body: ProjectCreate | ProjectUpdate) -> None:
    for name in ("external_key_id", "geography", "residency"):
        if getattr(body, name, None) is not None:
            raise unsupported(name, "Leave it out: all projects are kept in this server's database")


def project_body(project: Project) -> Json:
    return {
        "id": ids.project_id(project.id),
        "object": "organization.project",
        "name": project.name,
        "created_at": seconds_of(project.created_at),
        "archived_at": seconds_of(project.archived_at),
        "status": "active" if project.archived_at is None else "archived",
        "external_key_id": None,
        "residency": None,
        "harmony": {"is_default": project.is_default},
    }


def model_permissions_body(project: Project) -> Json:
    permissions = project.models
    return {
        "object": "project.model_permissions",
        "mode": "deny_list" if permissions is None else permissions.mode,
        "model_ids": [] if permissions is None else list(permissions.models),
    }


def hosted_tools_body(controls: ProjectControls, policy: TenantPolicy) -> Json:
    def is_enabled(name: HostedTool) -> bool:
        return name not in controls.tools_off and getattr(policy, name) == "allowed"

    served = {name: is_enabled(name) for name in get_args(HostedTool)}
    return {
        name: {"enabled": enabled}
        for name, enabled in sorted({**dict.fromkeys(TOOLS_LACKING, False), **served}.items())
    }


def service_tiers_body(project: Project) -> Json:
    controls = project.controls
    return {
        "object": "project.service_tier_settings",
        "default": controls.tier_default,
        "enabled_tiers": "all" if controls.tiers is None else list(controls.tiers),
    }


# The default project need not have been written: a tenant may be older than projects.
_ADD_DEFAULT: Final = CoreStatement(
    insert(PROJECTS)
    .from_select(
        ["tenant_id", "id", "name", "created_at"],
        select(
            TENANTS.c.id, TENANTS.c.id, bindparam("name", type_=Text), TENANTS.c.created_at
        ).where(TENANTS.c.id == bindparam("tenant")),
    )
    .on_conflict_do_nothing(index_elements=["tenant_id", "id"])
)


def _project(row: Row) -> Project:
    permissions = None
    if row.models_mode is not None:
        permissions = ModelPermissions(row.models_mode, tuple(row.models or ()))
    return Project(
        ProjectId(row.id),
        TenantId(row.tenant_id),
        row.name,
        row.created_at,
        row.archived_at,
        permissions,
        controls_of_row(row),
    )


async def _add_default(connection: Connection, tenant_id: TenantId) -> None:
    names = {"tenant": tenant_id, "name": DEFAULT_PROJECT_NAME}
    await connection.execute(_ADD_DEFAULT, names)


def unknown_project(project_id: str) -> ResourceNotFound:
    """Return the same error for an unknown project and for another tenant's."""
    return ResourceNotFound(
        f"No project with id '{shown(project_id)}' was found. GET /v1/organization/projects lists "
        "those that there are.",
        code="project_not_found",
        param="project_id",
    )


_ROWS: Final = ResourceRows(
    PROJECTS,
    _project,
    ids.parse_project_id,
    unknown_project,
    or_(bindparam("include_archived", type_=Boolean) == true(), PROJECTS.c.archived_at.is_(None)),
)


async def required_project(
    connection: Connection, tenant_id: TenantId, project_id: str, *, is_active: bool = False
) -> Project:
    """Return a project; with `is_active` not an archived one."""
    if ids.parse_project_id(project_id) == tenant_id:
        await _add_default(connection, tenant_id)
    project = await _ROWS.get(connection, project_id, tenant=tenant_id, include_archived=True)
    if is_active and project.archived_at is not None:
        raise InvalidRequest(
            f"Project '{project_id}' is archived. Nothing of it can be changed any more; create "
            "another one.",
            code="project_archived",
            param="project_id",
        )
    return project


class Projects:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def create(self, caller: AdminCaller, body: ProjectCreate) -> Project:
        check_supported(body)
        tenant_id = caller.tenant_id
        async with self._transactions.in_turn(tenant_id) as connection:
            await _add_default(connection, tenant_id)
            count = await _ROWS.count(connection, tenant=tenant_id, include_archived=True)
            if count >= PROJECTS_MAX:
                raise RateLimited(
                    f"Your organization has {PROJECTS_MAX} projects, which is as many as may "
                    "be, archived ones included. Ask the operator of this server for more.",
                    code="too_many_projects",
                )
            values = {"tenant_id": tenant_id, "id": ids.new_uuid(), "name": body.name}
            inserted = await connection.execute(insert_row(PROJECTS, *values), values)
            project = _project(inserted.one())
            target = ids.project_id(project.id)
            await caller.note(connection, "project.created", target, project.id, data=audited(body))
            return project

    async def get(self, tenant_id: TenantId, project_id: str) -> Project:
        async with self._transactions.reading(tenant_id) as connection:
            return await required_project(connection, tenant_id, project_id)

    async def list(
        self, tenant_id: TenantId, page: PageParams, *, include_archived: bool = False
    ) -> Page[Project]:
        # Reading creates the tenant's default project if it has none yet.
        async with self._transactions.reading(tenant_id) as connection:
            await _add_default(connection, tenant_id)
            return await _ROWS.page(
                connection, page, tenant=tenant_id, include_archived=include_archived
            )

    async def rename(self, caller: AdminCaller, project_id: str, body: ProjectUpdate) -> Project:
        check_supported(body)
        if body.name is None:
            async with self._transactions.reading(caller.tenant_id) as connection:
                return await required_project(
                    connection, caller.tenant_id, project_id, is_active=True
                )
        return await self._change(caller, project_id, body, lambda _: {"name": body.name})

    async def archive(self, caller: AdminCaller, project_id: str) -> Project:
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
            row = {"tenant": tenant_id, "id": project.id}
            archived = await connection.execute(mark_by_id(PROJECTS, "archived_at"), row)
            await caller.note(connection, "project.archived", project_id, project.id)
            return _project(archived.one())

    async def set_models(
        self, caller: AdminCaller, project_id: str, body: ModelPermissionsUpdate
    ) -> Project:
        models = list(dict.fromkeys(body.model_ids))
        return await self._change(
            caller,
            project_id,
            body,
            lambda _: {"models_mode": body.mode, "models": models},
            event="harmony.model_permissions.updated",
        )

    async def delete_models(self, caller: AdminCaller, project_id: str) -> Project:
        # Keys of the project may then use all models of the tenant.
        return await self._change(
            caller,
            project_id,
            NoBody(),
            lambda _: {"models_mode": None, "models": None},
            event="harmony.model_permissions.deleted",
        )

    async def set_tools(
        self, caller: AdminCaller, project_id: str, body: HostedToolsUpdate
    ) -> Project:
        # Tools that are off are dropped from requests.
        return await self._change(
            caller,
            project_id,
            body,
            lambda controls: {"tools_off": sorted(body.tools_off(controls.tools_off))},
        )

    async def set_tiers(
        self, caller: AdminCaller, project_id: str, body: ServiceTiersUpdate
    ) -> Project:
        # Requests for a tier that is not allowed get the default.
        return await self._change(caller, project_id, body, body.columns)

    async def _change(
        self,
        caller: AdminCaller,
        project_id: str,
        body: WireModel,
        columns_of: Callable[[ProjectControls], dict[str, Any]],
        *,
        event: str = "project.updated",
    ) -> Project:
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            columns = columns_of(project.controls)
            row = {"tenant": tenant_id, "id": project.id, **columns}
            updated = await connection.execute(update_by_id(PROJECTS, *columns), row)
            await caller.note(
                connection, event, project_id, project.id, changes_requested=audited(body)
            )
            return _project(updated.one())
