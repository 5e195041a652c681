"""Leases of this process's claims.

A claim is lost when its epoch has moved: another replica took the response over because this one
was silent for a lease, or the response was ended elsewhere. A run that appends nothing meanwhile is
stopped here.
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
"""After an outage: others may have to notice first that an answer never comes."""
HEARTBEATS_OF_DOUBT: Final = 0.5
"""After a pause of this process: others that paused with it renew at the same moment; otherwise
their leases are right.
"""
RETRIES_PER_HEARTBEAT: Final = 6

ASSURED_S: Final = 2.0
"""Time that normally suffices for data to reach another server."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Lease of claims, which lapse after `lease_s` without a heartbeat.

    `poll_s` bounds how long a run goes on that was ended elsewhere, if the notification is lost.
    """

    lease_s: float
    heartbeat_s: float
    poll_s: float = 0.5


@dataclass(slots=True)
class _Held:
    """Claim that no other process can take before `until`, by this process's clock."""

    claim: Claim
    run: Abandonable
    until: float


class LeaseKeeper:
    """Heartbeats of all runs of a process, foreground ones included."""

    def __init__(
        self, renew: Renew, heads: ReadHeads, timing: LeaseTiming, metrics: Metrics
    ) -> None:
        # `renew` and `heads` are `store.claims.heartbeat` and `store.claims.heads`.
        self._renew = renew
        self._heads = heads
        self._timing = timing
        self._metrics = metrics
        self._held: dict[UUID, _Held] = {}
        metrics.claims_held.append(lambda: len(self._held))
        self._reserved: dict[Claim, float] = {}
        """Claims without a run yet, and until when no other process can take each."""
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

        Live owners may have lapsed leases before the first heartbeat, and after an outage of the
        database or a pause of this process.
        """
        now = time.monotonic()
        return not self._is_away and not self._was_silent(now) and now >= self._trusted_from

    @property
    def cut_off_s(self) -> float | None:
        """Return the seconds until the next attempt to reach the database, before which nothing can
        be stored; None if it is reachable.
        """
        if not self._is_away:
            return None
        return max(0.0, self._retry_at - time.monotonic())

    def hold(self, claim: Claim, run: Abandonable) -> None:
        """Renew the claim until it is dropped; abandon the run if it is lost."""
        before = self._held.get(claim.uuid)
        # Committing the claim, or reading its log, may have taken as long as the lease.
        since = time.monotonic() - run.age_s
        until = self._reserved.get(claim, since + self._timing.lease_s)
        self._held[claim.uuid] = _Held(claim, run, until)
        if run.spec.durable:
            self._may_be_ended.set()
        if before is not None and before.claim != claim:
            # The claim lapsed and the response was claimed again before anybody noticed.
            self._abandon(before)

    def drop(self, claim: Claim) -> None:
        held = self._held.get(claim.uuid)
        if held is not None and held.claim == claim:
            del self._held[claim.uuid]

    async def assured(self, claim: Claim) -> None:
        """Wait until no other process can take the claim for `ASSURED_S` (or half a shorter lease).

        Required before sending anything that must not be sent twice: after a pause of this process
        its claim may have been taken. Raises `ClaimLost`.
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
    def reserving(self, claims: Iterable[Claim], *, since: float) -> Iterator[None]:
        """Renew claims whose runs have yet to begin; `since` is when they were requested."""
        self._reserved = dict.fromkeys(claims, since + self._timing.lease_s)
        try:
            yield
        finally:
            self._reserved = {}

    def ended(self, uuids: Iterable[UUID]) -> None:
        # Other processes may have ended them.
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
            # Other processes do not cancel foreground responses.
            durable = [one for one in self._held.values() if one.run.spec.durable]
            if not durable:
                self._may_be_ended.clear()
            await self._check(durable)

    async def heartbeat(self) -> bool:
        """Renew all claims, and test the connection even if there are none; return False if it
        fails.
        """
        held = list(self._held.values())
        claims = self._reserved.keys() | {one.claim for one in held}
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
        # With two claims on one response it is unknown which of them was renewed.
        certain = {one for one in claims if one.uuid in renewed and claim_counts[one.uuid] == 1}
        until = sent_at + self._timing.lease_s
        for one in held:
            if one.claim in certain:
                one.until = until
        self._reserved |= dict.fromkeys(self._reserved.keys() & certain, until)
        self._has_renewed.set()
        self._has_renewed.clear()
        await self._check([one for one in held if one.claim.uuid not in renewed])
        return True

    async def _renew_with_retry(self, claims: Sequence[Claim]) -> frozenset[UUID] | None:
        # None: the database is away, as before, or failed twice. A pause of this process fails
        # statements by timeout, which says nothing about the database, hence one retry.
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
        # A response that ended under its own epoch was ended by its own run, which reports it.
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
