"""Ledger operations for operators: export lines, check them against responses, resume sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.errors import ResourceNotFound, shown
from gateway.governance.audit import COMMAND_LINE
from gateway.ledger.exporting import export
from gateway.store import audit_log
from gateway.store.ledger import exports
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.governance.audit import AuditEvent, Author
    from gateway.ledger.jobs import Adding, Reconciliation
    from gateway.ledger.records import Format
    from gateway.store.ledger.exports import SinkState
    from gateway.store.ledger.reconciliation import Found
    from gateway.store.postgres.database import Database


class LedgerOperations:
    """Operations on the ledger of one database of tenants."""

    def __init__(self, database: Database, adding: Adding, reconciliation: Reconciliation) -> None:
        self._database = database
        self._adding = adding
        self._reconciliation = reconciliation

    def export(self, cursor: str | None, form: Format, *, lines_max: int) -> AsyncIterator[bytes]:
        return export(self._database, cursor, form, lines_max=lines_max)

    async def reconcile(self, author: Author = COMMAND_LINE, *, repairs: bool = True) -> Found:
        """Find what does not agree; with `repairs` wrong sums are computed again.

        Raises `StoreUnavailable`.
        """
        await self._adding.round()
        found = await self._reconciliation.round(repairs=repairs)
        told = {
            "unmetered": len(found.unmetered),
            "wrong_hours": len(found.wrong_hours),
            "wrong_logs": len(found.wrong_logs),
            "corrected": len(found.corrected),
        }
        await self._tell(author.event("harmony.usage.reconciled", "usage", data=told))
        return found

    async def sinks(self) -> list[dict[str, Any]]:
        return [_sink_body(state) for state in await exports.states(self._database)]

    async def resume(self, name: str, *, is_delivered: bool, author: Author = COMMAND_LINE) -> None:
        """Resume a stopped sink: with its last batch, or behind it if that was delivered.

        Raises `ResourceNotFound` and `StoreUnavailable`.
        """
        if not await exports.resume(self._database, name, is_delivered=is_delivered):
            raise ResourceNotFound(
                f"There is no sink '{shown(name)}' that is stopped.", param="name"
            )
        told = {"delivered": is_delivered}
        await self._tell(author.event("harmony.sink.resumed", name, changes_requested=told))

    async def _tell(self, event: AuditEvent) -> None:
        # Not as the owner of the tables: any serving process may write to the operators' chain.
        async with self._database.transaction(TenantId(EVERYONE)) as connection:
            await audit_log.record(connection, None, event)


def _sink_body(state: SinkState) -> dict[str, Any]:
    return {
        "object": "usage.sink",
        "name": state.name,
        "batches": state.batches,
        "lines": state.lines,
        "moved_at": int(state.moved_at.timestamp()),
        "is_under_way": state.is_under_way,
        "stopped": state.stopped,
    }
