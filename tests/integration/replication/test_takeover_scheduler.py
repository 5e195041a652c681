"""Responses that nobody generates are found and gone on with, by whichever replica."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest
from typing_extensions import override

from gateway.store import messages
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE
from tests.conftest import new_tenant
from tests.fakes.following import collected
from tests.fakes.harmony_script import script_ids
from tests.fakes.outage import cut_connections
from tests.fakes.replica import TERMS, Habits, Speaker, background, load, replica, shown_text
from tests.fakes.stored import item, let_time_pass

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.generation import TokenRequest, TokenSink
    from gateway.protocol.stream_events import Event
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from tests.fakes.replica import Replica

ANSWER = "<|channel|>final<|message|>Hello there, friend<|return|>"
BEGINNING = "<|channel|>final<|message|>Hello there"
REST = ", friend<|return|>"


async def statuses(database: Database, specs: Sequence[RunSpec]) -> list[str]:
    return [(await load(database, spec)).status for spec in specs]


async def body(database: Database, spec: RunSpec) -> dict[str, object]:
    content: dict[str, object] = orjson.loads((await load(database, spec)).body or b"null")
    return content


def in_order(tenant: TenantId, count: int) -> list[RunSpec]:
    """Ids of one millisecond are in no order."""
    specs = [background(tenant) for _ in range(count)]
    return sorted(specs, key=lambda spec: spec.head.uuid)


async def accept(one: Replica, *specs: RunSpec) -> None:
    for spec in specs:
        await one.archive.accept(spec, None, owned=False)


async def hear(one: Replica, spec: RunSpec) -> list[Event]:
    live = one.live_logs.get(spec.head.uuid)
    assert live is not None
    return await collected(live.stream)


async def begin_and_stall(one: Replica, tokens: Speaker) -> None:
    """Look for work, and wait until the backend fell silent and all is in the log."""
    await one.scheduler.claim_available()
    await one.stalled(tokens)


class Patient(Speaker):
    """A backend that says nothing before it may."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.may_speak = asyncio.Event()

    @override
    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        await self.may_speak.wait()
        await super().generate(request, sink, avoid=avoid, attempts_max=attempts_max)


@pytest.mark.slow
async def test_a_queued_response_is_generated_and_kept(
    database: Database, tenant: TenantId
) -> None:
    spec = replace(background(tenant), added=(item("msg_in"),), inputs=1)
    tokens = Patient(ANSWER)
    async with replica(database, tokens) as one:
        await accept(one, spec)
        assert not await one.scheduler.claim_available()
        tokens.may_speak.set()
        events = await hear(one, spec)
        await one.idle()
        assert one.live_logs.get(spec.head.uuid) is None
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.is_terminal for event in events].index(True) == len(events) - 1
    stored = await load(database, spec)
    assert (stored.status, stored.plan, stored.is_held) == ("completed", None, False)
    assert shown_text(await body(database, spec)) == "Hello there, friend"
    history = await messages.history(database, tenant, spec.head.uuid, depth_max=9, items_max=9)
    assert history is not None
    assert [one.role for one in history.items] == ["user", "assistant"]


@pytest.mark.slow
async def test_the_scheduler_wakes_when_there_is_work(database: Database, tenant: TenantId) -> None:
    specs = in_order(tenant, 3)
    habits = Habits(running_max=1)
    async with replica(database, Speaker(ANSWER), habits) as one, asyncio.TaskGroup() as group:
        looking = group.create_task(one.scheduler.run())
        await accept(one, *specs)
        one.scheduler.wake()
        while (await load(database, specs[-1])).status != "completed":
            await one.idle()
        looking.cancel()
    for spec in specs:
        assert (await load(database, spec)).status == "completed"


