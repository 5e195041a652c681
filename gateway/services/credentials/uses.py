"""Writes down when keys were used: once in a while, for all of them together.

A key whose hash is of the previous pepper is hashed again at the same time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import StoreError
from gateway.store import tenants
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal, TenantId

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Rehash:
    """The hash of a key under the current pepper."""

    hash: bytes
    pepper_id: int


class KeyUses:
    """Keys that were used since they were last written down, at most as many as are cached."""

    def __init__(self, database: Database, *, interval_s: float) -> None:
        """Write every `interval_s` seconds."""
        self._database = database
        self._interval_s = interval_s
        self._used: dict[UUID, Principal] = {}
        self._rehashes: dict[UUID, Rehash] = {}

    def note(self, principal: Principal) -> None:
        self._used[principal.key_id] = principal

    def hash_again(self, principal: Principal, rehash: Rehash) -> None:
        # For keys that were matched by the hash of the previous pepper.
        self._rehashes[principal.key_id] = rehash

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.flush()

    async def flush(self) -> None:
        """Write all noted uses and new hashes.

        What the database refuses is lost. Hashes are computed again at the key's next use.
        """
        used, self._used = self._used, {}
        rehashes, self._rehashes = self._rehashes, {}
        by_tenant: dict[TenantId, list[Principal]] = {}
        for principal in used.values():
            by_tenant.setdefault(principal.tenant_id, []).append(principal)
        for tenant_id, principals in by_tenant.items():
            hashed = {
                one.key_id: (rehashes[one.key_id].hash, rehashes[one.key_id].pepper_id)
                for one in principals
                if one.key_id in rehashes
            }
            try:
                await tenants.note_uses(
                    self._database,
                    tenant_id,
                    [one.key_id for one in principals],
                    hashed,
                    interval_s=self._interval_s,
                )
            except StoreError as error:
                _log.warning("uses of keys were not written down", error=error)
