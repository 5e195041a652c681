"""`/admin/v1/backends`, `/replicas` and `/settings`: what this process runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admin.routes import changed, read, whole_page
from gateway.admin.transactions import owned
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.admin_bodies import NoBody
from gateway.store import backend_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.admin.routes import AdminRoute
    from gateway.audit import Author
    from gateway.protocol.admin_bodies import Json
    from gateway.store.backend_reports import Drain
    from gateway.store.postgres.database import Database
    from gateway.upstreams.member import Member
    from gateway.upstreams.pool import Pool

ALL: Final = "/backends"
ONE: Final = f"{ALL}/{{name}}"
LOADS_FRESH_S: Final = 30.0
"""A replica without a report for longer is gone."""


def routes(backends: Backends) -> list[AdminRoute]:
    may_write: Final = "backends.write"
    return [
        read(ALL, "backends.read", backends.list, whole_page),
        changed(f"{ONE}/drain", may_write, backends.drain, dict, NoBody),
        changed(f"{ONE}/undrain", may_write, backends.undrain, dict, NoBody),
        read("/replicas", "replicas.read", backends.replicas, whole_page),
        read("/settings", "settings.read", backends.settings, dict),
    ]


class Backends:
    def __init__(
        self,
        database: Database,
        pool: Pool,
        *,
        replica: str,
        settings: Callable[[], dict[str, Any]],
    ) -> None:
        # `settings` returns the effective ones, without secrets.
        self._database = database
        self._pool = pool
        self._replica = replica
        self._settings = settings

    async def list(self) -> Sequence[Json]:
        drained = {one.name: one for one in await backend_reports.drains(self._database)}
        return [_body(state, drained.get(state.name)) for state in self._pool.members()]

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

    def _require(self, name: str) -> None:
        if name not in {state.name for state in self._pool.members()}:
            raise ResourceNotFound(
                f"There is no backend '{shown(name)}'. GET /admin/v1/backends lists them.",
                code="backend_not_found",
                param="name",
            )


def _body(state: Member, drain: Drain | None) -> Json:
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
        "source": state.source,
        "drained": drained,
    }