@pytest.mark.slow
async def test_another_replica_goes_on_where_one_fell_silent(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    stalled, rest = Speaker(BEGINNING, silent=True), Speaker(REST)
    async with replica(database, stalled) as dead, replica(database, rest) as alive:
        await accept(dead, spec)
        await begin_and_stall(dead, stalled)
        assert not await alive.scheduler.claim_available()
        assert alive.supervisor.claimed == 0
        await let_time_pass(database, tenant, seconds=601)
        await alive.scheduler.claim_available()
        events = await hear(alive, spec)
        await alive.idle()
        (request,) = rest.requests
        assert list(request.prompt_ids) == [*spec.prompt_ids, *script_ids(BEGINNING)]
        fenced = dead.live_logs.get(spec.head.uuid)
        assert fenced is not None
        await dead.keeper.heartbeat()
        await dead.idle()
        assert fenced.handed_over
        assert stalled.closed == 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert shown_text(await body(database, spec)) == "Hello there, friend"
    usage = (await body(database, spec))["usage"]
    assert isinstance(usage, dict)
    assert usage["output_tokens"] == len(script_ids(BEGINNING)) + len(script_ids(REST))


@pytest.mark.slow
async def test_a_lease_that_lapses_is_found_in_the_longest_rest(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    stalled, patient = Speaker(BEGINNING, silent=True), Habits(quiet_s=3600.0)
    async with (
        replica(database, stalled) as dead,
        replica(database, Speaker(REST), patient) as alive,
        asyncio.TaskGroup() as group,
    ):
        await accept(dead, spec)
        await begin_and_stall(dead, stalled)
        await let_time_pass(database, tenant, seconds=TERMS.lease_s - 0.3)
        looking = group.create_task(alive.scheduler.run())
        while (await load(database, spec)).status != "completed":
            await alive.idle()
        looking.cancel()
    assert shown_text(await body(database, spec)) == "Hello there, friend"


@pytest.mark.slow
async def test_a_long_log_is_read_piece_by_piece(database: Database, tenant: TenantId) -> None:
    spec = background(tenant)
    stalled, rest = Speaker(BEGINNING, silent=True), Speaker(REST)
    habits = Habits(read_bytes_max=1)
    async with replica(database, stalled) as dead, replica(database, rest, habits) as alive:
        await accept(dead, spec)
        await begin_and_stall(dead, stalled)
        await dead.supervisor.begin_drain()
        await alive.scheduler.claim_available()
        await alive.idle()
    assert shown_text(await body(database, spec)) == "Hello there, friend"


@pytest.mark.slow
async def test_a_replica_that_drains_hands_over_at_once(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    stalled, rest = Speaker(BEGINNING, silent=True), Speaker(REST)
    async with replica(database, stalled) as leaving, replica(database, rest) as staying:
        await accept(leaving, spec)
        await begin_and_stall(leaving, stalled)
        await leaving.supervisor.begin_drain()
        assert not (await load(database, spec)).is_held
        await leaving.scheduler.run()
        await staying.scheduler.claim_available()
        await staying.idle()
    stored = await load(database, spec)
    assert stored.status == "completed"
    assert shown_text(await body(database, spec)) == "Hello there, friend"


async def test_a_replica_that_began_to_drain_gives_back_what_it_has_just_claimed(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await accept(one, spec)
        one.supervisor.is_draining = True
        await one.scheduler.claim_available()
        assert one.supervisor.claimed == 0
    stored = await load(database, spec)
    assert (stored.status, stored.is_held) == ("in_progress", False)


@pytest.mark.slow
async def test_a_process_takes_only_as_much_as_it_has_room_for(
    database: Database, tenant: TenantId
) -> None:
    specs = in_order(tenant, 3)
    tokens = Speaker(BEGINNING, silent=True)
    async with replica(database, tokens, Habits(running_max=2)) as one:
        await accept(one, *specs)
        assert await one.scheduler.claim_available()
        assert one.supervisor.claimed == 2
        assert not await one.scheduler.claim_available()
        assert await statuses(database, specs) == ["in_progress", "in_progress", "queued"]


@pytest.mark.slow
async def test_a_tenant_runs_as_many_as_it_may_on_all_replicas_together(
    database: Database, tenant: TenantId
) -> None:
    terms = replace(TERMS, tenant_running_max=2)
    specs = in_order(tenant, 3)
    other = background(await new_tenant(database))
    first, second = Speaker(BEGINNING, silent=True), Speaker(ANSWER)
    async with (
        replica(database, first, Habits(terms=terms)) as one,
        replica(database, second, Habits(terms=terms)) as two,
    ):
        await accept(one, *specs)
        await one.scheduler.claim_available()
        await accept(one, other)
        await two.scheduler.claim_available()
        await two.idle()
        assert (await load(database, other)).status == "completed"
        assert await statuses(database, specs) == ["in_progress", "in_progress", "queued"]


async def damage(database: Database, spec: RunSpec, statement: str) -> None:
    async with database.transaction(spec.principal.tenant_id) as connection:
        await connection.execute(Statement(statement), {"id": spec.head.uuid})


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE responses SET plan = 'no plan' WHERE id = :id",
        "DELETE FROM events WHERE response_id = :id",
    ],
)
async def test_a_defect_of_one_response_does_not_stop_the_others(
    database: Database, tenant: TenantId, statement: str
) -> None:
    defective, well = background(tenant), background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await accept(one, defective, well)
        await damage(database, defective, statement)
        await one.scheduler.claim_available()
        await one.idle()
    assert (await load(database, well)).status == "completed"
    assert (await load(database, defective)).status == "failed"


@pytest.mark.slow
async def test_a_response_that_cannot_even_be_ended_does_not_stop_the_others(
    database: Database, tenant: TenantId
) -> None:
    defective, well = background(tenant), background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await accept(one, defective, well)
        await damage(database, defective, "UPDATE responses SET request = '[]' WHERE id = :id")
        await one.scheduler.claim_available()
        await one.idle()
        await damage(database, defective, "UPDATE responses SET attempts = 4 WHERE id = :id")
        await let_time_pass(database, tenant, seconds=601)
        assert await one.reaper.round() == 0
    assert (await load(database, well)).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE responses SET plan = '{\"version\": 99}' WHERE id = :id",
        "UPDATE responses SET request = convert_to(jsonb_set(convert_from(request, 'UTF8')::jsonb,"
        " '{format}', to_jsonb('chat'::text))::text, 'UTF8') WHERE id = :id",
    ],
)
async def test_what_is_of_another_release_or_format_is_left_until_nobody_is_left_to_try(
    database: Database, tenant: TenantId, statement: str
) -> None:
    spec = background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await accept(one, spec)
        await damage(database, spec, statement)
        for _ in range(TERMS.attempts_max):
            await one.scheduler.claim_available()
            assert one.supervisor.claimed == 0
            assert (await load(database, spec)).is_held
            await let_time_pass(database, tenant, seconds=601)
        assert not await one.scheduler.claim_available()
        assert await one.reaper.round() == 1
    assert (await load(database, spec)).status == "failed"


