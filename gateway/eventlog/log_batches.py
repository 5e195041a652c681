"""Commits of entries: the batches of all runs of a tenant in one row, later moved to their logs.

A batch goes to the log of its response at once (`store.events`) if it is long, or the first under
an unproven claim; all others share a flush (`store.flushes`), at a fraction of the cost, and are
settled (moved to their own logs) later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.store import claims, events, flushes
from gateway.store.events import LogBatch, LogRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import date
    from uuid import UUID

    from gateway.store.claims import LogHead
    from gateway.store.events import WriteClaim
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

SETTLE_INTERVAL_S: Final = 1.0
"""A takeover reads the flushes of that time."""
SETTLED_AT_ONCE_MAX: Final = 64
"""Logs that are settled by one commit, for which the next flush waits."""
ALONE_BYTES_MIN: Final = 512
"""So many bytes are not worth writing twice."""


class _LogPosition:
    """Position in the log of one claim: `count` entries from `first_entry` on are in flushes.

    `since` is the oldest of these flushes. `is_proven`: the claim was held after its tenant's fence
    was known. `is_closed`: this process writes no more to it, though it may not have ended.
    """

    __slots__ = (
        *("claim", "count", "day", "entries", "first_entry", "since"),
        *("is_ending", "is_closed", "is_proven"),
    )

    def __init__(self, claim: WriteClaim, day: date, first_entry: int) -> None:
        self.claim = claim
        self.day = day
        self.is_ending = self.is_closed = False
        self.is_proven = True
        self.settled(first_entry)

    def settled(self, first_entry: int) -> None:
        self.first_entry = first_entry
        self.count = self.since = 0
        self.entries = bytearray()

    def continues_with(self, claim: WriteClaim, first_entry: int) -> bool:
        if first_entry != self.first_entry + self.count:
            return False
        return claim is self.claim or claim == self.claim

    def add(self, batch: LogBatch, number: int) -> None:
        self.since = self.since or number
        self.count += batch.count
        self.entries += batch.entries[1:] if self.entries else batch.entries

    def complete_row(self, row: LogRow) -> LogRow:
        if not self.count:
            return row
        entries = bytes(self.entries) + row.entries[1:]
        return LogRow(self.first_entry, self.count + row.count, entries)

    def batch(self, more: LogBatch | None) -> LogBatch:
        if more is None:
            entries = bytes(self.entries)
            return LogBatch(self.claim, self.day, self.first_entry, self.count, entries)
        row = self.complete_row(LogRow(more.first_entry, more.count, more.entries))
        return LogBatch(self.claim, self.day, row.first_entry, row.count, row.entries)


class Flusher:
    """Writer of the logs of one process's runs. `LogWriter` makes one call at a time."""

    def __init__(
        self, database: Database, owner: str, *, settle_interval_s: float = SETTLE_INTERVAL_S
    ) -> None:
        self._database = database
        self._owner = owner
        self._settle_interval_s = settle_interval_s
        self._lock = asyncio.Lock()
        self._fences: dict[TenantId, int] = {}
        self._positions: dict[UUID, _LogPosition] = {}
        self._numbers: dict[TenantId, int] = {}
        """Last flush of each tenant; earlier ones exist until they are pruned."""
        self._round: list[UUID] = []
        self._round_at = 0.0
        self._may_prune = False
        self._is_synced = True

    def fence(self, tenant_id: TenantId) -> int | None:
        return self._fences.get(tenant_id)

    def begins(self, claim: WriteClaim, day: date, next_entry: int, fence: int) -> None:
        # An unchanged fence proves the claim, because taking a response from this process moves the
        # fence. Otherwise the first batch proves it.
        if self._fences.get(claim.tenant_id) == fence and claim.uuid not in self._positions:
            self._positions[claim.uuid] = _LogPosition(claim, day, next_entry)

    async def append(self, batches: Sequence[LogBatch]) -> frozenset[UUID]:
        async with self._lock:
            if not self._is_synced:
                await self._adopt({batch.claim.tenant_id for batch in batches})
            self._is_synced = False
            committed = await self._append(batches)
            self._is_synced = True
        return committed

    async def settle(self) -> None:
        """Move some old entries from flushes to their own logs. Raises `StoreError`."""
        is_new_round = asyncio.get_running_loop().time() >= self._round_at
        if not (is_new_round or self._round or self._may_prune):
            return
        async with self._lock:
            if not self._is_synced:
                return
            due = self._due()
            if due:
                self._is_synced = False
                await self._write(due)
                self._is_synced = True
            await self._prune()

    async def heads(self, logs: Collection[tuple[TenantId, UUID]]) -> dict[UUID, LogHead]:
        # Like `store.claims.heads`, after all flushed entries are in their own logs.
        async with self._lock:
            if not self._is_synced:
                await self._adopt(set())
            return await claims.heads(self._database, logs)

    async def complete_row(self, claim: WriteClaim, row: LogRow) -> LogRow:
        # The log is left alone until `resume` or `close`. Raises `StoreUnavailable`.
        async with self._lock:
            if not self._is_synced:
                await self._adopt(set())
            position = self._positions.get(claim.uuid)
            if position is None or not position.continues_with(claim, row.first_entry):
                return row
            # Nobody calls `resume` or `close` again for a log that was closed during this wait.
            position.is_ending = not position.is_closed
            return position.complete_row(row)

    def resume(self, claim: WriteClaim) -> None:
        # The end of the response was not committed.
        position = self._position(claim)
        if position is not None:
            position.is_ending = position.is_proven = False

    def close(self, claim: WriteClaim) -> None:
        # Entries in flushes are still settled.
        position = self._position(claim)
        if position is not None:
            position.is_ending = position.is_proven = False
            position.is_closed = True

    def ended(self, claim: WriteClaim) -> None:
        # The end of the log is committed, with all that `complete_row` returned.
        if self._position(claim) is not None:
            del self._positions[claim.uuid]

    def _position(self, claim: WriteClaim) -> _LogPosition | None:
        position = self._positions.get(claim.uuid)
        return position if position is not None and position.claim == claim else None

    async def _adopt(self, tenants: set[TenantId]) -> None:
        tenants |= {position.claim.tenant_id for position in self._positions.values()}
        ending = {uuid for uuid, position in self._positions.items() if position.is_ending}
        if tenants:
            self._fences |= await flushes.adopt(self._database, self._owner, tenants, but=ending)
        # Without those that ended meanwhile, whose flushes would be kept for ever.
        self._positions = {uuid: self._positions[uuid] for uuid in ending & self._positions.keys()}
        for position in self._positions.values():
            position.is_proven = False
        self._is_synced = True

    async def _append(self, batches: Sequence[LogBatch]) -> frozenset[UUID]:
        alone: list[LogBatch] = []
        together: dict[TenantId, list[tuple[_LogPosition, LogBatch]]] = defaultdict(list)
        tenant_id: TenantId | None = None
        others: list[tuple[_LogPosition, LogBatch]] = []
        find = self._positions.get
        for batch in batches:
            claim = batch.claim
            position = find(claim.uuid)
            if position is None or not position.continues_with(claim, batch.first_entry):
                alone.append(batch)
            elif not position.is_proven or len(batch.entries) >= ALONE_BYTES_MIN:
                alone.append(position.batch(batch))
            else:
                # Nearly always all are of one tenant; to look it up is a part of what each costs.
                if claim.tenant_id is not tenant_id:
                    tenant_id = claim.tenant_id
                    others = together[tenant_id]
                others.append((position, batch))
        committed: frozenset[UUID] = frozenset()
        if alone:
            # A claim is proven under a fence that was known before.
            unknown = {batch.claim.tenant_id for batch in alone}.difference(self._fences)
            if unknown:
                await self._learn_fences(unknown)
            committed = await self._write(alone)
        if together:
            flushed = await self._flush(together)
            committed = committed | flushed if committed else flushed
        return committed

    def _due(self) -> list[LogBatch]:
        now = asyncio.get_running_loop().time()
        if not self._round and now >= self._round_at:
            self._round_at = now + self._settle_interval_s
            kept = {
                uuid: one for uuid, one in self._positions.items() if one.count or not one.is_closed
            }
            self._positions, self._round = kept, [uuid for uuid, one in kept.items() if one.count]
            self._may_prune = True
        due, self._round = self._round[:SETTLED_AT_ONCE_MAX], self._round[SETTLED_AT_ONCE_MAX:]
        batches: list[LogBatch] = []
        for uuid in due:
            position = self._positions.get(uuid)
            if position is not None and position.count and not position.is_ending:
                batches.append(position.batch(None))
        return batches

    async def _learn_fences(self, tenants: set[TenantId]) -> None:
        # Under new fences each claim has to be proven again.
        self._fences |= await flushes.fences(self._database, self._owner, tenants)
        for position in self._positions.values():
            if position.claim.tenant_id in tenants:
                position.is_proven = False

    async def _write(self, batches: Sequence[LogBatch]) -> frozenset[UUID]:
        committed = await events.append(self._database, batches)
        for batch in batches:
            uuid = batch.claim.uuid
            if uuid not in committed:
                self._positions.pop(uuid, None)
                continue
            end = batch.first_entry + batch.count
            position = self._positions.get(uuid)
            if position is None or position.claim != batch.claim:
                self._positions[uuid] = _LogPosition(batch.claim, batch.day, end)
            else:
                position.settled(end)
                position.is_proven = True
        return committed

    async def _flush(
        self, together: dict[TenantId, list[tuple[_LogPosition, LogBatch]]]
    ) -> frozenset[UUID]:
        refused: set[TenantId] = set()
        keyring = self._database.keyring
        await events.ready(self._database, together)
        lost = {tenant_id for tenant_id in together if keyring.find(tenant_id) is None}
        for tenant_id in lost:
            # Its keys are gone: its runs are fenced off, and nobody else's are held up.
            for position, _ in together.pop(tenant_id):
                self._positions.pop(position.claim.uuid, None)
        async with self._database.runs_transaction(in_bulk=len(together) == 1) as connection:
            for tenant_id in sorted(together):
                fence, batches = self._fences[tenant_id], [one for _, one in together[tenant_id]]
                number = await flushes.add(connection, self._owner, fence, batches)
                if number is None:
                    refused.add(tenant_id)
                else:
                    self._numbers[tenant_id] = number
        committed: list[UUID] = []
        for tenant_id in together.keys() - refused:
            number = self._numbers[tenant_id]
            for position, batch in together[tenant_id]:
                position.add(batch, number)
                committed.append(batch.claim.uuid)
        if not refused:
            return frozenset(committed)
        await self._learn_fences(refused)
        again = [position.batch(one) for of in refused for position, one in together[of]]
        return await self._write(again) | frozenset(committed)

    async def _prune(self) -> None:
        if self._round or not self._may_prune or not self._numbers:
            return
        self._may_prune = False
        needed = {tenant_id: number + 1 for tenant_id, number in self._numbers.items()}
        for position in self._positions.values():
            if position.count:
                tenant_id = position.claim.tenant_id
                needed[tenant_id] = min(needed[tenant_id], position.since)
        # They are in nobody's way, and are removed another time.
        with suppress(StoreError):
            await flushes.prune(self._database, self._owner, needed)
            # Drop tenants without flushes, or every tenant that ever had one would stay.
            with_flushes = {one.claim.tenant_id for one in self._positions.values() if one.count}
            for tenant_id in self._numbers.keys() - with_flushes:
                del self._numbers[tenant_id]
