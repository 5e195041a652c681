"""`/admin/v1/responses`: stored responses of all tenants, without what they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.admin.routes import PAGE, AdminRoute
from gateway.api.query import integer, list_body, several, values_of
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import moment_of, seconds_of
from gateway.protocol.request_errors import wrong_value
from gateway.store.postgres.statements import Statement
from gateway.store.schema import RUNNING, TERMINAL
from gateway.tenancy import ProjectId, TenantId

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from starlette.datastructures import QueryParams

    from gateway.admin.routes import AdminCall
    from gateway.protocol.admin_bodies import Json
    from gateway.store.postgres.database import Database, Row

STATUSES: Final = (*RUNNING, *TERMINAL)
SPAN_MAX: Final = timedelta(days=31)
_CLOCKS_DIFFER_S: Final = 3600
PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
QUERY: Final = (
    *(*PAGE, "before", "id", "tenant", "project_id", "api_key_id", "conversation_id", "model"),
    *("created_at[gte]", "created_at[lt]", *several("status")),
)

_NAMES: Final = (
    *("tenant_id", "id", "project_id", "key_id", "model", "status", "background", "streamed"),
    *("created_at", "completed_at", "parent_id", "conversation_id", "owner", "attempts"),
)
COLUMNS: Final = ", ".join(("t.name AS tenant_name", *(f"r.{name}" for name in _NAMES)))
"""Columns for `record_body`; none has content."""
OUTER_COLUMNS: Final = ", ".join(f"one.{name}" for name in ("tenant_name", *_NAMES))
"""The same of a subquery `one`."""
# No index has `created_at`. Ids begin with the time at which they were made, so that the primary
# key finds the newest ones of a range of time, tenant by tenant.
_SEARCH: Final = Statement(f"""
SELECT {OUTER_COLUMNS} FROM tenants AS t CROSS JOIN LATERAL (
    SELECT {COLUMNS} FROM responses AS r
    WHERE r.tenant_id = t.id AND r.id > :above AND r.id < :below
      AND (CAST(:id AS uuid) IS NULL OR r.id = CAST(:id AS uuid))
      AND (CAST(:project AS uuid) IS NULL
           OR coalesce(r.project_id, r.tenant_id) = CAST(:project AS uuid))
      AND (CAST(:key AS uuid) IS NULL OR r.key_id = CAST(:key AS uuid))
      AND (CAST(:conversation AS uuid) IS NULL OR r.conversation_id = CAST(:conversation AS uuid))
      AND (CAST(:model AS text) IS NULL OR r.model = CAST(:model AS text))
      AND (CAST(:statuses AS text[]) IS NULL OR r.status = ANY (CAST(:statuses AS text[])))
      AND r.created_at >= :from_at AND r.created_at < :until_at
    ORDER BY r.id DESC
    LIMIT :rows_max
) AS one
WHERE CAST(:tenant AS text) IS NULL OR t.name = CAST(:tenant AS text)
ORDER BY one.id DESC
LIMIT :rows_max
""")  # noqa: S608 - constants only


def routes(database: Database) -> list[AdminRoute]:
    async def listed(call: AdminCall) -> Json:
        return await search(database, call.request.query_params)

    return [AdminRoute("GET", "/responses", "responses.read", listed, query=QUERY)]


async def search(database: Database, query: QueryParams) -> Json:
    limit = integer(query, "limit", minimum=1, maximum=PAGE_MAX) or PAGE_DEFAULT
    parameters = {**_parameters(query), "rows_max": limit + 1}
    # The role that may not read content.
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_SEARCH, parameters)
    return list_body([record_body(row) for row in rows[:limit]], has_more=len(rows) > limit)


def _parameters(query: QueryParams) -> Json:
    # Raises `InvalidRequest`, also for a longer period than `SPAN_MAX`, the default.
    statuses = values_of(query, "status")
    for status in statuses:
        if status not in STATUSES:
            raise wrong_value("status", status, STATUSES)
    until_s = integer(query, "created_at[lt]", minimum=0)
    from_s = integer(query, "created_at[gte]", minimum=0)
    until = datetime.now(UTC) + timedelta(minutes=1) if until_s is None else moment_of(until_s)
    begin = until - SPAN_MAX if from_s is None else moment_of(from_s)
    if until - begin > SPAN_MAX:
        raise InvalidRequest(
            f"Ask for {SPAN_MAX.days} days at most.",
            code="invalid_value",
            param="created_at[gte]",
        )
    after, before = (_parsed(query, name, ids.parse_response_id) for name in ("after", "before"))
    above = ids.first_uuid(begin.timestamp() - _CLOCKS_DIFFER_S)
    below = ids.first_uuid(until.timestamp() + _CLOCKS_DIFFER_S)
    return {
        "above": above if before is None else max(above, before),
        "below": below if after is None else min(below, after),
        "from_at": begin,
        "until_at": until,
        "tenant": query.get("tenant"),
        "id": _parsed(query, "id", ids.parse_response_id),
        "project": _parsed(query, "project_id", ids.parse_project_id),
        "key": _parsed(query, "api_key_id", ids.parse_api_key_id),
        "conversation": _parsed(query, "conversation_id", ids.parse_conversation_id),
        "model": query.get("model"),
        "statuses": list(statuses) or None,
    }


def _parsed(query: QueryParams, name: str, parse: Callable[[str], UUID | None]) -> UUID | None:
    if (text := query.get(name)) is None:
        return None
    if (id_ := parse(text)) is None:
        raise InvalidRequest(f"'{name}' is no such id.", code="invalid_value", param=name)
    return id_


def record_body(row: Row) -> Json:
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
        "created_at": seconds_of(row.created_at),
        "completed_at": seconds_of(row.completed_at),
        "previous_response_id": row.parent_id and ids.response_id(row.parent_id),
        "conversation_id": row.conversation_id and ids.conversation_id(row.conversation_id),
        "replica": row.owner,
        "attempts": row.attempts,
    }
