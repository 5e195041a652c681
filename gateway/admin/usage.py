"""`/organization/usage/*` and `/organization/costs`: what a tenant used and owes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, get_args

from gateway.admin.routes import AdminRoute
from gateway.api.query import several
from gateway.ledger.usage_query import Report, lists_of, usage_query

if TYPE_CHECKING:
    from gateway.admin.routes import AdminCall, Endpoint
    from gateway.services.usage import UsageReports

REPORTS: Final[tuple[Report, ...]] = get_args(Report)
COSTS: Final[Report] = "costs"
PARAMETERS: Final = ("start_time", "end_time", "bucket_width", "limit", "page", "batch")


def routes(reports: UsageReports) -> list[AdminRoute]:
    return [
        AdminRoute(
            "GET",
            path_of(report),
            "usage.read",
            _endpoint(report, reports),
            query=(*PARAMETERS, *(one for name in lists_of(report) for one in several(name))),
        )
        for report in REPORTS
    ]


def path_of(report: Report) -> str:
    return f"/organization/{'' if report == COSTS else 'usage/'}{report}"


def _endpoint(report: Report, reports: UsageReports) -> Endpoint:
    async def endpoint(call: AdminCall) -> dict[str, Any]:
        given = call.request.query_params.multi_items()
        query = usage_query(report, given, now=int(time.time()))
        return await reports.page(call.principal.tenant_id, query)

    return endpoint
