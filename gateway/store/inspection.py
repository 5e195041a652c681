"""Responses of all tenants as operators may look for them: nothing of what they say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.store.postgres.database import Database, Row

# Ids grow with time. The bounds of time are bounds of ids, too, which the primary key has: a
# search names a tenant, or reads at most what its hours have.
_SEARCH: Final = Statement("""
SELECT r.tenant_id, t.name AS tenant_name, r.id, r.project_id, r.key_id, r.model, r.status,
       r.background, r.streamed, r.created_at, r.completed_at, r.parent_id, r.conversation_id,
       r.owner, r.attempts
FROM responses AS r JOIN tenants AS t ON t.id = r.tenant_id
WHERE (CAST(:tenant AS text) IS NULL OR t.name = CAST(:tenant AS text))
  AND (CAST(:id AS uuid) IS NULL OR r.id = CAST(:id AS uuid))
  AND (CAST(:project AS uuid) IS NULL
       OR coalesce(r.project_id, r.tenant_id) = CAST(:project AS uuid))
  AND (CAST(:key AS uuid) IS NULL OR r.key_id = CAST(:key AS uuid))
  AND (CAST(:model AS text) IS NULL OR r.model = CAST(:model AS text))
  AND (CAST(:statuses AS text[]) IS NULL OR r.status = ANY (CAST(:statuses AS text[])))
  AND r.created_at >= CAST(:from_at AS timestamptz)
  AND r.created_at < CAST(:until_at AS timestamptz)
  AND (CAST(:after AS uuid) IS NULL OR r.id < CAST(:after AS uuid))
ORDER BY r.id DESC
LIMIT :rows_max
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSearch:
    """Search for responses, the newest first. None: any value. `from_at` <= created < `until_at`; a
    page begins behind the id `after`.
    """

    from_at: datetime
    until_at: datetime
    tenant: str | None = None
    id: UUID | None = None
    project: UUID | None = None
    key: UUID | None = None
    model: str | None = None
    statuses: Sequence[str] | None = None
    after: UUID | None = None


async def search(database: Database, wanted: ResponseSearch, *, rows_max: int) -> Sequence[Row]:
    """Return rows of responses without content columns, as the role that may not read content.

    Raises `StoreUnavailable`.
    """
    async with database.runs_transaction() as connection:
        return await connection.execute(_SEARCH, {**asdict(wanted), "rows_max": rows_max})
