"""`/admin/v1/usage`: the ledger of all tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.admin.routes import AdminRoute, changed, read, whole_page
from gateway.api.query import choice, integer
from gateway.api.streaming import TimedResponse
from gateway.errors import ResourceNotFound, shown
from gateway.ledger.records import MEDIA_TYPES, PAGE_LINES_MAX, VERSION, Format, export, place_of
from gateway.protocol.admin_bodies import Json, NoBody, seconds_of
from gateway.protocol.base import WireModel
from gateway.store import audit_log
from gateway.store.ledger import cursors
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from gateway.admin.routes import AdminCall
    from gateway.audit import AuditEvent, Author
    from gateway.ledger.jobs import Adding, Differences, Reconciliation
    from gateway.store.postgres.database import Database, Row

_FORMATS: Final[tuple[Format, ...]] = ("jsonl", "csv")


def routes(ledger: Ledger) -> list[AdminRoute]:
    def shown_sinks(states: Sequence[Row]) -> Json:
        return whole_page(list(map(sink_body, states)))

    async def export_lines(call: AdminCall) -> Response:
        # Usage lines behind `from_tx` as text; the last one has the next `from_tx`.
        query = call.request.query_params
        form = choice(query, "format", _FORMATS) or "jsonl"
        lines_max = integer(query, "limit", minimum=1, maximum=PAGE_LINES_MAX) or PAGE_LINES_MAX
        cursor = query.get("from_tx")
        place_of(cursor)  # before the status is sent
        return TimedResponse(
            export(ledger.database, cursor, form, lines_max=lines_max),
            media_type=MEDIA_TYPES[form],
            headers={"x-usage-version": str(VERSION)},
        )

    sinks, query = "/usage/sinks", ("format", "limit", "from_tx")
    resume = f"{sinks}/{{name}}/resume"
    return [
        AdminRoute("GET", "/usage/export", "ledger.read", export_lines, query=query),
        changed("/usage/reconcile", "ledger.write", ledger.reconcile, reconciliation_body, NoBody),
        read(sinks, "ledger.read", ledger.sinks, shown_sinks),
        changed(resume, "ledger.write", ledger.resume, dict, SinkResume),
    ]


class SinkResume(WireModel):
    """`POST /admin/v1/usage/sinks/{name}/resume`. `delivered`: it has the batch that it was sent
    last, so that is not sent again.
    """

    delivered: bool = False


def reconciliation_body(differences: Differences) -> Json:
    return {
        "object": "usage.reconciliation",
        "unmetered_responses": [ids.response_id(one) for _, one in differences.unmetered],
        "wrong_hours": [
            {"tenant_id": ids.tenant_id(tenant), "hour": int(hour.timestamp())}
            for tenant, hour in differences.wrong_hours
        ],
        "corrected_budgets": [
            {
                "tenant_id": ids.tenant_id(one.tenant_id),
                "meter": one.meter,
                "was": one.recorded,
                "is": one.truth,
            }
            for one in differences.corrected
        ],
        "unbilled_responses": differences.unbilled,
        "behind_seconds": differences.behind_s,
        "stopped_sinks": list(differences.stopped_sinks),
    }


def sink_body(state: Row) -> Json:
    return {
        "object": "usage.sink",
        "name": state.name,
        "batches": state.batches,
        "lines": state.lines,
        "moved_at": seconds_of(state.moved_at),
        "is_under_way": state.is_under_way,
        "stopped": state.stopped,
    }


class Ledger:
    def __init__(self, database: Database, adding: Adding, reconciliation: Reconciliation) -> None:
        self.database = database
        self._adding = adding
        self._reconciliation = reconciliation

    async def reconcile(self, author: Author, *, repairs: bool = True) -> Differences:
        """Find what does not agree; with `repairs` sum up anew."""
        await self._adding.round()
        differences = await self._reconciliation.round(repairs=repairs)
        counts = {
            "unmetered": len(differences.unmetered),
            "wrong_hours": len(differences.wrong_hours),
            "corrected": len(differences.corrected),
        }
        await self._note(author.event("harmony.usage.reconciled", "usage", data=counts))
        return differences

    async def sinks(self) -> list[Row]:
        return await cursors.sink_states(self.database)

    async def resume(self, author: Author, name: str, body: SinkResume) -> Json:
        if not await cursors.resume_sink(self.database, name, is_delivered=body.delivered):
            raise ResourceNotFound(
                f"There is no sink '{shown(name)}' that is stopped.", param="name"
            )
        changes = {"delivered": body.delivered}
        await self._note(author.event("harmony.sink.resumed", name, changes_requested=changes))
        return {"object": "usage.sink", "name": name, "stopped": None}

    async def _note(self, event: AuditEvent) -> None:
        # Not as the owner of the tables: any serving process may write to the operators' chain.
        async with self.database.transaction(TenantId(EVERYONE)) as connection:
            await audit_log.record(connection, None, event)
