"""Bring the data of tenants under their newest keys, in the background.

After a key was renewed, or a tenant got its first one, everything is read page by page, and what is
under an older key, or plain, is written anew: at most so many rows a second, by one replica for a
tenant, in passes until one finds nothing left. It begins once no process seals with the older key
any more. Older keys stay: `encryption reseal --destroy-older` destroys them.

Any process that owns the tables does it; where none does, the command does.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.governance.audit import BY_ITSELF
from gateway.store import retention
from gateway.store.governance import reseals
from gateway.store.governance.resealing import KEYS, reseal, reseal_flushes
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from gateway.store.governance.reseals import ResealPlace
    from gateway.store.postgres.database import Database
    from gateway.store.tenant_keys import TenantKeys
    from gateway.tenancy import TenantId

INTERVAL_S: Final = 300.0
ROWS_AT_ONCE: Final = 200
ROWS_PER_S: Final = 500.0
"""At most, so that requests notice nothing."""
HOLD_S: Final = 60.0
"""So much longer than a page takes by its rows a tenant stays with whoever goes on for it."""

_log = EventLog(__name__)


class Resealing:
    """The rounds of one process over the tenants that have keys."""

    def __init__(
        self, database: Database, keys: TenantKeys, *, rows_per_s: float = ROWS_PER_S
    ) -> None:
        self._database = database
        self._keys = keys
        self._rows_per_s = rows_per_s
        self._hold_s = HOLD_S + ROWS_AT_ONCE / rows_per_s

    async def run(self) -> None:
        # Random pauses keep replicas from working at the same time.
        while True:
            await asyncio.sleep(INTERVAL_S * random.uniform(0.5, 1.0))  # noqa: S311 - see above
            try:
                await self.round()
            except StoreError as error:
                _log.warning("content was not resealed, will be tried again", error=error)

    async def round(self) -> int:
        """Continue for each tenant with a newer key than its content; return how many were
        finished.

        Raises `StoreUnavailable`; the next round continues.
        """
        if not await retention.owns_partitions(self._database):
            return 0
        settled_s = self._database.keyring.policy.settled_s
        done = await reseals.finished(self._database)
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
        place = await reseals.take(self._database, tenant_id, number, hold_s=self._hold_s)
        if place is None:
            return False
        while True:
            passed = await self._pass(tenant_id, number, place)
            if passed is None:
                return False
            if not passed.written:
                break
            place = replace(passed, table=None, after=None, written=0)
        told = {"key": number, "rows": passed.total}
        event = BY_ITSELF.event("harmony.encryption.resealed", str(tenant_id), data=told)
        await reseals.finish(self._database, tenant_id, number, event)
        _log.info("content is under its newest key", tenant=str(tenant_id), count=passed.total)
        return True

    async def _pass(
        self, tenant_id: TenantId, number: int, place: ResealPlace
    ) -> ResealPlace | None:
        # None: the place no longer belongs to this key. Flushes come first: rows moved out of them
        # meanwhile are then seen in the logs.
        tables = list(KEYS)
        if place.table is None:
            written = await self._flushes(tenant_id)
            place = replace(
                place, table=tables[0], written=place.written + written, total=place.total + written
            )
        assert place.table is not None, "it was given the first one"
        for table in tables[tables.index(place.table) :]:
            after = place.after if table == place.table else None
            is_over = False
            while not is_over:
                page = await reseal(
                    self._database, tenant_id, table, after=after, rows_max=ROWS_AT_ONCE
                )
                after, is_over = page.last, page.last is None
                place = replace(
                    place,
                    table=table,
                    after=after,
                    written=place.written + page.written,
                    total=place.total + page.written,
                )
                if not await self._move(tenant_id, number, place, is_over=is_over):
                    return None
                await asyncio.sleep(page.seen / self._rows_per_s)
        return place

    async def _move(
        self, tenant_id: TenantId, number: int, place: ResealPlace, *, is_over: bool
    ) -> bool:
        # After the end of a table, the place is the beginning of the next one.
        if is_over and place.table is not None:
            tables = list(KEYS)
            beyond = tables.index(place.table) + 1
            if beyond < len(tables):
                place = replace(place, table=tables[beyond], after=None)
        return await reseals.move(self._database, tenant_id, number, place, hold_s=self._hold_s)

    async def _flushes(self, tenant_id: TenantId) -> int:
        total = 0
        after: tuple[str, int] | None = ("", 0)
        while after is not None:
            written, after = await reseal_flushes(
                self._database, tenant_id, after=after, rows_max=ROWS_AT_ONCE
            )
            total += written
        return total
