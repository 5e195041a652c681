"""Keys in memory, and a provider that needs nobody: for databases whose content is sealed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway.encryption.keyring import Keyring, KeyringPolicy, WrappedKey
from gateway.errors import ContentSealed, StoreConflict, StoreUnavailable
from gateway.sealing import DataKey

if TYPE_CHECKING:
    from gateway.tenancy import TenantId


class MemoryKeys:
    """A `KeyStore`, as `store.tenant_keys.TenantKeys` is one."""

    def __init__(self) -> None:
        self.rows: dict[TenantId, list[WrappedKey]] = defaultdict(list)
        self.reads = 0

    async def keys(self, tenant_id: TenantId) -> list[WrappedKey]:
        self.reads += 1
        await asyncio.sleep(0)  # as a database's: others ask meanwhile
        return list(self.rows[tenant_id])

    async def add(self, tenant_id: TenantId, key: WrappedKey) -> None:
        rows = self.rows[tenant_id]
        if any(one.number == key.number for one in rows):
            raise StoreConflict("pk_tenant_keys")
        now = datetime.now(UTC)
        self.rows[tenant_id] = [*(replace(one, retired_at=now) for one in rows), key]

    def retire(self, tenant_id: TenantId) -> None:
        now = datetime.now(UTC)
        self.rows[tenant_id] = [replace(one, retired_at=now) for one in self.rows[tenant_id]]

    def destroy(self, tenant_id: TenantId) -> None:
        now = datetime.now(UTC)
        self.rows[tenant_id] = [
            replace(one, wrapped=b"", destroyed_at=now) for one in self.rows[tenant_id]
        ]


class MemoryProvider:
    """A `KeyProvider` that can be told to be away, or to refuse."""

    name = "memory"

    def __init__(self) -> None:
        self._key = DataKey(bytes(range(32)))
        self.is_away = self.refuses = False
        self.asked = 0
        self.answers = asyncio.Event()
        """Cleared, it does not answer until it is set."""
        self.answers.set()
        self.is_waited_for = asyncio.Event()

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        await self._ask()
        return self._key.seal(secret, tenant_id.bytes), "1"

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        await self._ask()
        assert key_ref == "1"
        return self._key.open(wrapped, tenant_id.bytes)

    async def close(self) -> None:
        pass

    async def _ask(self) -> None:
        self.asked += 1
        if not self.answers.is_set():
            self.is_waited_for.set()
            await self.answers.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        if self.refuses:
            raise ContentSealed("refused")


def sealing_keyring(keys: MemoryKeys | None = None) -> Keyring:
    """Every tenant has a key from the first time that it is met."""
    return Keyring(keys or MemoryKeys(), [MemoryProvider()], KeyringPolicy(seals_all=True))
