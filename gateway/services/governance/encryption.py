"""Keys of tenants for operators: who has one, renewing them, and making content unreadable."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError, ContentSealed, InvalidRequest
from gateway.governance.audit import COMMAND_LINE
from gateway.store.governance import audit_log, holds, reseals
from gateway.store.governance.resealing import KEYS, reseal, reseal_flushes
from gateway.store.ownership import require_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.encryption.keyring import WrappedKey
    from gateway.governance.audit import AuditEvent, Author
    from gateway.store.postgres.database import Database
    from gateway.store.tenant_keys import TenantKeys
    from gateway.tenancy import TenantId

ROWS_AT_ONCE: Final = 200
PASSES_MAX: Final = 5
"""Rows that others write with an older key while a pass goes on are left to the next one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Rows of a table that were looked at so far, and how many of them were written."""

    table: str
    seen: int
    written: int


class TenantEncryption:
    """Use cases of keys. All raise `StoreUnavailable`; a change counts in other processes within
    `encryption.fresh_s`.
    """

    def __init__(self, database: Database, keys: TenantKeys | None) -> None:
        """Raise `ConfigError` if no key provider is configured."""
        if keys is None:
            raise ConfigError(
                "encryption at rest is not configured",
                where="encryption.provider",
                remedy="Set encryption.provider and encryption.keys_url: see docs/data.md.",
            )
        self._database = database
        self._keys = keys

    async def keys(self, tenant_id: TenantId) -> list[WrappedKey]:
        return await self._keys.keys(tenant_id)

    async def progress(self, tenant_id: TenantId) -> str:
        # In words; empty if nothing was resealed automatically.
        return await reseals.state(self._database, tenant_id)

    async def enable(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> WrappedKey:
        """Seal a tenant's writes from now on. Raises `InvalidRequest` if they already are."""
        if any(
            key.retired_at is None and key.destroyed_at is None
            for key in await self.keys(tenant_id)
        ):
            raise InvalidRequest("What this tenant writes is sealed already: rotate its key.")
        return await self._add_key(tenant_id, "harmony.encryption.enabled", author)

    async def rotate(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> WrappedKey:
        # Older keys stay, to open what they sealed.
        return await self._add_key(tenant_id, "harmony.encryption.rotated", author)

    async def disable(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> None:
        """Stop sealing a tenant's writes; its keys stay, to open what they sealed."""
        await self._keys.retire(tenant_id)
        event = author.event("harmony.encryption.disabled", str(tenant_id))
        await self._tell(event, tenant_id)

    async def shred(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> int:
        """Destroy all keys of a tenant for good and return their number.

        Everything that they sealed becomes unreadable, wherever it is. Raises `DataHeld`.
        """
        async with holds.unheld(self._database, tenant_id):
            destroyed = await self._keys.destroy(tenant_id)
        await self._tell(
            author.event("harmony.tenant.shredded", str(tenant_id), data={"keys": destroyed}),
            tenant_id,
        )
        return destroyed

    async def reseal(
        self,
        tenant_id: TenantId,
        *,
        rows_per_s: float,
        destroys_older: bool = False,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> int:
        """Reseal all content of a tenant under its current key; return the number of rows written.

        `rows_per_s` bounds the speed. `destroys_older`: older keys are destroyed afterwards. Raises
        `ContentSealed` if no key opens some rows, after the others of their table were written, and
        `InvalidRequest` if other processes may still seal with keys that are to be destroyed.
        """
        await require_owner(self._database)
        keyring = self._database.keyring
        keyring.forget(tenant_id)
        await keyring.ready([tenant_id])
        sealing, total = keyring.of(tenant_id).sealing, 0
        if destroys_older and sealing:
            await self._check_is_everywhere(tenant_id, sealing)
        for _ in range(PASSES_MAX):
            # In this order: what is moved out of flushes meanwhile is found in the logs.
            written = await self._reseal_flushes(tenant_id)
            for table in KEYS:
                written += await self._reseal(tenant_id, table, rows_per_s, tell)
            total += written
            if not written:
                break
        else:
            raise InvalidRequest(
                "Other processes still write with an older key. Wait for encryption.fresh_s, and"
                " begin again."
            )
        if destroys_older and sealing:
            await self._keys.destroy(tenant_id, before=sealing)
        return total

    async def _check_is_everywhere(self, tenant_id: TenantId, number: int) -> None:
        # Some process may not seal with this key yet.
        needed_s = self._database.keyring.policy.settled_s
        left_s = needed_s - await self._keys.age_s(tenant_id, number)
        if left_s > 0:
            raise InvalidRequest(
                f"Other processes may seal with an older key for {math.ceil(left_s)} seconds more,"
                " and what they seal would be lost with it. Destroy older keys after that; reseal"
                " without it can be done now."
            )

    async def _reseal_flushes(self, tenant_id: TenantId) -> int:
        total = 0
        after: tuple[str, int] | None = ("", 0)
        while after is not None:
            written, after = await reseal_flushes(
                self._database, tenant_id, after=after, rows_max=ROWS_AT_ONCE
            )
            total += written
        return total

    async def _reseal(
        self,
        tenant_id: TenantId,
        table: str,
        rows_per_s: float,
        tell: Callable[[Progress], None],
    ) -> int:
        seen = written = lost = 0
        after = None
        while True:
            page = await reseal(
                self._database, tenant_id, table, after=after, rows_max=ROWS_AT_ONCE
            )
            seen, written = seen + page.seen, written + page.written
            lost += page.lost
            tell(Progress(table, seen, written))
            if page.last is None:
                break
            after = page.last
            await asyncio.sleep(page.seen / rows_per_s)
        if lost:
            raise ContentSealed(f"{lost} rows of {table} are sealed with a key that is gone")
        return written

    async def _add_key(self, tenant_id: TenantId, type_: str, author: Author) -> WrappedKey:
        kept = await self.keys(tenant_id)
        number = 1 + max((key.number for key in kept), default=0)
        key = await self._database.keyring.add(tenant_id, number)
        self._database.keyring.forget(tenant_id)
        event = author.event(type_, str(tenant_id), data={"key": number})
        await self._tell(event, tenant_id)
        return key

    async def _tell(self, event: AuditEvent, tenant_id: TenantId) -> None:
        # Keys are in a database of their own, so this cannot be in one transaction with them.
        async with self._database.owner_transaction() as connection:
            await audit_log.record(connection, tenant_id, event)
