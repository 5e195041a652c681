"""The secrets of keys: how they are made and hashed, and when they were used."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gateway.errors import StoreError
from gateway.store import tenants
from gateway.telemetry.logs import EventLog
from gateway.tenancy.secrets import RANDOM_BYTES, Pepper, hint_of, secret_of

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal, TenantId
    from gateway.tenancy.secrets import SecretKind

_log = EventLog(__name__)


class NewSecret(NamedTuple):
    """A secret, which nobody can have again, and what of it is stored."""

    value: str
    hint: str
    hash: bytes
    pepper_id: int


@dataclass(frozen=True, slots=True)
class Peppers:
    """Peppers of the hashes of keys: `current` for new keys. Keys hashed under `previous` stay
    valid, and each is hashed again once it is used.
    """

    current: Pepper
    previous: Pepper | None = None

    def new_secret(self, kind: SecretKind) -> NewSecret:
        """Make a secret of 256 random bits."""
        value = secret_of(kind, os.urandom(RANDOM_BYTES))
        return NewSecret(value, hint_of(value), self.current.hash(value), self.current.id)


class Rehash(NamedTuple):
    """The hash of a key under the current pepper."""

    hash: bytes
    pepper_id: int


class KeyUses:
    """Keys that were used since they were last written down, at most as many as are cached.

    They are written once in a while, all together, with the new hashes of keys that were found by
    the hash of the previous pepper.
    """

    def __init__(self, database: Database, *, interval_s: float) -> None:
        """Write every `interval_s` seconds."""
        self._database = database
        self._interval_s = interval_s
        self._used: dict[UUID, Principal] = {}
        self._rehashes: dict[UUID, Rehash] = {}

    def note(self, principal: Principal) -> None:
        if principal.credential == "key":  # a token has none
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
        by_tenant: dict[TenantId, list[UUID]] = {}
        for principal in used.values():
            by_tenant.setdefault(principal.tenant_id, []).append(principal.key_id)
        for tenant_id, keys in by_tenant.items():
            hashed = {key: rehashes[key] for key in keys if key in rehashes}
            try:
                await tenants.note_uses(
                    self._database, tenant_id, keys, hashed, interval_s=self._interval_s
                )
            except StoreError as error:
                _log.warning("uses of keys were not written down", error=error)