@pytest.mark.slow
async def test_a_response_whose_log_cannot_be_reached_waits_for_its_lease(
    database: Database, tenant: TenantId
) -> None:
    spec = background(tenant)
    async with replica(database, Speaker(ANSWER)) as one:
        await accept(one, spec)
        async with database.owner_transaction() as connection:
            await connection.execute(Statement(f"REVOKE SELECT ON events FROM {APP_ROLE}"))
        await one.scheduler.claim_available()
        assert (await load(database, spec)).is_held
        async with database.owner_transaction() as connection:
            await connection.execute(Statement(f"GRANT SELECT ON events TO {APP_ROLE}"))
        await let_time_pass(database, tenant, seconds=601)
        await one.scheduler.claim_available()
        await one.idle()
    assert (await load(database, spec)).status == "completed"


async def test_a_database_that_breaks_off_costs_no_run(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    specs = [background(tenant) for _ in range(4)]
    async with replica(database, Speaker(ANSWER)) as one:
        await accept(one, *specs)
        await one.scheduler.claim_available()
        for _ in range(3):
            await cut_connections(database_url)
        await one.idle()
    for spec in specs:
        assert (await load(database, spec)).status == "completed"
        assert shown_text(await body(database, spec)) == "Hello there, friend"


async def test_a_scheduler_without_a_database_looks_again(tenant: TenantId) -> None:
    from gateway.store.postgres.database import Database

    database = Database(
        "postgresql://nobody:x@127.0.0.1:1/none",
        pool_size_max=1,
        command_timeout_s=1,
        connect_timeout_s=1,
    )
    async with replica(database, Speaker(ANSWER)) as one:
        assert not await one.scheduler.claim_available()
        assert not one.keeper.trusted
    await database.close()
