"""Keys of tenants, and resealing of content.

After a tenant gets a new key, `Resealing` rewrites content that is plain or under an older one,
once no process seals with the older key any more: one replica for a tenant, in passes until one
finds nothing left. Older keys stay until `encryption reseal --destroy-older`. Only processes that
own the tables reseal; without any, the command does.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gateway.audit import BY_ITSELF, COMMAND_LINE
from gateway.errors import ConfigError, ContentSealed, InvalidRequest, StoreError
from gateway.retention import sweep
from gateway.store import audit_log, holds, resealing
from gateway.store.periodic import run_periodically
from gateway.store.postgres.database import require_owner
from gateway.store.resealing import KEYS, ResealPlace
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gateway.audit import AuditEvent, Author
    from gateway.encryption.keyring import WrappedKey
    from gateway.store.postgres.database import Database
    from gateway.store.resealing import Resealed
    from gateway.store.tenant_keys import TenantKeys
    from gateway.tenancy import TenantId

ROWS_AT_ONCE: Final = 200
PASSES_MAX: Final = 5
"""A pass leaves rows that others write with an older key meanwhile to the next one."""
INTERVAL_S: Final = 300.0
ROWS_PER_S: Final = 500.0
"""So that requests notice nothing."""
HOLD_S: Final = 60.0
"""Margin for which a tenant stays reserved, beyond the time of a page."""

_NEXT: Final = dict(pairwise(KEYS))
"""The table after each but the last."""
_log = EventLog(__name__)


class TenantEncryption:
    """Use cases of keys. Other processes use a changed key within `encryption.fresh_s`."""

    def __init__(self, database: Database, keys: TenantKeys | None) -> None:
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
        return await resealing.state(self._database, tenant_id)

    async def enable(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> WrappedKey:
        """Seal writes from now on."""
        if _is_sealing(await self.keys(tenant_id)):
            raise InvalidRequest("What this tenant writes is sealed already: rotate its key.")
        return await self._add_key(tenant_id, "harmony.encryption.enabled", author)

    async def rotate(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> WrappedKey:
        # Older keys stay, to open what they sealed. One that sealing gives a key at its first use
        # may get it here.
        kept = await self.keys(tenant_id)
        if not _is_sealing(kept) and (kept or not self._database.keyring.policy.seals_all):
            raise InvalidRequest("What this tenant writes is not sealed: enable encryption first.")
        return await self._add_key(tenant_id, "harmony.encryption.rotated", author)

    async def disable(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> None:
        if not _is_sealing(await self.keys(tenant_id)):
            raise InvalidRequest("What this tenant writes is not sealed.")
        await self._keys.retire(tenant_id)
        event = author.event("harmony.encryption.disabled", str(tenant_id))
        await self._tell(event, tenant_id)

    async def shred(self, tenant_id: TenantId, *, author: Author = COMMAND_LINE) -> int:
        """Destroy all keys for good and return their number: what they sealed becomes unreadable
        anywhere. Raises `DataHeld`.
        """
        if not await self.keys(tenant_id):
            raise InvalidRequest("This tenant has no key: nothing that is stored of it is sealed.")
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
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Reseal all content under the current key; return the number of rows written.

        Raises `ContentSealed` if no key opens some rows, after the others of their table were
        written, and `InvalidRequest` while other processes may use keys to be destroyed.
        """
        await require_owner(self._database)
        keyring = self._database.keyring
        keyring.forget(tenant_id)
        await keyring.ready([tenant_id])
        sealing, total = keyring.of(tenant_id).sealing, 0
        if destroys_older and sealing:
            await self._check_is_everywhere(tenant_id, sealing)
        for _ in range(PASSES_MAX):
            written, lost = await _reseal_flushes(self._database, tenant_id), 0
            async for table, page in _pages(self._database, tenant_id, ResealPlace(), rows_per_s):
                written, lost = written + page.written, lost + page.lost
                on_rows(page.seen)
                if lost and page.last is None:
                    raise ContentSealed(
                        f"{lost} rows of {table} cannot be opened: their key is gone, or they are "
                        "damaged"
                    )
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


