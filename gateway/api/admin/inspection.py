"""`/admin/v1/responses` and `/admin/v1/audit_log`: what was, for operators, without content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.api.admin.governance import AUDIT_QUERY, audit_query
from gateway.api.admin.pages import PAGE, conversation_page
from gateway.api.admin.routes import AdminRoute
from gateway.api.query import integer, several, values_of
from gateway.protocol.request_errors import wrong_value
from gateway.services.admin.inspection import STATUSES

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.inspection import Inspection
    from gateway.services.admin.operations import Operations
    from gateway.services.governance.audit import AuditLogs

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
RESPONSES_QUERY: Final = (
    *(*PAGE, "id", "tenant", "project_id", "api_key_id", "model", "created_at[gte]"),
    *("created_at[lt]", *several("status")),
)
"""What stored responses are looked for by."""


def routes(inspection: Inspection, logs: AuditLogs, operations: Operations) -> list[AdminRoute]:
    """Those of the plane of operators that only read."""
    answers = InspectionEndpoints(inspection, logs, operations)
    return [
        AdminRoute(
            "GET",
            "/responses",
            "responses.read",
            answers.responses,
            "operator",
            query=RESPONSES_QUERY,
        ),
        AdminRoute(
            "GET",
            "/audit_log",
            "operator_audit_log.read",
            answers.audit_log,
            "operator",
            query=(*AUDIT_QUERY, "tenant"),
        ),
    ]


class InspectionEndpoints:
    """Endpoints for who looks into what happened."""

    def __init__(self, inspection: Inspection, logs: AuditLogs, operations: Operations) -> None:
        self._inspection = inspection
        self._logs = logs
        self._operations = operations

    async def responses(self, call: AdminCall) -> dict[str, Any]:
        """Stored responses by `tenant`, `id`, `project_id`, `api_key_id`, `model`, `status` (more
        than once: one of them), `created_at[gte]` and `created_at[lt]`.
        """
        query = call.request.query_params
        statuses = values_of(query, "status")
        for status in statuses:
            if status not in STATUSES:
                raise wrong_value("status", status, STATUSES)
        found, has_more = await self._inspection.responses(
            limit=integer(query, "limit", minimum=1, maximum=PAGE_MAX) or PAGE_DEFAULT,
            after=query.get("after"),
            response_id=query.get("id"),
            tenant=query.get("tenant"),
            project_id=query.get("project_id"),
            key_id=query.get("api_key_id"),
            model=query.get("model"),
            statuses=statuses,
            created_from=integer(query, "created_at[gte]", minimum=0),
            created_until=integer(query, "created_at[lt]", minimum=0),
        )
        return conversation_page(found, has_more=has_more)

    async def audit_log(self, call: AdminCall) -> dict[str, Any]:
        """The chain of a `tenant` by its name, or without one that of the operators."""
        query = call.request.query_params
        name, tenant_id = query.get("tenant"), None
        if name is not None:
            tenant_id = (await self._operations.tenant(name)).tenant.id
        return await self._logs.list_entries(tenant_id, audit_query(query), names_operators=True)
