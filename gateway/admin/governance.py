"""`/organization/audit_logs`, and `/data_retention` of an organization and of its projects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway import ids
from gateway.admin.pages import PAGE
from gateway.admin.routes import AdminRoute
from gateway.api.query import integer, several, values_of
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import DataRetentionUpdate
from gateway.services.governance.audit import AuditQuery

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from gateway.admin.data_retention import RetentionControls
    from gateway.admin.routes import AdminCall
    from gateway.services.governance.audit import AuditLogs

OF_ORGANIZATION: Final = "/organization/data_retention"
OF_PROJECT: Final = "/organization/projects/{project_id}/data_retention"
LISTS: Final = ("event_types", "actor_ids", "actor_emails", "resource_ids", "project_ids")
_BOUND: Final = re.compile(r"effective_at\[(\w+)\]")
NO_PROJECT: Final = UUID(int=0)
AUDIT_QUERY: Final = (
    *(*PAGE, "before", "tenant_only"),
    *(spelled for name in LISTS for spelled in several(name)),
    *(f"effective_at[{bound}]" for bound in ("gt", "gte", "lt", "lte")),
)
"""What pages of an audit log are asked for by."""


def routes(logs: AuditLogs, controls: RetentionControls) -> list[AdminRoute]:
    answers = GovernanceEndpoints(logs, controls)
    return [
        AdminRoute(
            "GET",
            "/organization/audit_logs",
            "audit_log.read",
            answers.audit_logs,
            query=AUDIT_QUERY,
        ),
        AdminRoute("GET", OF_ORGANIZATION, "data_retention.read", answers.organization),
        AdminRoute(
            "POST",
            OF_ORGANIZATION,
            "data_retention.write",
            answers.set_organization,
            body=DataRetentionUpdate,
        ),
        AdminRoute("GET", OF_PROJECT, "data_retention.read", answers.project),
        AdminRoute(
            "POST",
            OF_PROJECT,
            "data_retention.write",
            answers.set_project,
            body=DataRetentionUpdate,
        ),
    ]


class GovernanceEndpoints:
    """Endpoints of the audit log and of data retention."""

    def __init__(self, logs: AuditLogs, controls: RetentionControls) -> None:
        self._logs = logs
        self._controls = controls

    async def audit_logs(self, call: AdminCall) -> dict[str, Any]:
        """List entries, the newest first."""
        query = audit_query(call.request.query_params)
        return await self._logs.list_entries(call.principal.tenant_id, query)

    async def organization(self, call: AdminCall) -> dict[str, Any]:
        return await self._controls.of_organization(call.principal.tenant_id)

    async def set_organization(self, call: AdminCall) -> dict[str, Any]:
        """Set `zero_data_retention` or `none` for all projects that follow the organization."""
        asked = await call.body(DataRetentionUpdate)
        return await self._controls.set_of_organization(call.caller, asked.retention_type)

    async def project(self, call: AdminCall) -> dict[str, Any]:
        return await self._controls.of_project(call.principal.tenant_id, call.path["project_id"])

    async def set_project(self, call: AdminCall) -> dict[str, Any]:
        """Set the retention of one project, or let it follow its organization again."""
        asked = await call.body(DataRetentionUpdate)
        project_id = call.path["project_id"]
        return await self._controls.set_of_project(call.caller, project_id, asked.retention_type)


def audit_query(given: QueryParams) -> AuditQuery:
    """Parse the query of the audit log.

    Lists are `name[]=a&name[]=b` or use the plain name. Raises `InvalidRequest`.
    """
    values = {name: values_of(given, name) for name in LISTS}
    bounds = {}
    for name in given:
        if (bound := _BOUND.fullmatch(name)) is not None:
            second = integer(given, name, minimum=0)
            assert second is not None, "it is there"
            bounds[bound[1]] = second
    if given.get("tenant_only", "false").lower() not in {"false", "0"}:
        raise InvalidRequest(
            "There are no events of a tenant apart from those of its organization.",
            code="unsupported_parameter",
            param="tenant_only",
        )
    projects = values.pop("project_ids")
    return AuditQuery(
        limit=integer(given, "limit", minimum=1, maximum=100) or 20,
        after=given.get("after") or None,
        before=given.get("before") or None,
        projects=[_project(one) for one in projects] if projects else None,
        effective_at=bounds,
        **values,
    )


def _project(project_id: str) -> UUID:
    # A malformed id finds nothing, like an unknown one.
    return ids.parse_project_id(project_id) or NO_PROJECT
