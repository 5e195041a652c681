"""`/v1/organization/roles` and `/v1/projects/{id}/roles`: roles of keys, which are fixed here.

People sign in elsewhere, so there are no users, invites and groups; external keys, storage and
certificates are the operator's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.admin.projects import ONE as PROJECT
from gateway.admin.routes import ORDERED_PAGE, AdminRoute, cut, next_page, page_params
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.tenancy.permissions import ROLES

if TYPE_CHECKING:
    from gateway.admin.projects import Projects
    from gateway.admin.routes import AdminCall, Endpoint
    from gateway.protocol.admin_bodies import Json

ORGANIZATION_ROLES: Final = "/organization/roles"
PROJECT_ROLES: Final = "/projects/{project_id}/roles"
LACKING: Final = (
    *(f"{PROJECT}/{name}" for name in ("users", "groups", "certificates")),
    *(f"/projects/{{project_id}}/{name}" for name in ("users", "groups")),
    *(f"/organization/{name}" for name in ("users", "invites", "groups", "certificates")),
    *("/organization/external_keys", "/organization/external_storage"),
)
"""Paths that only OpenAI's organizations have, with all below: they get a 404 that says so."""


def routes(projects: Projects) -> list[AdminRoute]:
    async def refuse_role(call: AdminCall) -> Json:
        await _check_project(projects, call)
        raise InvalidRequest(
            "Roles are predefined here: an admin key without scopes has that of an owner, one with "
            "the scope 'api.all.read' that of a reader.",
            code="unsupported_value",
        )

    def refusing(
        path: str, endpoint: Endpoint, *methods: Literal["GET", "POST", "DELETE"]
    ) -> list[AdminRoute]:
        spans = path.endswith("/{rest}")
        return [
            AdminRoute(
                method,
                path,
                "roles.read" if method == "GET" else "roles.write",
                endpoint,
                refuses=True,
                spans_slashes=spans,
            )
            for method in methods
        ]

    every_route = []
    for path, kind in ((ORGANIZATION_ROLES, "api.organization"), (PROJECT_ROLES, "api.project")):
        one = f"{path}/{{role_id}}"
        every_route += [
            AdminRoute("GET", path, "roles.read", _listed(projects, kind), query=ORDERED_PAGE),
            AdminRoute("GET", one, "roles.read", _read(projects, kind)),
            *refusing(path, refuse_role, "POST"),
            *refusing(one, refuse_role, "POST", "DELETE"),
        ]
    for lacking in LACKING:
        for path in (lacking, f"{lacking}/{{rest}}"):
            every_route += refusing(path, _refuse, "GET", "POST", "DELETE")
    return every_route


def _listed(projects: Projects, kind: str) -> Endpoint:
    async def endpoint(call: AdminCall) -> Json:
        params = page_params(call.request.query_params)
        await _check_project(projects, call)
        page, has_more = cut(_roles(kind), params)
        return next_page(page, next_id=page[-1]["id"] if has_more else None)

    return endpoint


def _read(projects: Projects, kind: str) -> Endpoint:
    async def endpoint(call: AdminCall) -> Json:
        await _check_project(projects, call)
        role_id = call.path["role_id"]
        for one in _roles(kind):
            if one["id"] == role_id:
                return one
        raise ResourceNotFound(
            f"There is no role '{shown(role_id)}'.", code="role_not_found", param="role_id"
        )

    return endpoint


async def _check_project(projects: Projects, call: AdminCall) -> None:
    if "project_id" in call.path:
        await projects.get(call.principal.tenant_id, call.path["project_id"])


async def _refuse(call: AdminCall) -> Json:
    raise ResourceNotFound(
        f"This server has no {call.request.method} {shown(call.request.url.path)}: people sign in "
        "elsewhere, and external keys, storage and certificates are its operator's. See "
        "docs/admin-api.md for what it has.",
        code="unsupported_endpoint",
    )


def _roles(kind: str) -> list[Json]:
    # Roles of keys, not of people: in the organization, or in one project.
    if kind == "api.project":
        return [_role(kind, "member", "Use of the project, as far as the key's scopes go.", [])]
    descriptions = {"owner": "Everything of the organization.", "reader": "Reading all of it."}
    return [_role(kind, name, descriptions[name], sorted(ROLES[name])) for name in ROLES]


def _role(kind: str, name: str, description: str, permissions: list[Any]) -> Json:
    return {
        "object": "role",
        "id": f"role-{kind}-{name}",
        "name": name,
        "description": description,
        "permissions": permissions,
        "predefined_role": True,
        "resource_type": kind,
    }
