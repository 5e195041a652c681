"""The claims that this process holds: renews them, and stops the runs whose claim is lost.

A claim is lost when its epoch has moved: another replica went on with the response, because this
one was silent for a lease, or somebody ended it. The run learns of it from its next append, too;
the lease keeper tells it when it has nothing to say.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.concurrency import ResettableEvent
from gateway.errors import ClaimLost, StoreError
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
    from uuid import UUID

    from gateway.engine.engine import Abandonable
    from gateway.store.claims import Claim, LogHead
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId

    Renew = Callable[[Sequence[Claim]], Awaitable[frozenset[UUID]]]
    ReadHeads = Callable[[Collection[tuple[TenantId, UUID]]], Awaitable[dict[UUID, LogHead]]]

HEARTBEATS_OF_DISTRUST: Final = 2.0
"""After the database was away. Each of the others may be waiting for an answer that never comes,
and has to notice that before it renews."""
HEARTBEATS_OF_DOUBT: Final = 0.5
"""After this process was held up itself. If the others were as well, as on a machine that was
paused, they renew at the same moment as this one; if not, their leases tell the truth."""
RETRIES_PER_HEARTBEAT: Final = 6
"""A heartbeat that failed is tried again after this part of the time between two."""

ASSURED_S: Final = 2.0
"""Seconds that data from a process to somebody else's server is under way, at most, as a rule."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Times of leases: a claim lapses after `lease_s` (`background.lease_s`) without a heartbeat,
    which comes every `heartbeat_s`.

    `poll_s` is how long a run may go on that was ended elsewhere, when no notice of it arrives.
    """

    lease_s: float
    heartbeat_s: float
    poll_s: float = 0.5


@dataclass(slots=True)
class _Held:
    """Claim that this process holds: by its clock the lease does not lapse before `until`."""

    claim: Claim
    run: Abandonable
    until: float


class LeaseKeeper:
    """Heartbeats for all runs of a process, those of foreground responses included."""

    def __init__(
        self, renew: Renew, heads: ReadHeads, timing: LeaseTiming, metrics: Metrics
    ) -> None:
        # `renew` is `store.claims.heartbeat` of this process, `heads` is `store.claims.heads`.
        self._renew = renew
        self._heads = heads
        self._timing = timing
        self._metrics = metrics
        self._held: dict[UUID, _Held] = {}
        metrics.claims_held.append(lambda: len(self._held))
        self._reserved: frozenset[Claim] = frozenset()
        self._check_soon = ResettableEvent()
        self._may_be_ended = ResettableEvent()
        self._has_renewed = ResettableEvent()
        self._renewed_at: float | None = None
        self._trusted_from = 0.0
        self._is_away = False
        self._retry_at = 0.0

    @property
    def trusted(self) -> bool:
        """Return True if a lapsed lease means a dead owner.

        That is not so before the first heartbeat, while the database is away, or after this process
        was held up itself, nor shortly after that: then leases of live owners have lapsed, and will
        be renewed.
        """
        now = time.monotonic()
        return not self._is_away and not self._was_silent(now) and now >= self._trusted_from

    @property
    def cut_off_s(self) -> float | None:
        """Return the seconds until the database is tried again, after a heartbeat that failed.

        Nothing can be stored until then. None: the last heartbeat reached the database.
        """
        if not self._is_away:
            return None
        return max(0.0, self._retry_at - time.monotonic())

    def hold(self, claim: Claim, run: Abandonable) -> None:
        """Renew this claim until it is dropped; abandon `run` when the claim is lost."""
        before = self._held.get(claim.uuid)
        self._held[claim.uuid] = _Held(claim, run, time.monotonic() + self._timing.lease_s)
        if run.spec.durable:
            self._may_be_ended.set()
        if before is not None and before.claim != claim:
            # It lapsed here and came back before anybody noticed.
            self._abandon(before)

    def drop(self, claim: Claim) -> None:
        """Stop renewing a claim. Another claim on the same response stays."""
        held = self._held.get(claim.uuid)
        if held is not None and held.claim == claim:
            del self._held[claim.uuid]

    async def assured(self, claim: Claim) -> None:
        """Return once no other process can take the claim for `ASSURED_S`, or half a shorter lease.

        Call it before sending out something that must not be done twice. It goes by the clock of
        this process, which may have been held up since the last heartbeat; then it waits for the
        next one. Raises `ClaimLost` for a claim that is not held here.
        """
        margin_s = min(ASSURED_S, self._timing.lease_s / 2)
        while True:
            held = self._held.get(claim.uuid)
            if held is None or held.claim != claim:
                raise ClaimLost
            if time.monotonic() + margin_s <= held.until:
                return
            await self._has_renewed.wait()

    @contextmanager
    def reserving(self, claims: Iterable[Claim]) -> Iterator[None]:
        """Renew these claims for the block as well: their runs have yet to begin."""
        self._reserved = frozenset(claims)
        try:
            yield
        finally:
            self._reserved = frozenset()

    def ended(self, uuids: Iterable[UUID]) -> None:
        # Other processes may have ended them: check at once if one of them runs here.
        if any(uuid in self._held for uuid in uuids):
            self._check_soon.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._watch())

    async def _beat(self) -> None:
        heartbeat_s = self._timing.heartbeat_s
        while True:
            is_renewed = await self.heartbeat()
            await asyncio.sleep(heartbeat_s if is_renewed else heartbeat_s / RETRIES_PER_HEARTBEAT)

    async def _watch(self) -> None:
        while True:
            await self._may_be_ended.wait()
            await self._check_soon.within(self._timing.poll_s)
            self._check_soon.clear()
            # A foreground response is not cancelled by other processes.
            durable = [one for one in self._held.values() if one.run.spec.durable]
            if not durable:
                self._may_be_ended.clear()
            await self._check(durable)

    async def heartbeat(self) -> bool:
        """Renew all claims once, or at least contact the database. Return False if it is away."""
        held = list(self._held.values())
        claims = self._reserved.union(one.claim for one in held)
        sent_at = time.monotonic()
        renewed = await self._renew_with_retry(list(claims))
        if renewed is None:
            self._is_away = True
            self._retry_at = time.monotonic() + self._timing.heartbeat_s / RETRIES_PER_HEARTBEAT
            return False
        now = time.monotonic()
        is_first = self._renewed_at is None
        if self._is_away or (now - sent_at > self._timing.heartbeat_s):
            self._distrust(now, HEARTBEATS_OF_DISTRUST)
        elif self._was_silent(now) and not is_first:
            self._distrust(now, HEARTBEATS_OF_DOUBT)
        self._is_away = False
        self._renewed_at = now
        claim_counts = Counter(claim.uuid for claim in claims)
        for one in held:
            # With two claims on one response it is unknown which of them was renewed.
            if one.claim.uuid in renewed and claim_counts[one.claim.uuid] == 1:
                one.until = sent_at + self._timing.lease_s
        self._has_renewed.set()
        self._has_renewed.clear()
        await self._check([one for one in held if one.claim.uuid not in renewed])
        return True

    async def _renew_with_retry(self, claims: Sequence[Claim]) -> frozenset[UUID] | None:
        # None: the database is away, as it was before, or failed twice. After a pause of this
        # process the server has given up its statements, or its own clock is past the deadline,
        # which says nothing about the database, so one retry is made.
        for is_last in (self._is_away, True):
            try:
                return await self._renew(claims)
            except StoreError as error:
                if is_last and not self._is_away:
                    _log.warning("claims were not renewed", error=error)
                if is_last:
                    break
        return None

    def _distrust(self, now: float, heartbeats: float) -> None:
        self._trusted_from = max(self._trusted_from, now + heartbeats * self._timing.heartbeat_s)

    def _was_silent(self, now: float) -> bool:
        return self._renewed_at is None or now - self._renewed_at > self._timing.lease_s

    async def _check(self, suspects: Sequence[_Held]) -> None:
        # A response that ended under its own epoch was ended by its own run, which will report it.
        if not suspects:
            return
        try:
            heads = await self._heads([(one.claim.tenant_id, one.claim.uuid) for one in suspects])
        except StoreError:
            return
        for one in suspects:
            head = heads.get(one.claim.uuid)
            if head is None or head.epoch != one.claim.epoch:
                self._lose(one)

    def _lose(self, one: _Held) -> None:
        if self._held.get(one.claim.uuid) is one:
            self.drop(one.claim)
            self._abandon(one)

    def _abandon(self, one: _Held) -> None:
        self._metrics.claim_lost()
        one.run.abandon()
