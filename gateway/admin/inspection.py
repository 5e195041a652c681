"""`/admin/v1/responses` and `/admin/v1/audit_log`: past events for operators, without content."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.admin.governance import AUDIT_QUERY, audit_query
from gateway.admin.pages import PAGE, conversation_page
from gateway.admin.routes import AdminRoute
from gateway.api.query import integer, several, values_of
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import SECOND_MAX
from gateway.protocol.request_errors import wrong_value
from gateway.store.inspection import ResponseSearch, search
from gateway.store.schema import RUNNING, TERMINAL
from gateway.tenancy import ProjectId, TenantId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.admin.operations import Operations
    from gateway.admin.routes import AdminCall
    from gateway.services.governance.audit import AuditLogs
    from gateway.store.postgres.database import Database, Row

STATUSES: Final = (*RUNNING, *TERMINAL)
SPAN_MAX: Final = timedelta(days=31)


class Inspection:
    """Responses of all tenants of one database, for operators."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def responses(  # noqa: PLR0913 - each is a filter
        self,
        *,
        limit: int,
        after: str | None = None,
        response_id: str | None = None,
        tenant: str | None = None,
        project_id: str | None = None,
        key_id: str | None = None,
        model: str | None = None,
        statuses: Sequence[str] = (),
        created_from: int | None = None,
        created_until: int | None = None,
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return responses, the newest first, and True if there are more.

        `created_from` and `created_until` are unix seconds; without them: the last `SPAN_MAX`.
        Raises `InvalidRequest` for malformed ids and for a longer period than `SPAN_MAX`.
        """
        until = datetime.now(UTC) + timedelta(minutes=1)
        if created_until is not None:
            until = _moment(created_until)
        begin = until - SPAN_MAX if created_from is None else _moment(created_from)
        if until - begin > SPAN_MAX:
            raise InvalidRequest(
                f"Ask for {SPAN_MAX.days} days at most.",
                code="invalid_value",
                param="created_at[gte]",
            )
        wanted = ResponseSearch(
            from_at=begin,
            until_at=until,
            tenant=tenant,
            id=_require_parsed(response_id, ids.parse_response_id(response_id or ""), "id"),
            project=_require_parsed(
                project_id, ids.parse_project_id(project_id or ""), "project_id"
            ),
            key=_require_parsed(key_id, ids.parse_api_key_id(key_id or ""), "api_key_id"),
            model=model,
            statuses=list(statuses) or None,
            after=_require_parsed(after, ids.parse_response_id(after or ""), "after"),
        )
        rows = await search(self._database, wanted, rows_max=limit + 1)
        return [_body(row) for row in rows[:limit]], len(rows) > limit


def _require_parsed(given: str | None, found: UUID | None, param: str) -> UUID | None:
    if given is not None and found is None:
        raise InvalidRequest(f"'{param}' is no such id.", code="invalid_value", param=param)
    return found if given is not None else None


def _moment(second: int) -> datetime:
    return datetime.fromtimestamp(min(second, SECOND_MAX), UTC)


def _body(row: Row) -> dict[str, Any]:
    tenant_id = TenantId(row.tenant_id)
    return {
        "id": ids.response_id(row.id),
        "object": "response.record",
        "tenant": {"id": ids.tenant_id(tenant_id), "name": row.tenant_name},
        "project_id": ids.project_id(ProjectId(row.project_id or row.tenant_id)),
        "api_key_id": ids.api_key_id(row.key_id),
        "model": row.model,
        "status": row.status,
        "background": row.background,
        "stream": row.streamed,
        "created_at": int(row.created_at.timestamp()),
        "completed_at": None if row.completed_at is None else int(row.completed_at.timestamp()),
        "previous_response_id": row.parent_id and ids.response_id(row.parent_id),
        "conversation_id": row.conversation_id and ids.conversation_id(row.conversation_id),
        "replica": row.owner,
        "attempts": row.attempts,
    }


PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
RESPONSES_QUERY: Final = (
    *(*PAGE, "id", "tenant", "project_id", "api_key_id", "model", "created_at[gte]"),
    *("created_at[lt]", *several("status")),
)
"""What stored responses are looked for by."""


def routes(inspection: Inspection, logs: AuditLogs, operations: Operations) -> list[AdminRoute]:
    """Return the read-only routes of operators."""
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
    """Endpoints of responses and of the audit log, for operators."""

    def __init__(self, inspection: Inspection, logs: AuditLogs, operations: Operations) -> None:
        self._inspection = inspection
        self._logs = logs
        self._operations = operations

    async def responses(self, call: AdminCall) -> dict[str, Any]:
        """List stored responses.

        Filters: `tenant`, `id`, `project_id`, `api_key_id`, `model`, `status` (repeat it for any of
        several), `created_at[gte]` and `created_at[lt]`.
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
        """List the chain of `tenant` (a name), or without it that of the operators."""
        query = call.request.query_params
        name, tenant_id = query.get("tenant"), None
        if name is not None:
            tenant_id = (await self._operations.tenant(name)).tenant.id
        return await self._logs.list_entries(tenant_id, audit_query(query), names_operators=True)
