"""`/admin/v1/system`: what this process is, whether it is ready, and how large its tables are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import __version__
from gateway.admin.routes import read
from gateway.store.diagnostics import table_sizes

if TYPE_CHECKING:
    from gateway.admin.routes import AdminRoute
    from gateway.protocol.admin_bodies import Json
    from gateway.services.health import Health
    from gateway.store.postgres.database import Database


def routes(system: System) -> list[AdminRoute]:
    return [read("/system", "settings.read", system.get, dict)]


class System:
    def __init__(self, database: Database, health: Health, *, replica: str) -> None:
        self._database = database
        self._health = health
        self._replica = replica

    async def get(self) -> Json:
        report = await self._health.check()
        return {
            "object": "system",
            "replica": self._replica,
            "version": __version__,
            "schema_revision": await self._database.revision(),
            "readiness": report.body(),
            "tables": await table_sizes(self._database),
        }
