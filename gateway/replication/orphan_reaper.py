"""Ends the responses that nobody will go on with, so that none is in progress for ever.

A foreground response is lost with its process; a durable one after as many attempts as it may
have, or when no process is left of the release that began it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import StoreUnavailable
from gateway.store import claims
from gateway.store.rounds import again_and_again
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.engine.archive import Archive
    from gateway.replication.lease_keeper import LeaseKeeper
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

REAPED_AT_ONCE_MAX: Final = 100
INTERVAL_S: Final = 5.0
ORPHAN_S: Final = 3600.0
"""Seconds that a response of another release waits for a process that can go on with it."""

_log = EventLog(__name__)


class OrphanReaper:
    """Rounds of one process over the whole database; whichever finds a response first ends it."""

    def __init__(
        self,
        database: Database,
        archive: Archive,
        lease_keeper: LeaseKeeper,
        *,
        attempts_max: int,
        interval_s: float = INTERVAL_S,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        self._database = database
        self._archive = archive
        self._lease_keeper = lease_keeper
        self._attempts_max = attempts_max
        self._interval_s = interval_s
        self._orphan_s = orphan_s

    async def run(self) -> None:
        failure = "a round of the orphan reaper was not finished"
        await again_and_again(self.round, self._interval_s, _log.debug, failure)

    async def round(self) -> int:
        """End the responses abandoned now; return their number. Raises `StoreError`.

        Does nothing while a lapsed lease does not mean a dead owner.
        """
        if not self._lease_keeper.trusted:
            return 0
        abandoned = await claims.abandoned(
            self._database,
            limit=REAPED_AT_ONCE_MAX,
            attempts_max=self._attempts_max,
            orphan_s=self._orphan_s,
        )
        return sum([await self._is_ended(tenant_id, uuid) for tenant_id, uuid in abandoned])

    async def _is_ended(self, tenant_id: TenantId, uuid: UUID) -> bool:
        try:
            stored = await self._archive.end_abandoned(tenant_id, uuid)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of one must not stop the others
            _log.error(
                "an abandoned response cannot be ended",
                response_id=ids.response_id(uuid),
                error=error,
            )
            return False
        if stored is None or not stored.is_terminal:
            return False
        _log.warning(
            "a response was abandoned", response_id=ids.response_id(uuid), model=stored.model
        )
        return True
