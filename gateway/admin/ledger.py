"""`/admin/v1/usage`: the ledger of all tenants, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from gateway import ids
from gateway.admin.pages import whole_page
from gateway.admin.routes import AdminRoute
from gateway.api.query import choice, integer
from gateway.ledger.exporting import PAGE_LINES_MAX, place_of
from gateway.ledger.records import MEDIA_TYPES, VERSION, Format
from gateway.protocol.admin.requests import NoBody
from gateway.protocol.base import WireModel

if TYPE_CHECKING:
    from starlette.responses import Response

    from gateway.admin.routes import AdminCall
    from gateway.services.ledger import LedgerOperations

_FORMATS: tuple[Format, ...] = ("jsonl", "csv")


def routes(ledger: LedgerOperations) -> list[AdminRoute]:
    answers = LedgerEndpoints(ledger)
    resume = "/usage/sinks/{name}/resume"
    return [
        AdminRoute(
            "GET",
            "/usage/export",
            "ledger.read",
            answers.export,
            "operator",
            query=("format", "limit", "from_tx"),
        ),
        AdminRoute(
            "POST", "/usage/reconcile", "ledger.write", answers.reconcile, "operator", body=NoBody
        ),
        AdminRoute("GET", "/usage/sinks", "ledger.read", answers.sinks, "operator"),
        AdminRoute("POST", resume, "ledger.write", answers.resume, "operator", body=SinkResume),
    ]


class SinkResume(WireModel):
    """`POST /admin/v1/usage/sinks/{name}/resume`. `delivered`: it has the batch that it was sent
    last, so that is not sent again.
    """

    delivered: bool = False


class LedgerEndpoints:
    """Endpoints of the ledger."""

    def __init__(self, ledger: LedgerOperations) -> None:
        self._ledger = ledger

    async def export(self, call: AdminCall) -> Response:
        """Send usage lines behind `from_tx` as text; the last one has the next `from_tx`."""
        query = call.request.query_params
        form = choice(query, "format", _FORMATS) or "jsonl"
        lines_max = integer(query, "limit", minimum=1, maximum=PAGE_LINES_MAX) or PAGE_LINES_MAX
        cursor = query.get("from_tx")
        place_of(cursor)  # before the status is sent
        return StreamingResponse(
            self._ledger.export(cursor, form, lines_max=lines_max),
            media_type=MEDIA_TYPES[form],
            headers={"x-usage-version": str(VERSION)},
        )

    async def reconcile(self, call: AdminCall) -> dict[str, Any]:
        """Compare lines, logs and sums now, and repair what can be repaired."""
        await call.body(NoBody)
        found = await self._ledger.reconcile(call.author)
        return {
            "object": "usage.reconciliation",
            "unmetered_responses": [ids.response_id(one) for _, one in found.unmetered],
            "wrong_hours": [
                {"tenant_id": ids.tenant_id(tenant), "hour": int(hour.timestamp())}
                for tenant, hour in found.wrong_hours
            ],
            "compared_logs": found.compared_logs,
            "wrong_logs": [ids.response_id(one) for _, one in found.wrong_logs],
            "corrected_budgets": [
                {
                    "tenant_id": ids.tenant_id(one.tenant_id),
                    "meter": one.meter,
                    "was": one.told,
                    "is": one.truth,
                }
                for one in found.corrected
            ],
            "unbilled_responses": found.unbilled,
            "behind_seconds": found.behind_s,
            "stopped_sinks": list(found.stopped_sinks),
        }

    async def sinks(self, _: AdminCall) -> dict[str, Any]:
        return whole_page(await self._ledger.sinks())

    async def resume(self, call: AdminCall) -> dict[str, Any]:
        """Resume a stopped sink."""
        asked = await call.body(SinkResume)
        name = call.path["name"]
        await self._ledger.resume(name, is_delivered=asked.delivered, author=call.author)
        return {"object": "usage.sink", "name": name, "stopped": None}
