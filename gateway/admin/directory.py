"""Roles, which are fixed here, and what an organization of this server has none of.

People sign in elsewhere, so there are no users, invites and groups; keys of tenants and
certificates are the operator's. Lists of these are empty, in the page class that the SDK has for
each, nothing of them is found, and what would make one says that there is no such endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from gateway.admin.pages import (
    ORDERED_PAGE,
    PAGE,
    conversation_page,
    cursor_page,
    cut,
    next_page,
    page_params,
)
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.routes import AdminRoute
from gateway.api.query import several
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.tenancy.permissions import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.admin.projects import Projects
    from gateway.admin.routes import AdminCall, Endpoint
    from gateway.tenancy.permissions import Permission

    Json = dict[str, Any]

ORGANIZATION_ROLES: Final = "/organization/roles"
PROJECT_ROLES: Final = "/projects/{project_id}/roles"
_PROJECT: Final = "project_id"


class EmptyList(NamedTuple):
    """A list that is always empty: its path, the parameter of one of its items, its page."""

    path: str
    id: str
    page: Callable[[], Json]
    area: str
    query: tuple[str, ...] = ORDERED_PAGE


def _conversation() -> Json:
    return conversation_page([], has_more=False)


def _cursor() -> Json:
    return cursor_page([], has_more=False)


def _next() -> Json:
    return next_page([], next_id=None)


EMPTY_LISTS: Final = (
    EmptyList(
        "/organization/users", "user_id", _conversation, "members", (*PAGE, *several("emails"))
    ),
    EmptyList("/organization/invites", "invite_id", _conversation, "members", PAGE),
    EmptyList("/organization/groups", "group_id", _next, "members"),
    EmptyList(f"{PROJECT}/users", "user_id", _conversation, "members", PAGE),
    EmptyList(f"{PROJECT}/groups", "group_id", _next, "members"),
    EmptyList(
        "/organization/external_keys",
        "external_key_id",
        _cursor,
        "external_keys",
        (*ORDERED_PAGE, "purpose"),
    ),
    EmptyList(
        "/organization/external_storage",
        "external_storage_id",
        _cursor,
        "external_keys",
        (*ORDERED_PAGE, "project_id"),
    ),
    EmptyList("/organization/certificates", "certificate_id", _conversation, "external_keys"),
    EmptyList(f"{PROJECT}/certificates", "certificate_id", _conversation, "external_keys"),
)
BELOW: Final = (
    ("/organization/users/{user_id}", "roles", "role_id"),
    ("/organization/groups/{group_id}", "roles", "role_id"),
    ("/organization/groups/{group_id}", "users", "user_id"),
    ("/projects/{project_id}/users/{user_id}", "roles", "role_id"),
    ("/projects/{project_id}/groups/{group_id}", "roles", "role_id"),
)
"""Lists of one of those: its path, their name, the parameter of one of their items."""
_OF_KEYS: Final = (
    "/organization/external_keys/{external_key_id}/validate",
    "/organization/external_storage/{external_storage_id}/validate",
)
_OF_CERTIFICATES: Final = tuple(
    f"{base}/certificates/{act}"
    for base in ("/organization", PROJECT)
    for act in ("activate", "deactivate")
)


def routes(projects: Projects) -> list[AdminRoute]:
    """Return the routes of roles, and of the lists that are always empty here."""
    answers = DirectoryEndpoints(projects)
    found = []
    for path, kind in ((ORGANIZATION_ROLES, "api.organization"), (PROJECT_ROLES, "api.project")):
        one = f"{path}/{{role_id}}"
        found += [
            AdminRoute("GET", path, "roles.read", answers.roles(kind), query=ORDERED_PAGE),
            AdminRoute("POST", path, "roles.write", answers.refuse_role, refuses=True),
            AdminRoute("GET", one, "roles.read", answers.role(kind)),
            AdminRoute("POST", one, "roles.write", answers.refuse_role, refuses=True),
            AdminRoute("DELETE", one, "roles.write", answers.refuse_role, refuses=True),
        ]
    # Before the certificates themselves, whose ids may be any word.
    for path in _OF_CERTIFICATES:
        found.append(
            AdminRoute("POST", path, "external_keys.write", answers.unsupported, refuses=True)
        )
    for empty_list in EMPTY_LISTS:
        found += _empty_list_routes(empty_list, answers)
    for path, name, item in BELOW:
        found += _below(path, name, item, answers)
    for path in _OF_KEYS:
        found.append(
            AdminRoute(
                "POST", path, "external_keys.write", _unknown_last(path, answers), refuses=True
            )
        )
    return found


def _below(path: str, name: str, item: str, answers: DirectoryEndpoints) -> Iterator[AdminRoute]:
    unknown = _unknown_last(path, answers)
    yield AdminRoute("GET", f"{path}/{name}", "members.read", unknown, refuses=True)
    yield AdminRoute("POST", f"{path}/{name}", "members.write", unknown, refuses=True)
    yield AdminRoute("GET", f"{path}/{name}/{{{item}}}", "members.read", unknown, refuses=True)
    yield AdminRoute("DELETE", f"{path}/{name}/{{{item}}}", "members.write", unknown, refuses=True)


def _unknown_last(path: str, answers: DirectoryEndpoints) -> Endpoint:
    return answers.unknown(path.rpartition("{")[2].partition("}")[0])


def _empty_list_routes(empty_list: EmptyList, answers: DirectoryEndpoints) -> Iterator[AdminRoute]:
    one = f"{empty_list.path}/{{{empty_list.id}}}"
    read, write = _PERMISSIONS[empty_list.area]
    yield AdminRoute(
        "GET", empty_list.path, read, answers.empty(empty_list.page), query=empty_list.query
    )
    yield AdminRoute("POST", empty_list.path, write, answers.unsupported, refuses=True)
    yield AdminRoute("GET", one, read, answers.unknown(empty_list.id), refuses=True)
    yield AdminRoute("POST", one, write, answers.unknown(empty_list.id), refuses=True)
    yield AdminRoute("DELETE", one, write, answers.unknown(empty_list.id), refuses=True)


_PERMISSIONS: Final[Mapping[str, tuple[Permission, Permission]]] = {
    "members": ("members.read", "members.write"),
    "external_keys": ("external_keys.read", "external_keys.write"),
}


class DirectoryEndpoints:
    """Endpoints that change nothing. One below a project is 404 where there is no such project."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    def roles(self, kind: str) -> Endpoint:
        """Return an endpoint that lists the roles of one kind of resource."""

        async def endpoint(call: AdminCall) -> Json:
            asked = page_params(call.request.query_params)
            await self._check_project(call)
            page, has_more = cut(_roles(kind), asked)
            return next_page(page, next_id=page[-1]["id"] if has_more else None)

        return endpoint

    def role(self, kind: str) -> Endpoint:
        """Return an endpoint for one predefined role; any other id is a 404."""

        async def endpoint(call: AdminCall) -> Json:
            await self._check_project(call)
            for one in _roles(kind):
                if one["id"] == call.path["role_id"]:
                    return one
            raise _unknown(call, "role_id")

        return endpoint

    async def refuse_role(self, call: AdminCall) -> Json:
        """Raise `InvalidRequest`: there are no custom roles."""
        await self._check_project(call)
        raise InvalidRequest(
            "Roles are predefined here: an admin key without scopes has that of an owner, one with "
            "the scope 'api.all.read' that of a reader.",
            code="unsupported_value",
        )

    def empty(self, page: Callable[[], Json]) -> Endpoint:
        """Return an endpoint that answers with an empty list."""

        async def endpoint(call: AdminCall) -> Json:
            page_params(call.request.query_params)
            await self._check_project(call)
            return page()

        return endpoint

    def unknown(self, parameter: str) -> Endpoint:
        """Return an endpoint that answers 404 for any id of an empty list."""

        async def endpoint(call: AdminCall) -> Json:
            await self._check_project(call)
            raise _unknown(call, parameter)

        return endpoint

    async def unsupported(self, call: AdminCall) -> Json:
        """Raise `ResourceNotFound`, which names the endpoint as missing."""
        await self._check_project(call)
        _refuse(call)

    async def _check_project(self, call: AdminCall) -> None:
        if _PROJECT in call.path:
            await self._projects.get(call.principal.tenant_id, call.path[_PROJECT])


def _roles(kind: str) -> list[Json]:
    # Roles of keys, not of people: in the organization, or in one project.
    if kind == "api.project":
        return [_role(kind, "member", "Use of the project, as far as the key's scopes go.", [])]
    told = {"owner": "Everything of the organization.", "reader": "Reading all of it."}
    return [_role(kind, name, told[name], sorted(ROLES[name])) for name in ROLES]


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


def _unknown(call: AdminCall, parameter: str) -> ResourceNotFound:
    kind = parameter.removesuffix("_id")
    return ResourceNotFound(
        f"There is no {kind.replace('_', ' ')} '{shown(call.path[parameter])}'.",
        code=f"{kind}_not_found",
        param=parameter,
    )


def _refuse(call: AdminCall) -> NoReturn:
    raise ResourceNotFound(
        f"This server has no {call.request.method} {shown(call.request.url.path)}. See "
        "docs/admin-api.md for what it has.",
        code="unsupported_endpoint",
    )