def _is_sealing(keys: Sequence[WrappedKey]) -> bool:
    return any(key.retired_at is None and key.destroyed_at is None for key in keys)


async def _reseal_flushes(database: Database, tenant_id: TenantId) -> int:
    # Before the tables: rows moved out of flushes meanwhile are then seen in the logs.
    total = 0
    after: tuple[str, int] | None = ("", 0)
    while after is not None:
        written, after = await resealing.reseal_flushes(
            database, tenant_id, after=after, rows_max=ROWS_AT_ONCE
        )
        total += written
    return total


async def _pages(
    database: Database, tenant_id: TenantId, place: ResealPlace, rows_per_s: float
) -> AsyncIterator[tuple[str, Resealed]]:
    # Reseal all tables from this place on.
    tables, after = list(KEYS), place.after
    for table in tables[tables.index(place.table or tables[0]) :]:
        while True:
            page = await resealing.reseal(
                database, tenant_id, table, after=after, rows_max=ROWS_AT_ONCE
            )
            yield table, page
            await asyncio.sleep(page.seen / rows_per_s)
            if (after := page.last) is None:
                break


class Resealing:
    def __init__(
        self, database: Database, keys: TenantKeys, *, rows_per_s: float = ROWS_PER_S
    ) -> None:
        self._database = database
        self._keys = keys
        self._rows_per_s = rows_per_s
        self._hold_s = HOLD_S + ROWS_AT_ONCE / rows_per_s

    async def run(self) -> None:
        failure = "content was not resealed, will be tried again"
        await run_periodically(self.round, INTERVAL_S, _log.warning, failure)

    async def round(self) -> int:
        if not await sweep.owns_partitions(self._database):
            return 0
        settled_s = self._database.keyring.policy.settled_s
        done = await resealing.finished(self._database)
        count = 0
        for tenant_id, number in (await self._keys.sealing(settled_s=settled_s)).items():
            if done.get(tenant_id, 0) < number:
                count += await self._attempt(tenant_id, number)
        return count

    async def _attempt(self, tenant_id: TenantId, number: int) -> bool:
        # A tenant whose keys are unavailable must not hold up the others.
        try:
            return await self._reseal(tenant_id, number)
        except StoreError as error:
            _log.warning(
                "the content of a tenant was not resealed", tenant=str(tenant_id), error=error
            )
            return False

    async def _reseal(self, tenant_id: TenantId, number: int) -> bool:
        # False: another process reseals this tenant, or a newer key exists.
        keyring = self._database.keyring
        keyring.forget(tenant_id)
        await keyring.ready([tenant_id])
        if keyring.of(tenant_id).sealing != number:
            return False
        place = await resealing.take(self._database, tenant_id, number, hold_s=self._hold_s)
        if place is None:
            return False
        while True:
            passed = await self._pass(tenant_id, number, place)
            if passed is None:
                return False
            if not passed.written:
                break
            place = replace(passed, table=None, after=None, written=0)
        data = {"key": number, "rows": passed.total}
        event = BY_ITSELF.event("harmony.encryption.resealed", str(tenant_id), data=data)
        await resealing.finish(self._database, tenant_id, number, event)
        _log.info("content is under its newest key", tenant=str(tenant_id), count=passed.total)
        return True

    async def _pass(
        self, tenant_id: TenantId, number: int, place: ResealPlace
    ) -> ResealPlace | None:
        # None: the place no longer belongs to this key.
        if place.table is None:
            written = await _reseal_flushes(self._database, tenant_id)
            place = replace(place, written=place.written + written, total=place.total + written)
        async for table, page in _pages(self._database, tenant_id, place, self._rows_per_s):
            place = replace(
                place,
                table=table if page.last is not None else _NEXT.get(table, table),
                after=page.last,
                written=place.written + page.written,
                total=place.total + page.written,
            )
            if not await resealing.move(
                self._database, tenant_id, number, place, hold_s=self._hold_s
            ):
                return None
        return place
