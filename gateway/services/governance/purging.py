"""Remove the data of deleted tenants in the background, once their time to be restored is over.

Any process that owns the tables does it; others leave it to `harmony-gateway data purge`, run as
the owner.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.governance.audit import BY_ITSELF
from gateway.services.governance.tenant_data import RESTORE_S
from gateway.store import retention
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from gateway.services.governance.tenant_data import Removed, TenantData
    from gateway.store.postgres.database import Database

INTERVAL_S: Final = 3600.0

_log = EventLog(__name__)


class Purging:
    """The rounds of one process over the tenants of one database."""

    def __init__(self, database: Database, data: TenantData) -> None:
        self._database = database
        self._data = data

    async def run(self) -> None:
        # Random pauses keep replicas from working at the same time.
        while True:
            await asyncio.sleep(INTERVAL_S * random.uniform(0.5, 1.0))  # noqa: S311 - see above
            try:
                await self.round()
            except StoreError as error:
                _log.warning("deleted tenants were not removed, will be tried again", error=error)

    async def round(self, *, window_s: float = RESTORE_S) -> list[Removed]:
        """Remove the data of tenants deleted at least `window_s` seconds ago and not held.

        Raises `StoreError`; the next round continues.
        """
        if not await retention.owns_partitions(self._database):
            return []
        removed = await self._data.purge(window_s=window_s, author=BY_ITSELF)
        for one in removed:
            count = sum(one.rows.values())
            _log.info("a deleted tenant is removed", tenant=one.tenant, count=count)
        return removed
