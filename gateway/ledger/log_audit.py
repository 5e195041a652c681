"""Lines held against the logs of their responses, as long as there are logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.engine.row_mapping import LogReading
from gateway.engine.run_state import head_of
from gateway.entries import FOLD_VERSIONS
from gateway.errors import ContentSealed
from gateway.store import events, responses, usage
from gateway.store.ledger.reconciliation import sample
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.engine.row_mapping import NewFoldFor
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse

RESPONSES_MAX: Final = 200
"""Compared in one round."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one log that is read; a longer one is left out."""


@dataclass(frozen=True, slots=True)
class LogsCompared:
    """Result of a comparison: the number of lines that had a log, and the tenants and responses
    whose line differs from the log.
    """

    compared: int = 0
    wrong: tuple[tuple[UUID, UUID], ...] = ()


class LogAudit:
    """Audit that folds the logs of a sample of responses again and compares their lines."""

    def __init__(
        self, database: Database, new_fold_for: NewFoldFor, *, responses_max: int = RESPONSES_MAX
    ) -> None:
        self._database = database
        self._new_fold_for = new_fold_for
        self._responses_max = responses_max

    async def round(self, *, back_s: float) -> LogsCompared:
        """Compare up to `responses_max` responses that ended within `back_s` seconds.

        Raises `StoreUnavailable`.
        """
        compared, wrong = 0, []
        for row in await sample(self._database, back_s=back_s, rows_max=self._responses_max):
            counted = await self._counted(TenantId(row.tenant_id), row.response_id)
            if counted is None:
                continue
            compared += 1
            if any(row[name] != count for name, count in counted.items()):
                wrong.append((row.tenant_id, row.response_id))
        return LogsCompared(compared, tuple(wrong))

    async def _counted(self, tenant_id: TenantId, uuid: UUID) -> dict[str, int | None] | None:
        # None where the log is incomplete or cannot be read.
        try:
            stored = await responses.load(self._database, tenant_id, uuid)
            if stored is None or stored.fold_version not in FOLD_VERSIONS:
                return None
            return await self._folded(tenant_id, stored)
        except (ValueError, TypeError, LookupError, ContentSealed):
            return None

    async def _folded(
        self, tenant_id: TenantId, stored: StoredResponse
    ) -> dict[str, int | None] | None:
        reading = LogReading(self._new_fold_for(head_of(stored))())
        rows = await events.read(
            self._database, tenant_id, stored.uuid, stored.day, bytes_max=LOG_BYTES_MAX
        )
        await reading.add(rows)
        if not rows or reading.entries != stored.next_entry:
            return None
        return usage.counts(reading.fold.usage)
