"""Makes the OpenAPI document of the admin listener, from its routes.

Bodies are ours, since they refuse what they do not know; answers of the plane of tenants are of
OpenAI's types, which they fit, with what is ours under `harmony`. Routes that only say why there is
nothing (`AdminRoute.refuses`) are left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson
from openai.types.admin import organization as of_organization
from openai.types.admin.organization import projects as of_projects
from openai.types.admin.organization.projects import service_accounts as of_accounts
from openai.types.admin.organization.workload_identity_providers import FederationRule
from pydantic import TypeAdapter

from gateway import __version__
from gateway.admin.resources import admin_routes, operator_routes
from gateway.api.openapi.endpoints import REFERENCE, Json
from scripts.openapi.generate import ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.admin.routes import AdminRoute

_PROJECTS: Final = "/v1/organization/projects"
_PROJECT: Final = f"{_PROJECTS}/{{project_id}}"
_PROVIDERS: Final = "/v1/organization/workload_identity_providers"
_PROVIDER: Final = f"{_PROVIDERS}/{{workload_identity_provider_id}}"
LISTS: Final[dict[str, Any]] = {
    _PROJECTS: of_organization.Project,
    f"{_PROJECT}/service_accounts": of_projects.ProjectServiceAccount,
    f"{_PROJECT}/api_keys": of_projects.ProjectAPIKey,
    f"{_PROJECT}/rate_limits": of_projects.ProjectRateLimit,
    f"{_PROJECT}/spend_alerts": of_projects.ProjectSpendAlert,
    "/v1/organization/admin_api_keys": of_organization.AdminAPIKey,
    "/v1/organization/audit_logs": of_organization.AuditLogListResponse,
    "/v1/organization/spend_alerts": of_organization.OrganizationSpendAlert,
    "/v1/organization/roles": of_organization.Role,
    "/v1/projects/{project_id}/roles": of_organization.Role,
    _PROVIDERS: of_organization.WorkloadIdentityProvider,
    f"{_PROVIDER}/federation_rules": FederationRule,
}
"""What is in the lists of the plane of tenants, and what one of them is."""
OBJECTS: Final[dict[str, Any]] = {
    f"{_PROJECT}/archive": of_organization.Project,
    f"{_PROJECT}/model_permissions": of_projects.ProjectModelPermissions,
    f"{_PROJECT}/hosted_tool_permissions": of_projects.ProjectHostedToolPermissions,
    f"{_PROJECT}/service_tier_settings": of_projects.ProjectServiceTierSettings,
    f"{_PROJECT}/spend_limit": of_projects.ProjectSpendLimit,
    f"{_PROJECT}/data_retention": of_projects.ProjectDataRetention,
    "/v1/organization/spend_limit": of_organization.OrganizationSpendLimit,
    "/v1/organization/data_retention": of_organization.OrganizationDataRetention,
    "/v1/organization/costs": of_organization.UsageCostsResponse,
    "/v1/organization/usage/completions": of_organization.UsageCompletionsResponse,
}
MADE: Final[dict[str, Any]] = {
    f"{_PROJECT}/service_accounts": of_projects.ServiceAccountCreateResponse,
    f"{_PROJECT}/service_accounts/{{service_account_id}}/api_keys": (
        of_accounts.APIKeyCreateResponse
    ),
    "/v1/organization/admin_api_keys": of_organization.AdminAPIKeyCreateResponse,
}
"""What a POST of a list answers where that has more than the list: a secret, shown once."""
_WHOLE: Final = {kind.__name__ for kind in (*LISTS.values(), *OBJECTS.values(), *MADE.values())}
_VERBS: Final = {"GET": "Get", "POST": "Update", "DELETE": "Delete"}
ACTIONS: Final = {
    **{name: name.capitalize() for name in ("archive", "rotate", "disable", "delete", "restore")},
    **{name: name.capitalize() for name in ("hold", "export", "drain", "undrain", "resume", "end")},
    "confirm": "Confirm",
    "withdraw": "Withdraw confirmation of",
    "reconcile": "Reconcile",
    "erasure": "Erase a person of",
}
"""What a POST does that makes nothing, and is named by the last part of its path."""
_LISTED: Final = frozenset({"backends", "replicas", "prices", "responses", "sinks", "issuers"})
_SET: Final = frozenset(
    {
        *("model_permissions", "hosted_tool_permissions", "service_tier_settings", "spend_limit"),
        "data_retention",
    }
)
"""Of which there is one, that is set."""
_TEXT: Final[Json] = {"type": "string"}
_NUMBER: Final[Json] = {"type": "integer", "minimum": 0}
_QUERY: Final[dict[str, tuple[str, Json]]] = {
    "limit": ("Of a page, how much it may have.", {"type": "integer", "minimum": 1}),
    "after": ("The id behind which the page begins.", _TEXT),
    "before": ("The id before which the page ends.", _TEXT),
    "order": ("The oldest first, or the newest.", {"enum": ["asc", "desc"]}),
    "start_time": ("From when on, in unix seconds.", _NUMBER),
    "end_time": ("Until when, in unix seconds.", _NUMBER),
}
_BOUND: Final = re.compile(r"(\w+)\[(\w+)\]")
_PLACE: Final = re.compile(r"\{(\w+)\}")


class Unasked:
    """Stand-in for all services: routes are described, and nobody calls them."""

    def __getattr__(self, name: str) -> Any:
        return self


def described_routes() -> list[AdminRoute]:
    """Return the routes that the document describes."""
    nobody: Any = Unasked()
    found = [*admin_routes(nobody), *operator_routes(nobody)]
    return [one for one in found if not one.refuses]


def admin_document() -> Json:
    """Return the OpenAPI document of both planes."""
    served = described_routes()
    schemas = _Schemas()
    paths: dict[str, Json] = {}
    urls = {one.url for one in served}
    for route in served:
        described = _operation(route, urls, schemas)
        paths.setdefault(route.url, {})[route.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Harmony Gateway: administration",
            "version": __version__,
            "description": "OpenAI's admin API for the administrators of one tenant, and the plane "
            "of operators.",
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "tenant", "description": "With an admin key of the tenant, `sk-admin-…`."},
            {"name": "operator", "description": "With a key of an operator, `sk-op-…`."},
        ],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.made(),
        },
    }


def _admit_ours(kind: Any, schema: Json) -> None:
    # Values that OpenAI's client lacks.
    properties = schema.get("properties", {})
    if kind is of_organization.AuditLogListResponse:
        properties["type"] = {"type": "string", "description": "Of OpenAI's, or `harmony.…`."}
    if kind is of_organization.OrganizationDataRetention:
        properties["type"]["enum"].append("none")


class _Schemas:
    """Types by their names. A part that has the name of another is named after its whole, too."""

    def __init__(self) -> None:
        self._made: Json = {"Error": ERROR, "Object": {"type": "object"}}

    def of(self, kind: Any, *, is_closed: bool = False) -> Json:
        """Return a reference to the schema of a type; `is_closed` forbids other keys."""
        schema = TypeAdapter(kind).json_schema(ref_template=f"{REFERENCE}{{model}}")
        _admit_ours(kind, schema)
        name = kind.__name__
        while part := next(
            (part for part in schema.get("$defs", {}).items() if self._is_other(*part)), None
        ):
            schema = _renamed(schema, part[0], name + part[0])
        self._made |= schema.pop("$defs", {})
        if is_closed:
            schema["additionalProperties"] = False
        if "$ref" not in schema:
            self._made[name] = schema
        return {"$ref": REFERENCE + name}

    def _is_other(self, name: str, schema: Json) -> bool:
        return name in _WHOLE or self._made.get(name, schema) != schema

    def page_of(self, kind: Any) -> Json:
        """Return a reference to the schema of a list page of this type."""
        one = self.of(kind)
        name = one["$ref"].removeprefix(REFERENCE) + "List"
        self._made[name] = {
            "type": "object",
            "required": ["object", "data"],
            "properties": {
                "object": {"const": "list"},
                "data": {"type": "array", "items": one},
                "has_more": {"type": "boolean"},
            },
        }
        return {"$ref": REFERENCE + name}

    def made(self) -> Json:
        return dict(sorted(self._made.items()))


def _renamed(schema: Json, name: str, new: str) -> Json:
    old, ours = (f'"{REFERENCE}{one}"'.encode() for one in (name, new))
    renamed: Json = orjson.loads(orjson.dumps(schema).replace(old, ours))
    renamed["$defs"][new] = renamed["$defs"].pop(name)
    return renamed


def _operation(route: AdminRoute, urls: Iterable[str], schemas: _Schemas) -> Json:
    media = None
    if route.url.endswith("/export"):
        media = "application/zip" if route.body else "application/jsonl"
    answer = {"type": "string"} if media else _answer(route, schemas)
    content = {media or "application/json": {"schema": answer}}
    refused = {"application/json": {"schema": {"$ref": f"{REFERENCE}Error"}}}
    summary = _summary(route, urls)
    described: Json = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.url}").strip("_"),
        "tags": [route.plane],
        "summary": summary,
        "description": f"Takes the permission `{route.permission}`.",
        "responses": {
            "200": {"description": f"{summary}.", "content": content},
            "default": {"description": "An error.", "content": refused},
        },
    }
    if parameters := [*_of_path(route), *_of_query(route)]:
        described["parameters"] = parameters
    if route.body is not None:
        body = schemas.of(route.body, is_closed=True)
        described["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return described


def _answer(route: AdminRoute, schemas: _Schemas) -> Json:
    url, collection = route.url, route.url.rpartition("/{")[0]
    if route.method == "DELETE":
        return {"$ref": f"{REFERENCE}Object"}
    if route.method == "GET" and url in LISTS:
        return schemas.page_of(LISTS[url])
    kind = MADE.get(url) or LISTS.get(url) or OBJECTS.get(url)
    if kind is None and url.endswith("}"):
        kind = LISTS.get(collection)
    return {"$ref": f"{REFERENCE}Object"} if kind is None else schemas.of(kind)


def _summary(route: AdminRoute, urls: Iterable[str]) -> str:
    # For example `Create service account` or `Archive project`.
    *before, last = [part for part in route.url.split("/") if part]
    named = [part for part in before if not part.startswith("{")]
    is_list = route.url in LISTS or any(url.rpartition("/{")[0] == route.url for url in urls)
    if last.startswith("{"):
        return _words(_VERBS[route.method], _one(named[-1]))
    if last in ACTIONS and route.method == "POST":
        return _words(ACTIONS[last], _one(named[-1]))
    if route.method == "GET" and named[-1] == "usage":
        return _words("Get usage:", last)
    if route.method == "GET":
        return _words("List" if is_list or last in _LISTED else "Get", last)
    if route.method == "DELETE":
        return _words("Delete", last)
    has_one = last in _SET
    return _words("Set" if has_one else "Create", last if has_one else _one(last))


def _one(name: str) -> str:
    return name.removesuffix("s")


def _words(verb: str, what: str) -> str:
    return f"{verb} {what.replace('_', ' ')}"


def _of_path(route: AdminRoute) -> Iterable[Json]:
    for name in _PLACE.findall(route.url):
        told = "Its name." if name == "name" else f"The id of the {name.removesuffix('_id')}."
        shown = told.replace("_", " ")
        yield {
            "name": name, "in": "path", "required": True, "description": shown, "schema": _TEXT,
        }  # fmt: skip


def _of_query(route: AdminRoute) -> Iterable[Json]:
    for name in route.query:
        if f"{name}[]" in route.query:
            continue  # a list, under its other name
        told, schema = _QUERY.get(name) or _filter(name)
        yield {
            "name": name, "in": "query", "required": name == "start_time", "description": told,
            "schema": schema,
        }  # fmt: skip


def _filter(name: str) -> tuple[str, Json]:
    if name.endswith("[]"):
        words = name.removesuffix("[]").replace("_", " ")
        return f"Several {words}.", {"type": "array", "items": _TEXT}
    if (bound := _BOUND.fullmatch(name)) is not None:
        return f"A bound ({bound[2]}) of {bound[1]}, in unix seconds.", _NUMBER
    return f"{name.replace('_', ' ').capitalize()}.", _TEXT
