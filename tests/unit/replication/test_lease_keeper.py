"""When a lease says that its owner is dead, and which runs are told to stop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.replication.lease_keeper import RETRIES_PER_HEARTBEAT, LeaseKeeper, LeaseTiming
from gateway.store.claims import Claim, LogHead
from gateway.telemetry.metrics import Metrics
from tests.fakes.staged_run import TENANT, run_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from gateway.engine.run_spec import RunSpec
    from gateway.tenancy import TenantId

LEASE_S = 60.0


@dataclass
class Table:
    """The claims as the database knows them; away while `failure` is set."""

    heads: dict[UUID, LogHead] = field(default_factory=dict)
    failure: Exception | None = None
    renewed: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)

    def claim(self) -> Claim:
        claim = Claim(TENANT, ids.new_uuid(), 1)
        self.heads[claim.uuid] = LogHead(1, 0, "in_progress")
        return claim

    async def renew(self, claims: Sequence[Claim]) -> frozenset[UUID]:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.renewed.set()
        held = (self.heads.get(claim.uuid) for claim in claims)
        return frozenset(
            claim.uuid
            for claim, head in zip(claims, held, strict=True)
            if head is not None and (head.epoch, head.status) == (claim.epoch, "in_progress")
        )

    async def read(self, asked: Collection[tuple[TenantId, UUID]]) -> dict[UUID, LogHead]:
        await asyncio.sleep(0)
        self.looked.set()
        if self.failure is not None:
            raise self.failure
        return {uuid: self.heads[uuid] for _, uuid in asked if uuid in self.heads}

    def keeper(
        self, *, lease_s: float = LEASE_S, heartbeat_s: float = 0.001, poll_s: float = 60.0
    ) -> LeaseKeeper:
        timing = LeaseTiming(lease_s=lease_s, heartbeat_s=heartbeat_s, poll_s=poll_s)
        return LeaseKeeper(self.renew, self.read, timing, Metrics())


@dataclass
class Told:
    """A run that notes when it has to stop."""

    spec: RunSpec = field(default_factory=lambda: run_spec(background=True))
    age_s: float = 0.0
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)

    def abandon(self) -> None:
        self.abandoned.set()


async def test_a_claim_that_holds_is_renewed_and_left_alone() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    keeper.hold(table.claim(), run)
    assert await keeper.heartbeat()
    assert not run.abandoned.is_set()
    assert not table.looked.is_set()


async def test_a_claim_that_another_took_stops_its_run() -> None:
    table, run, well = Table(), Told(), Told()
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    keeper.hold(table.claim(), well)
    table.heads[claim.uuid] = LogHead(2, 0, "in_progress")
    await keeper.heartbeat()
    assert run.abandoned.is_set()
    assert not well.abandoned.is_set()


async def test_a_response_that_was_deleted_stops_its_run() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    keeper.hold(table.claim(), run)
    table.heads.clear()
    await keeper.heartbeat()
    assert run.abandoned.is_set()


async def test_a_run_that_has_just_committed_its_end_is_not_stopped() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    table.heads[claim.uuid] = LogHead(1, 3, "completed")
    await keeper.heartbeat()
    assert not run.abandoned.is_set()


async def test_a_run_that_ended_meanwhile_is_not_stopped() -> None:
    table, run, again = Table(), Told(), Told()
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.heartbeat())
        await asyncio.sleep(0)
        table.heads[claim.uuid] = LogHead(2, 0, "in_progress")
        keeper.drop(claim)
        keeper.hold(Claim(TENANT, claim.uuid, 2), again)
    assert not run.abandoned.is_set()
    assert not again.abandoned.is_set()


async def test_a_response_that_comes_back_stops_the_run_that_had_it_before() -> None:
    table, before, now = Table(), Told(), Told()
    keeper = table.keeper()
    old = table.claim()
    new = Claim(TENANT, old.uuid, 2)
    keeper.hold(old, before)
    keeper.hold(new, now)
    assert before.abandoned.is_set()
    keeper.drop(old)
    table.heads[new.uuid] = LogHead(3, 0, "in_progress")
    await keeper.heartbeat()
    assert now.abandoned.is_set()


async def test_a_run_that_was_ended_elsewhere_stops_with_the_notice() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        keeper.ended([ids.new_uuid()])
        table.heads[claim.uuid] = LogHead(2, 1, "cancelled")
        keeper.ended([claim.uuid])
        await run.abandoned.wait()
        running.cancel()


async def test_a_run_that_was_ended_elsewhere_stops_without_a_notice() -> None:
    table, run = Table(), Told()
    keeper = table.keeper(poll_s=0.005)
    claim = table.claim()
    keeper.hold(claim, run)
    table.heads[claim.uuid] = LogHead(2, 1, "cancelled")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        await run.abandoned.wait()
        running.cancel()


async def test_a_database_that_is_away_stops_nothing() -> None:
    table, run = Table(failure=StoreUnavailable("away")), Told()
    keeper = table.keeper(poll_s=0.001)
    keeper.hold(table.claim(), run)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        await table.looked.wait()
        table.failure = None
        await table.renewed.wait()
        running.cancel()
    assert not run.abandoned.is_set()


async def cut_off_after_a_heartbeat(keeper: LeaseKeeper) -> bool:
    await keeper.heartbeat()
    return keeper.cut_off_s is not None


async def test_it_is_cut_off_from_a_failed_heartbeat_to_the_next_good_one() -> None:
    table = Table()
    keeper = table.keeper()
    assert not await cut_off_after_a_heartbeat(keeper)
    table.failure = StoreUnavailable("away")
    assert await cut_off_after_a_heartbeat(keeper)
    table.failure = None
    assert not await cut_off_after_a_heartbeat(keeper)


async def test_it_says_when_a_database_that_is_away_is_tried_again() -> None:
    keeper = Table(failure=StoreUnavailable("away")).keeper(heartbeat_s=60.0)
    assert keeper.cut_off_s is None
    await keeper.heartbeat()
    assert keeper.cut_off_s == pytest.approx(60.0 / RETRIES_PER_HEARTBEAT, abs=5.0)


async def test_a_heartbeat_that_was_lost_while_the_process_was_held_up_is_made_up_for() -> None:
    table = Table()
    asked = 0

    async def renew(claims: Sequence[Claim]) -> frozenset[UUID]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("the server ended the transaction meanwhile")
        return await table.renew(claims)

    keeper = LeaseKeeper(renew, table.read, LeaseTiming(lease_s=LEASE_S, heartbeat_s=60), Metrics())
    assert not await cut_off_after_a_heartbeat(keeper)
    assert asked == 2


async def trusted_after_a_heartbeat(keeper: LeaseKeeper) -> bool:
    await keeper.heartbeat()
    return keeper.trusted


async def test_lapsed_leases_mean_nothing_while_the_database_is_away_and_a_while_longer() -> None:
    table = Table()
    keeper = table.keeper(heartbeat_s=LEASE_S / 3)
    assert not keeper.trusted
    assert await trusted_after_a_heartbeat(keeper)
    table.failure = StoreUnavailable("away")
    for _ in range(2):
        assert not await trusted_after_a_heartbeat(keeper)
    table.failure = None
    for _ in range(2):
        assert not await trusted_after_a_heartbeat(keeper)
    keeper._trusted_from -= LEASE_S
    assert await trusted_after_a_heartbeat(keeper)


async def test_a_process_that_was_held_up_does_not_take_its_own_silence_for_that_of_others() -> (
    None
):
    keeper = Table().keeper(heartbeat_s=LEASE_S / 3)
    await keeper.heartbeat()
    assert keeper._renewed_at is not None
    keeper._renewed_at -= LEASE_S + 1
    assert not keeper.trusted
    assert not await trusted_after_a_heartbeat(keeper)


async def test_an_answer_that_took_a_lease_to_come_is_silence_as_well() -> None:
    """The database stood still: the leases of others have lapsed, too, and are renewed only now."""
    table = Table()
    keeper = table.keeper(heartbeat_s=LEASE_S / 3)
    await keeper.heartbeat()
    renew = table.renew

    async def slowly(claims: Sequence[Claim]) -> frozenset[UUID]:
        assert keeper._renewed_at is not None
        keeper._renewed_at -= LEASE_S + 1
        return await renew(claims)

    keeper._renew = slowly
    assert not await trusted_after_a_heartbeat(keeper)


async def test_what_leaves_the_process_waits_for_a_lease_that_holds_for_a_while() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    await keeper.assured(claim)
    # This process was held up: by its own clock the lease has a second left.
    keeper._held[claim.uuid].until = time.monotonic() + 1.0
    waiting = asyncio.ensure_future(keeper.assured(claim))
    await asyncio.sleep(0)
    assert not waiting.done()
    table.failure = StoreUnavailable("away")
    await keeper.heartbeat()
    assert not waiting.done()
    table.failure = None
    await keeper.heartbeat()
    await waiting


async def test_nothing_leaves_the_process_for_a_claim_that_it_lost() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    with pytest.raises(ClaimLost):
        await keeper.assured(claim)
    keeper.hold(claim, run)
    with pytest.raises(ClaimLost):
        await keeper.assured(replace(claim, epoch=2))
    keeper._held[claim.uuid].until = 0.0
    table.heads[claim.uuid] = LogHead(2, 0, "in_progress")
    waiting = asyncio.ensure_future(keeper.assured(claim))
    await asyncio.sleep(0)
    await keeper.heartbeat()
    assert run.abandoned.is_set()
    await keeper.heartbeat()
    with pytest.raises(ClaimLost):
        await waiting


async def test_of_two_claims_on_one_response_neither_is_taken_for_renewed() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    keeper._held[claim.uuid].until = 0.0
    table.heads[claim.uuid] = LogHead(2, 0, "in_progress")
    with keeper.reserving([replace(claim, epoch=2)], since=time.monotonic()):
        await keeper.heartbeat()
        assert keeper._held[claim.uuid].until == 0.0


async def test_a_lease_counts_from_the_claim_however_long_its_log_was_read() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    with keeper.reserving([claim], since=time.monotonic() - LEASE_S):
        keeper.hold(claim, run)
    # Another process took the response over meanwhile.
    table.heads[claim.uuid] = LogHead(2, 0, "in_progress")
    waiting = asyncio.ensure_future(keeper.assured(claim))
    await asyncio.sleep(0)
    assert not waiting.done()
    await keeper.heartbeat()
    await keeper.heartbeat()
    with pytest.raises(ClaimLost):
        await waiting
    assert run.abandoned.is_set()


async def test_a_lease_counts_from_the_request_however_long_its_claim_took_to_commit() -> None:
    table, run = Table(), Told(age_s=LEASE_S)
    keeper = table.keeper()
    claim = table.claim()
    keeper.hold(claim, run)
    waiting = asyncio.ensure_future(keeper.assured(claim))
    await asyncio.sleep(0)
    assert not waiting.done()
    await keeper.heartbeat()
    await waiting


async def test_a_claim_that_was_renewed_before_its_run_began_is_held_at_once() -> None:
    table, run = Table(), Told()
    keeper = table.keeper()
    claim = table.claim()
    with keeper.reserving([claim], since=time.monotonic() - LEASE_S):
        await keeper.heartbeat()
        keeper.hold(claim, run)
    table.failure = StoreUnavailable("away")
    await keeper.assured(claim)
