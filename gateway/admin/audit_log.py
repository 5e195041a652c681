"""`/v1/organization/audit_logs` and `/admin/v1/audit_log`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.admin.routes import PAGE, AdminRoute
from gateway.api.query import integer, several, values_of
from gateway.errors import InvalidRequest
from gateway.services.audit_logs import AuditQuery

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from gateway.admin.routes import AdminCall
    from gateway.admin.tenants import Tenants
    from gateway.protocol.admin_bodies import Json
    from gateway.services.audit_logs import AuditLogs

ALL: Final = "/organization/audit_logs"
LISTS: Final = ("event_types", "actor_ids", "actor_emails", "resource_ids", "project_ids")
_BOUND: Final = re.compile(r"effective_at\[(\w+)\]")
AUDIT_QUERY: Final = (
    *(*PAGE, "before", "tenant_only"),
    *(spelled for name in LISTS for spelled in several(name)),
    *(f"effective_at[{bound}]" for bound in ("gt", "gte", "lt", "lte")),
)


def routes(logs: AuditLogs) -> list[AdminRoute]:
    async def listed(call: AdminCall) -> Json:
        query = audit_query(call.request.query_params)
        return await logs.list_entries(call.principal.tenant_id, query)

    return [AdminRoute("GET", ALL, "audit_log.read", listed, query=AUDIT_QUERY)]


def operator_routes(logs: AuditLogs, tenants: Tenants) -> list[AdminRoute]:
    async def listed(call: AdminCall) -> Json:
        # The chain of `tenant` (a name), or without it that of the operators.
        query = call.request.query_params
        name, tenant_id = query.get("tenant"), None
        if name is not None:
            tenant_id = (await tenants.get(name)).tenant.id
        return await logs.list_entries(tenant_id, audit_query(query), names_operators=True)

    query = (*AUDIT_QUERY, "tenant")
    return [AdminRoute("GET", "/audit_log", "operator_audit_log.read", listed, query=query)]


def audit_query(query: QueryParams) -> AuditQuery:
    values = {name: values_of(query, name) for name in LISTS}
    bounds = {}
    for name in query:
        if (bound := _BOUND.fullmatch(name)) is not None:
            second = integer(query, name, minimum=0)
            assert second is not None, "it is there"
            bounds[bound[1]] = second
    if query.get("tenant_only", "false").lower() not in {"false", "0"}:
        raise InvalidRequest(
            "There are no events of a tenant apart from those of its organization.",
            code="unsupported_parameter",
            param="tenant_only",
        )
    projects = values.pop("project_ids")
    return AuditQuery(
        limit=integer(query, "limit", minimum=1, maximum=100) or 20,
        after=query.get("after") or None,
        before=query.get("before") or None,
        # A malformed id finds nothing, like an unknown one.
        projects=[*filter(None, map(ids.parse_project_id, projects))] if projects else None,
        effective_at=bounds,
        **values,
    )
