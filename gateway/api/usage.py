"""`GET /v1/organization/usage/*` and `/v1/organization/costs`: what a tenant used and owes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, get_args

import orjson
from starlette.responses import Response
from starlette.routing import Route

from gateway.ledger.questions import Report, usage_query

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from gateway.services.usage import UsageReports

    Endpoint = Callable[[Request], Awaitable[Response]]

REPORTS: Final = get_args(Report)
COSTS: Final[Report] = "costs"


class UsageEndpoints:
    """One endpoint for every report."""

    def __init__(self, reports: UsageReports) -> None:
        self._reports = reports

    def routes(self) -> list[Route]:
        """All of them, for the listener that the admin API is on."""
        return [Route(path_of(report), self._of(report), methods=["GET"]) for report in REPORTS]

    def _of(self, report: Report) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            query = usage_query(report, request.query_params.multi_items(), now=int(time.time()))
            tenant_id = request.scope["principal"].tenant_id
            page = await self._reports.page(tenant_id, query)
            return Response(orjson.dumps(page), media_type="application/json")

        return endpoint


def path_of(report: Report) -> str:
    """Where a report is asked for."""
    where = "" if report == COSTS else "usage/"
    return f"/v1/organization/{where}{report}"
