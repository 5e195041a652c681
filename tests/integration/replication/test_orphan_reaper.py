"""What nobody will go on with is ended, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from gateway.encryption.keyring import REFUSED_S, Keyring, KeyringPolicy
from gateway.engine.runner import Run
from gateway.entries import Mark
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.ids import new_uuid
from gateway.ledger import jobs
from gateway.replication.takeover_scheduler import ORPHAN_S, OrphanReaper
from gateway.store import responses
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.tenants import insert_tenant
from gateway.tenancy import TenantId
from tests.fakes.harmony_script import script_ids
from tests.fakes.keys import MemoryKeys, MemoryProvider
from tests.fakes.outage import cut_connections
from tests.fakes.replica import (
    LEASE_S,
    TERMS,
    Habits,
    Replica,
    Speaker,
    background,
    foreground,
    leave_behind,
    load,
    new_fold_for,
    replica,
    shown_text,
)
from tests.fakes.rows import count
from tests.fakes.stored import let_time_pass
from tests.integration.engine.test_archive import used

ANSWER = "<|channel|>final<|message|>Hello<|return|>"
BEGINNING = "<|channel|>final<|message|>Hel"


@pytest.fixture
async def one(database: Database) -> Replica:
    """A replica that only sweeps."""
    sweeping = Replica(database, Speaker(ANSWER))
    await sweeping.keeper.heartbeat()
    return sweeping


@pytest.mark.requirement("status.shutdown")
async def test_a_foreground_response_whose_process_died_has_failed(
    database: Database, tenant: TenantId, one: Replica
) -> None:
    spec = foreground(tenant)
    await Replica(database, Speaker(ANSWER)).archive.begin(spec)
    assert await one.reaper.round() == 0
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    assert await one.reaper.round() == 1
    stored = await load(database, spec)
    body = orjson.loads(stored.body or b"")
    assert stored.status == body["status"] == "failed"
    assert body["error"]["code"] == "server_error"
    assert "stopped" in body["error"]["message"]
    assert body["usage"] is None
    assert await one.reaper.round() == 0


async def test_what_a_killed_process_said_in_the_foreground_is_booked_to_nobody_and_counted(
    database: Database, tenant: TenantId, one: Replica
) -> None:
    """What docs/usage.md says of it."""
    spec, speaker = foreground(tenant), Speaker(BEGINNING, silent=True)
    killed = Replica(database, speaker)
    live = LiveLog(new_fold_for(spec.head), reader_events_max=100)
    run = asyncio.create_task(Run(spec, MemoryJournal(live), killed.engine)())
    await speaker.fell_silent()
    assert live.fold.usage.output_tokens == len(script_ids(BEGINNING))
    for table in ("events", "messages", "usage"):
        assert not await count(database, tenant, table), "nobody else can know what it said"
    before = await unbilled(database)
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    assert await one.reaper.round() == 1
    assert await used(database, spec) == []
    assert await unbilled(database) == before + 1
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def unbilled(database: Database) -> int:
    """Failed responses without a line, as reconciliation counts them."""
    found = await jobs.compare(database, back_s=3600, rows_max=10)
    return found.unbilled


@pytest.mark.slow
async def test_what_was_generated_is_kept_when_the_attempts_are_used_up(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    speaker = Speaker(BEGINNING, silent=True)
    habits = Habits(terms=replace(TERMS, attempts_max=1))
    async with replica(database, speaker, habits) as one:
        await one.archive.accept(spec, None, owned=False)
        await one.scheduler.claim_available()
        await one.stalled(speaker)
        await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        assert not await one.scheduler.claim_available()
        assert await one.reaper.round() == 1
        await one.keeper.heartbeat()
        await one.idle()
    stored = await load(database, spec)
    body = orjson.loads(stored.body or b"")
    assert stored.status == "failed"
    assert shown_text(body) == "Hel"
    assert body["usage"]["output_tokens"] == len(script_ids(BEGINNING))


async def test_a_response_of_a_release_that_is_gone_has_failed_in_the_end(
    database: Database, tenant: TenantId, one: Replica
) -> None:
    spec = background(tenant)
    await one.archive.accept(spec, None, owned=True)
    async with database.transaction(tenant) as connection:
        await connection.execute(Statement("UPDATE responses SET fold_version = 99"))
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    assert await one.reaper.round() == 0
    await let_time_pass(database, tenant, seconds=ORPHAN_S)
    assert await one.reaper.round() == 1
    stored = await load(database, spec)
    assert "version" in orjson.loads(stored.body or b"")["error"]["message"]


@pytest.mark.slow
async def test_sweeping_goes_on_by_itself_whatever_happens(
    database: Database, database_url: str, tenant: TenantId, one: Replica
) -> None:
    spec = foreground(tenant)
    await one.archive.begin(spec)
    reaper = OrphanReaper(database, one.archive, one.keeper, attempts_max=4, interval_s=0.001)
    async with asyncio.TaskGroup() as group:
        sweeping = group.create_task(reaper.run())
        await cut_connections(database_url)
        await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        while (await load(database, spec)).status != "failed":
            pass
        sweeping.cancel()


async def test_two_that_sweep_at_once_end_a_response_once(
    database: Database, tenant: TenantId, one: Replica
) -> None:
    other = Replica(database, Speaker(ANSWER))
    await other.keeper.heartbeat()
    for _ in range(5):
        await one.archive.begin(foreground(tenant))
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    ended = await asyncio.gather(one.reaper.round(), other.reaper.round())
    assert sum(ended) >= 5
    notices = [notice for notice in (*one.announced, *other.announced) if notice.kind == "ended"]
    assert len(notices) == 5


async def test_nothing_is_swept_while_leases_say_nothing(
    database: Database, tenant: TenantId, one: Replica
) -> None:
    spec = foreground(tenant)
    await one.archive.begin(spec)
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    one.keeper._is_away = True
    assert await one.reaper.round() == 0
    await one.keeper.heartbeat()
    assert await one.reaper.round() == 0
    one.keeper._trusted_from -= LEASE_S
    assert await one.reaper.round() == 1


async def test_a_durable_response_with_attempts_left_is_not_swept(
    database: Database, tenant: TenantId, one: Replica
) -> None:
    queued, lapsed = background(tenant), background(tenant)
    await one.archive.accept(queued, None, owned=False)
    await one.archive.accept(lapsed, None, owned=True)
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    assert await one.reaper.round() == 0
    assert (await load(database, queued)).status == "queued"
    assert (await load(database, lapsed)).status == "in_progress"


@pytest.mark.slow
@pytest.mark.parametrize("has_new_key", [False, True])
async def test_responses_whose_key_was_destroyed_are_ended(
    database_url: str, *, has_new_key: bool
) -> None:
    keys, provider, now = MemoryKeys(), MemoryProvider(), [0.0]
    policy = KeyringPolicy(seals_all=True)
    keyring = Keyring(keys, [provider], policy, clock=lambda: now[0])
    database = Database(database_url, pool_size_max=3, command_timeout_s=30, keyring=keyring)
    tenant = TenantId(new_uuid())
    await insert_tenant(database, tenant, "sealed")
    here = Replica(database, Speaker(ANSWER), Habits(terms=replace(TERMS, attempts_max=2)))
    specs = [background(tenant), background(tenant), foreground(tenant)]
    await leave_behind(database, specs[0], [Mark("replica", 1, "gone")], owner="gone")
    await here.archive.accept(specs[1], None, owned=False)
    await Replica(database, Speaker(ANSWER)).archive.begin(specs[2])

    async def rounds(*, are_clients_there: bool) -> list[str]:
        for _ in range(4):
            now[0] += REFUSED_S + 1
            if are_clients_there:
                assert not await keyring.usable([tenant]) or has_new_key
            await here.keeper.heartbeat()
            await here.scheduler.claim_available()
            await here.reaper.round()
            await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        states = [await responses.state(database, tenant, one.head.uuid) for one in specs]
        return [one.status for one in states if one is not None]

    provider.refuses = True
    keyring.forget(tenant)
    assert "failed" not in await rounds(are_clients_there=False), "its keys may come back"
    provider.refuses = False
    keys.destroy(tenant)
    keyring.forget(tenant)
    if has_new_key:
        await keyring.add(tenant, 2)
    assert await rounds(are_clients_there=True) == ["failed"] * 3
    assert not await count(database, tenant, "usage")
    await database.close()
