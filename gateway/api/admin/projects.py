"""`/v1/organization/projects`: projects, and which models they may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.api.admin.pages import PAGE, conversation_page, page_params
from gateway.api.admin.routes import AdminRoute
from gateway.api.query import boolean
from gateway.protocol.admin.objects import (
    deleted_body,
    hosted_tools_body,
    model_permissions_body,
    project_body,
    service_tiers_body,
)
from gateway.protocol.admin.requests import (
    HostedToolsUpdate,
    ModelPermissionsUpdate,
    NoBody,
    ProjectCreate,
    ProjectUpdate,
    ServiceTiersUpdate,
)

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.projects import Projects
    from gateway.services.admin.transactions import AdminCaller

ALL = "/organization/projects"
ONE = f"{ALL}/{{project_id}}"
MODELS = f"{ONE}/model_permissions"
TOOLS = f"{ONE}/hosted_tool_permissions"
TIERS = f"{ONE}/service_tier_settings"


def routes(projects: Projects) -> list[AdminRoute]:
    """Those of projects, and of the models, tools and tiers that they give their keys."""
    answers = ProjectEndpoints(projects)
    return [
        AdminRoute("GET", ALL, "projects.read", answers.list, query=(*PAGE, "include_archived")),
        AdminRoute("POST", ALL, "projects.write", answers.create, body=ProjectCreate),
        AdminRoute("GET", ONE, "projects.read", answers.get),
        AdminRoute("POST", ONE, "projects.write", answers.update, body=ProjectUpdate),
        AdminRoute("POST", f"{ONE}/archive", "projects.write", answers.archive, body=NoBody),
        AdminRoute("GET", MODELS, "model_permissions.read", answers.models),
        AdminRoute(
            "POST",
            MODELS,
            "model_permissions.write",
            answers.set_models,
            body=ModelPermissionsUpdate,
        ),
        AdminRoute("DELETE", MODELS, "model_permissions.write", answers.delete_models),
        AdminRoute("GET", TOOLS, "projects.read", answers.tools),
        AdminRoute("POST", TOOLS, "projects.write", answers.set_tools, body=HostedToolsUpdate),
        AdminRoute("GET", TIERS, "projects.read", answers.tiers),
        AdminRoute("POST", TIERS, "projects.write", answers.set_tiers, body=ServiceTiersUpdate),
    ]


class ProjectEndpoints:
    """Projects of a tenant: list, make, rename, archive."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    async def list(self, call: AdminCall) -> dict[str, Any]:
        """Active ones, or with `include_archived` all."""
        query = call.request.query_params
        asked = page_params(query)
        page = await self._projects.list(
            call.principal.tenant_id,
            limit=asked.limit,
            after=asked.after,
            with_archived=boolean(query, "include_archived"),
        )
        return conversation_page(list(map(project_body, page.rows)), has_more=page.has_more)

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """POST of a name; `geography` and `residency` are refused: there is one place."""
        asked = await call.body(ProjectCreate)
        asked.check_supported()
        return project_body(await self._projects.create(call.caller, asked.name))

    async def get(self, call: AdminCall) -> dict[str, Any]:
        """GET by id, archived ones included."""
        return project_body(await self._projects.get(*_tenant_and_project(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """POST of a name, which is all that can be changed here."""
        asked = await call.body(ProjectUpdate)
        asked.check_supported()
        return project_body(await self._projects.rename(*_caller_and_project(call), asked.name))

    async def archive(self, call: AdminCall) -> dict[str, Any]:
        """For good: its keys end."""
        await call.body(NoBody)
        return project_body(await self._projects.archive(*_caller_and_project(call)))

    async def models(self, call: AdminCall) -> dict[str, Any]:
        """The list of models that keys of the project may, or may not, ask for."""
        return model_permissions_body((await self._projects.get(*_tenant_and_project(call))).models)

    async def set_models(self, call: AdminCall) -> dict[str, Any]:
        """POST of the whole list: it takes the place of the one there is."""
        asked = await call.body(ModelPermissionsUpdate)
        changed = await self._projects.set_models(*_caller_and_project(call), asked.permissions)
        return model_permissions_body(changed.models)

    async def delete_models(self, call: AdminCall) -> dict[str, Any]:
        """DELETE: the keys may ask for whatever their tenant may."""
        await self._projects.set_models(*_caller_and_project(call), None)
        return deleted_body("project.model_permissions")

    async def tools(self, call: AdminCall) -> dict[str, Any]:
        """The hosted tools that requests of the project may use, as far as its tenant may."""
        found = await self._projects.get(*_tenant_and_project(call))
        return hosted_tools_body(found.controls, call.principal.policy)

    async def set_tools(self, call: AdminCall) -> dict[str, Any]:
        """POST of the tools to switch on or off. One that is off is dropped from requests."""
        asked = await call.body(HostedToolsUpdate)
        changed = await self._projects.set_controls(
            *_caller_and_project(call),
            lambda before: {"tools_off": asked.tools_off(before.tools_off)},
        )
        return hosted_tools_body(changed.controls, call.principal.policy)

    async def tiers(self, call: AdminCall) -> dict[str, Any]:
        """The tier of requests that ask for none, and those that they may ask for."""
        return service_tiers_body((await self._projects.get(*_tenant_and_project(call))).controls)

    async def set_tiers(self, call: AdminCall) -> dict[str, Any]:
        """POST of either; a request that asks for a tier it may not have gets the usual one."""
        asked = await call.body(ServiceTiersUpdate)
        changed = await self._projects.set_controls(
            *_caller_and_project(call), lambda _: asked.changes()
        )
        return service_tiers_body(changed.controls)


def _tenant_and_project(call: AdminCall) -> tuple[Any, str]:
    return call.principal.tenant_id, call.path["project_id"]


def _caller_and_project(call: AdminCall) -> tuple[AdminCaller, str]:
    return call.caller, call.path["project_id"]
