"""What the fleet is and does now, without content: `/admin/v1/backends`, `/replicas`, `/settings`,
`/system`, `/snapshots` and `/queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway import __version__, ids
from gateway.admin.routes import changed, read, whole_page
from gateway.admin.transactions import owned
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.admin_bodies import NoBody, seconds_of
from gateway.store import backend_reports
from gateway.store.diagnostics import table_sizes
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.admin.routes import AdminRoute
    from gateway.audit import Author
    from gateway.protocol.admin_bodies import Json
    from gateway.replication.snapshots import Snapshots
    from gateway.services.health import Health
    from gateway.store.backend_reports import Drain
    from gateway.store.postgres.database import Database, Row
    from gateway.upstreams.member import Member
    from gateway.upstreams.pool import Pool

ALL: Final = "/backends"
ONE: Final = f"{ALL}/{{name}}"
LOADS_FRESH_S: Final = 30.0
"""A replica without a report for longer is gone."""
QUEUE_ROWS_MAX: Final = 500
"""Responses listed: those that wait longest."""
_BACKGROUND: Final = Statement("""
SELECT r.id, t.name AS tenant_name, r.model, r.status, r.created_at, r.owner, r.attempts
FROM responses AS r JOIN tenants AS t ON t.id = r.tenant_id
WHERE r.status IN ('queued', 'in_progress') AND r.background
ORDER BY r.id
LIMIT :rows_max
""")


def routes(fleet: Fleet) -> list[AdminRoute]:
    may_write: Final = "backends.write"
    return [
        read(ALL, "backends.read", fleet.backends, whole_page),
        changed(f"{ONE}/drain", may_write, fleet.drain, dict, NoBody),
        changed(f"{ONE}/undrain", may_write, fleet.undrain, dict, NoBody),
        read("/replicas", "replicas.read", fleet.replicas, whole_page),
        read("/settings", "settings.read", fleet.settings, dict),
        read("/system", "settings.read", fleet.system, dict),
        read("/snapshots", "replicas.read", fleet.snapshots, whole_page),
        read("/queue", "responses.read", fleet.queue, whole_page),
    ]


class Fleet:
    def __init__(
        self,
        database: Database,
        pool: Pool,
        health: Health,
        snapshots: Snapshots,
        *,
        replica: str,
        settings: Callable[[], dict[str, Any]],
    ) -> None:
        # `settings` returns the effective ones, without secrets.
        self._database = database
        self._pool = pool
        self._health = health
        self._snapshots = snapshots
        self._replica = replica
        self._settings = settings

    async def backends(self) -> Sequence[Json]:
        drained = {one.name: one for one in await backend_reports.drains(self._database)}
        return [_backend(state, drained.get(state.name)) for state in self._pool.members()]

    async def drain(self, author: Author, name: str) -> Json:
        """Send no new requests to a backend, at any replica; running ones continue."""
        self._require(name)
        with owned():
            by = f"operator {author.actor.owner_id}"
            await backend_reports.drain(self._database, name, by=by, author=author)
        return {"object": "backend.drained", "name": name}

    async def undrain(self, author: Author, name: str) -> Json:
        """Use a backend again, at all replicas within two seconds."""
        self._require(name)
        with owned():
            await backend_reports.undrain(self._database, name, author)
        return {"object": "backend.undrained", "name": name}

    async def replicas(self) -> Sequence[Json]:
        reported = await backend_reports.loads(self._database, fresh_s=LOADS_FRESH_S)
        names = sorted({self._replica, *reported})
        return [{"object": "replica", "id": name} for name in names]

    async def settings(self) -> Json:
        return {"object": "settings", "settings": self._settings()}

    async def system(self) -> Json:
        """Return what this process is, whether it is ready, and how large its tables are."""
        report = await self._health.check()
        return {
            "object": "system",
            "replica": self._replica,
            "version": __version__,
            "schema_revision": await self._database.revision(),
            "readiness": report.body(),
            "tables": await table_sizes(self._database),
        }

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
        return list(map(_queued, rows))

    def _require(self, name: str) -> None:
        if name not in {state.name for state in self._pool.members()}:
            raise ResourceNotFound(
                f"There is no backend '{shown(name)}'. GET /admin/v1/backends lists them.",
                code="backend_not_found",
                param="name",
            )


def _backend(state: Member, drain: Drain | None) -> Json:
    drained = None
    if drain is not None:
        drained = {"at": int(drain.drained_at.timestamp()), "by": drain.drained_by}
    return {
        "object": "backend",
        "name": state.name,
        "models": list(state.models),
        "healthy": state.healthy,
        "available": state.available,
        "in_flight": state.in_flight,
        "version": state.version,
        "problem": state.problem,
        "source": state.backend.source,
        "drained": drained,
    }


def _queued(row: Row) -> Json:
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
