"""`/admin/v1/snapshots` and `/queue`: what the fleet is doing now, without content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.admin.routes import read, whole_page
from gateway.protocol.admin_bodies import seconds_of
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.admin.routes import AdminRoute
    from gateway.protocol.admin_bodies import Json
    from gateway.replication.snapshots import Snapshots
    from gateway.store.postgres.database import Database, Row

QUEUE_ROWS_MAX: Final = 500
"""Responses listed: those that wait longest."""
_BACKGROUND: Final = Statement("""
SELECT r.id, t.name AS tenant_name, r.model, r.status, r.created_at, r.owner, r.attempts
FROM responses AS r JOIN tenants AS t ON t.id = r.tenant_id
WHERE r.status IN ('queued', 'in_progress') AND r.background
ORDER BY r.id
LIMIT :rows_max
""")


def routes(live: Live) -> list[AdminRoute]:
    return [
        read("/snapshots", "replicas.read", live.snapshots, whole_page),
        read("/queue", "responses.read", live.queue, whole_page),
    ]


class Live:
    def __init__(self, database: Database, snapshots: Snapshots) -> None:
        self._database = database
        self._snapshots = snapshots

    async def snapshots(self) -> Sequence[Json]:
        """Return a snapshot of each replica that runs. The first look may miss others, which write
        theirs only when somebody looks.
        """
        return [
            {
                "object": "replica.snapshot",
                "replica": one.replica,
                "age_s": round(max(0.0, one.age_s), 1),
                **one.body,
            }
            for one in await self._snapshots.read()
        ]

    async def queue(self) -> Sequence[Json]:
        async with self._database.runs_transaction() as connection:
            rows = await connection.execute(_BACKGROUND, {"rows_max": QUEUE_ROWS_MAX})
        return list(map(_body, rows))


def _body(row: Row) -> Json:
    return {
        "id": ids.response_id(row.id),
        "object": "response.record",
        "tenant": row.tenant_name,
        "model": row.model,
        "status": row.status,
        "created_at": seconds_of(row.created_at),
        "replica": row.owner,
        "attempts": row.attempts,
    }
