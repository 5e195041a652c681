"""Takeover of durable responses that no process generates: queued, released, or with a lapsed
lease.

Each is claimed, its log is folded, and its run continues after the last committed entry. The orphan
reaper ends responses that cannot be continued: foreground ones whose process died, and durable ones
after their last attempt or without any process of their release.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.concurrency import ResettableEvent
from gateway.engine.run_spec import rebuild
from gateway.errors import StoreError, StoreUnavailable
from gateway.eventlog.fold_slices import READ_BYTES_MAX
from gateway.store import claims, events
from gateway.store.claims import ClaimableWork
from gateway.store.events import day_of
from gateway.store.periodic import run_periodically
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.engine.archive import Archive
    from gateway.replication.durable_runs import DurableRuns
    from gateway.replication.lease_keeper import LeaseKeeper
    from gateway.store.claims import ClaimedRun, ClaimTerms
    from gateway.store.events import LogRow
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId

CLAIMED_AT_ONCE_MAX: Final = 32
"""Other processes could start more of them sooner."""
READ_AT_ONCE_MAX: Final = 4
"""More would keep requests waiting for connections."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """Terms of claims, and how often to look for claimable responses.

    `quiet_s` is the pause while nothing is claimable and no lease is about to lapse; it delays work
    only if a notification is lost.
    """

    terms: ClaimTerms
    interval_s: float
    quiet_s: float
    read_bytes_max: int = READ_BYTES_MAX


class TakeoverScheduler:
    def __init__(
        self,
        database: Database,
        runs: DurableRuns,
        lease_keeper: LeaseKeeper,
        limits: ClaimLimits,
        *,
        owner: str,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._runs = runs
        self._lease_keeper = lease_keeper
        self.limits = limits
        self._owner = owner
        self._metrics = metrics
        self._wake = ResettableEvent()
        self._may_have_more = True
        self._rest_s = limits.interval_s
        self._claiming = asyncio.Lock()
        self._rest_due: float | None = None
        """Deadline of all `at_rest` calls, in the loop's time."""
        self._reading = asyncio.Semaphore(READ_AT_ONCE_MAX)

    def wake(self) -> None:
        self._wake.set()

    def run_ended(self) -> None:
        # There is room for one more.
        if self._may_have_more:
            self._wake.set()

    async def run(self) -> None:
        # Returns once the process drains.
        while not self._runs.is_draining:
            self._wake.clear()
            if not await self.claim_available():
                await self._wake.within(self._rest_s)

    async def at_rest(self, *, wait_s: float) -> None:
        # Wait until all claimed runs are started or released, or `wait_s` after the first call:
        # leases of claims without an answer lapse by themselves.
        if self._rest_due is None:
            self._rest_due = asyncio.get_running_loop().time() + wait_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._rest_due), self._claiming:
                pass

    async def claim_available(self) -> bool:
        # True: there is likely to be more to claim.
        async with self._claiming:
            limit = min(self._runs.room, CLAIMED_AT_ONCE_MAX)
            self._may_have_more = True
            self._rest_s = self.limits.interval_s
            if limit <= 0:
                return False
            # Claiming takes a lock that new responses wait for: first see whether it is needed.
            work = await self._work()
            if not (work.is_queued or work.is_left):
                self._may_have_more = False
                self._rest_s = self._seconds_until_due(work)
                return False
            since = time.monotonic()
            with self._runs.reserving(limit):
                claimed = await self._claim(limit)
                with self._lease_keeper.reserving((run.claim for run in claimed), since=since):
                    await self._start_all(claimed)
            if len(claimed) < limit:
                self._may_have_more = work.is_queued and (await self._work()).is_queued
            return len(claimed) == limit

    async def _claim(self, limit: int) -> list[ClaimedRun]:
        ended = list(self._runs.ended)
        self._runs.ended.clear()
        try:
            claimed = await claims.claim(
                self._database,
                self._owner,
                self.limits.terms,
                limit=limit,
                take_over=self._lease_keeper.trusted,
                ended=ended,
            )
        except StoreError as error:
            self._runs.ended.extend(ended)
            _log.debug("no work could be claimed", error=error)
            return []
        self._metrics.claimed(len(claimed), sum(not run.was_queued for run in claimed))
        return claimed

    async def _work(self) -> ClaimableWork:
        # While the database is away, assume that there is work.
        try:
            return await claims.work(
                self._database, self.limits.terms, take_over=self._lease_keeper.trusted
            )
        except StoreError:
            return ClaimableWork(is_queued=True, is_left=True)

    async def _start_all(self, claimed: Sequence[ClaimedRun]) -> None:
        # Releases claims that were not started because the process drains.
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(self._start_claimed(run)) for run in claimed]
        spare = [run.claim for run, task in zip(claimed, started, strict=True) if not task.result()]
        if not spare:
            return
        try:
            await claims.release(self._database, spare)
        except StoreError as error:
            _log.warning("claims were not released; their leases will lapse", error=error)

    def _seconds_until_due(self, work: ClaimableWork) -> float:
        # There is no notice when a lease lapses.
        interval_s, quiet_s = self.limits.interval_s, self.limits.quiet_s
        if not self._lease_keeper.trusted:
            return interval_s
        return quiet_s if work.lapse_s is None else min(quiet_s, max(interval_s, work.lapse_s))

    async def _start_claimed(self, claimed: ClaimedRun) -> bool:
        # Starts it, ends it, or leaves it to its lease. False: release the claim.
        try:
            async with self._reading:
                return not self._runs.is_draining and await self._start(claimed)
        except StoreError as error:
            # Its log or row is unreachable: it can be claimed again when its lease lapses.
            self._report("a claimed response waits for its lease", claimed, error)
        except Exception as error:  # noqa: BLE001 - a defect of one must not stop the others
            await self._give_up(claimed, error)
        return True

    async def _start(self, claimed: ClaimedRun) -> bool:
        spec = rebuild(claimed)
        if spec is None:
            # Another process may know this plan; otherwise its attempts run out.
            _log.warning(
                "a response has a plan of another release",
                response_id=ids.response_id(claimed.claim.uuid),
            )
            return True
        return await self._runs.go_on(spec, claimed, await self._read_log(claimed))

    async def _read_log(self, claimed: ClaimedRun) -> list[LogRow]:
        # Entries may be missing at the end.
        claim, day = claimed.claim, day_of(claimed.created_at)
        rows: list[LogRow] = []
        read = 0
        while read < claimed.next_entry:
            more = await events.read(
                self._database,
                claim.tenant_id,
                claim.uuid,
                day,
                from_entry=read,
                bytes_max=self.limits.read_bytes_max,
            )
            if not more or more[-1].first_entry < read:
                break
            rows += more
            read = more[-1].first_entry + more[-1].count
        return rows

    async def _give_up(self, claimed: ClaimedRun, error: Exception) -> None:
        claim = claimed.claim
        try:
            heads = await claims.heads(self._database, [(claim.tenant_id, claim.uuid)])
            head = heads.get(claim.uuid)
            if head is None or head.epoch != claim.epoch:
                return  # cancelled or deleted since it was claimed: so its log was another one
            self._report("a claimed response cannot go on", claimed, error)
            await self._runs.end_defective(claim, error)
        except Exception as refusal:  # noqa: BLE001 - as above
            self._report("a claimed response waits for its lease", claimed, refusal)

    def _report(self, event: str, claimed: ClaimedRun, error: Exception) -> None:
        _log.error(
            event,
            response_id=ids.response_id(claimed.claim.uuid),
            epoch=claimed.claim.epoch,
            error=error,
        )


REAPED_AT_ONCE_MAX: Final = 100
REAPING_INTERVAL_S: Final = 5.0
ORPHAN_S: Final = 3600.0
"""A response waits so long for a process of its release."""


class OrphanReaper:
    def __init__(
        self,
        database: Database,
        archive: Archive,
        lease_keeper: LeaseKeeper,
        *,
        attempts_max: int,
        interval_s: float = REAPING_INTERVAL_S,
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
        await run_periodically(self.round, self._interval_s, _log.debug, failure)

    async def round(self) -> int:
        """End abandoned responses and return their number; none while lapsed leases may have live
        owners.
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
