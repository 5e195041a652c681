"""A response with a call that the gateway answers is gone on with, wherever its log ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.engine.tool_runner import UNKNOWN
from gateway.entries import (
    FOLD_VERSION,
    TOOLS_FOLD_VERSION,
    Entry,
    Hop,
    Tokens,
    ToolEnded,
    ToolHandle,
    ToolsListed,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.generation import FinishReason
from gateway.store import claims
from gateway.store.claims import Claim
from gateway.store.postgres.statements import Statement
from gateway.tools.tool_contract import ToolResult
from tests.fakes.harmony_script import script_ids
from tests.fakes.hosted_tools import (
    CALL,
    GRANTS,
    OUTPUT,
    SERVER,
    Continuing,
    CountedTool,
    granted,
    result_ids,
)
from tests.fakes.replica import (
    TERMS,
    Habits,
    background,
    folded,
    foreground,
    leave_behind,
    load,
    log_of,
    replica,
    shown_text,
)
from tests.fakes.staged_run import ANSWER
from tests.fakes.stored import let_time_pass
from tests.fakes.unsealed_only import plain_only

if TYPE_CHECKING:
    from gateway.engine.run_spec import RunSpec
    from gateway.protocol.grants import Grants
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from tests.fakes.replica import Replica

HANDLE = b"execution 7"
LISTING = ToolsListed("srv", b'[{"name":"f"}]')


def log(*, repeatable: bool = False, handle: bool = False) -> list[Entry]:
    """Of a response that nothing befell, up to some of its answer."""
    call, shown = script_ids(CALL), orjson.dumps({"output": OUTPUT})
    return [
        LISTING,
        TurnStarted(7),
        Tokens(tuple(call)[:8]),
        Tokens(tuple(call)[8:]),
        TurnEnded(FinishReason.STOP),
        ToolStarted(0, repeatable),
        *([ToolHandle(0, HANDLE)] if handle else []),
        ToolEnded(0, tuple(result_ids(OUTPUT)), "ok", shown),
        TurnStarted(40),
        Tokens(tuple(script_ids(ANSWER))[:4]),
    ]


def begun(tenant: TenantId, **fields: Any) -> RunSpec:
    return granted(background(tenant), listings=(LISTING,), **fields)


async def take_over(database: Database, spec: RunSpec, tool: CountedTool) -> dict[str, Any]:
    """Have another replica go on with a response; its body."""
    await let_time_pass(database, spec.principal.tenant_id, seconds=601)
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        await alive.scheduler.claim_available()
        await alive.idle()
    body: dict[str, Any] = orjson.loads((await load(database, spec)).body or b"")
    return body


@pytest.mark.slow
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("size", range(1, len(log()) + 1))
async def test_a_call_has_its_effect_once_whichever_replica_answers_it(
    database: Database, tenant: TenantId, size: int, *, repeatable: bool
) -> None:
    spec = begun(tenant)
    tool, said = CountedTool(repeatable=repeatable), log(repeatable=repeatable)[:size]
    await leave_behind(database, spec, said, owner="gone")
    body = await take_over(database, spec, tool)
    assert body["status"] == "completed"
    effects = sum(isinstance(entry, ToolStarted) for entry in said)
    is_open = isinstance(said[-1], ToolStarted)
    assert len(tool.ran) + effects == (2 if is_open and repeatable else 1)
    listed, call, _ = body["output"]
    assert listed["type"] == "mcp_list_tools"
    is_lost = is_open and not repeatable
    assert (call["type"], call["status"]) == ("mcp_call", "failed" if is_lost else "completed")
    assert call["output"] == (None if is_lost else OUTPUT)
    assert shown_text(body) == "Hello there"
    whole = await log_of(database, spec)
    ends = [entry for entry in whole if isinstance(entry, ToolEnded)]
    assert [end.ids for end in ends] == [tuple(result_ids(UNKNOWN.output if is_lost else OUTPUT))]
    assert sum(isinstance(entry, Hop) for entry in whole) == any(
        isinstance(entry, TurnStarted) for entry in said
    )
    assert folded(spec, whole).response() == body


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_call_with_a_handle_is_taken_up(
    database: Database, tenant: TenantId, *, is_known: bool
) -> None:
    spec = begun(tenant)
    said = log(handle=True)
    await leave_behind(database, spec, said[:7], owner="gone")
    known = {HANDLE: ToolResult(OUTPUT, shown={"output": OUTPUT})} if is_known else {}
    tool = CountedTool(known=known)
    body = await take_over(database, spec, tool)
    assert (tool.resumed, tool.ran) == ([HANDLE], [])
    assert body["output"][1]["status"] == ("completed" if is_known else "failed")


@pytest.mark.slow
async def test_a_call_that_runs_is_in_the_log_already(database: Database, tenant: TenantId) -> None:
    spec, tool = begun(tenant), CountedTool(hangs=True, handle=HANDLE)
    await leave_behind(database, spec, log()[:5], owner="gone")
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing(), Habits(tools=tool, calls_wait_s=0.0)) as alive:
        await alive.scheduler.claim_available()
        await tool.reached.wait()
        assert ToolStarted(0) in await log_of(database, spec)


def held_up(one: Replica) -> asyncio.Event:
    """This process is held up in front of a call for so long that its leases have lapsed by its own
    clock. The event is set when it asks whether it may call.
    """
    is_asked, assured = asyncio.Event(), one.keeper.assured

    async def ask(claim: Claim) -> None:
        one.keeper._held[claim.uuid].until = 0.0
        is_asked.set()
        await assured(claim)

    one.keeper.assured = ask  # type: ignore[method-assign]
    return is_asked


async def test_a_replica_that_lost_its_claim_calls_nothing(
    database: Database, tenant: TenantId
) -> None:
    """It may wake behind the beginning of a call that another one has told the model about."""
    spec, stale, tool = begun(tenant), CountedTool(), CountedTool()
    await leave_behind(database, spec, log()[:5], owner="gone")
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing(), Habits(tools=stale)) as frozen:
        is_asked = held_up(frozen)
        await frozen.scheduler.claim_available()
        await is_asked.wait()
        assert ToolStarted(0) in await log_of(database, spec)
        body = await take_over(database, spec, tool)
        await frozen.keeper.heartbeat()
        await frozen.idle()
    assert (stale.ran, tool.ran) == ([], [])
    assert (body["output"][1]["status"], body["status"]) == ("failed", "completed")


@pytest.mark.slow
async def test_a_lease_that_is_renewed_lets_the_call_go(
    database: Database, tenant: TenantId
) -> None:
    spec, tool = begun(tenant), CountedTool()
    await leave_behind(database, spec, log()[:5], owner="gone")
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        is_asked = held_up(alive)
        await alive.scheduler.claim_available()
        await is_asked.wait()
        assert not tool.ran
        await alive.keeper.heartbeat()
        await alive.idle()
    assert len(tool.ran) == 1


async def begin(alive: Replica, spec: RunSpec) -> None:
    claim = await alive.archive.accept(spec, None, owned=True)
    assert claim is not None
    alive.begin(spec, claim)


async def test_a_cancelled_response_ends_while_its_tool_hangs(
    database: Database, tenant: TenantId
) -> None:
    spec, tool = begun(tenant), CountedTool(hangs=True)
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        await begin(alive, spec)
        await tool.reached.wait()
        await alive.archive.cancel(tenant, spec.head.uuid)
        await alive.keeper.heartbeat()
        await alive.idle()
        await tool.was_cancelled.wait()
    stored = await load(database, spec)
    body = orjson.loads(stored.body or b"")
    assert (stored.status, body["output"][1]["status"]) == ("cancelled", "incomplete")
    assert folded(spec, await log_of(database, spec)).response() == body


async def test_a_process_that_drains_waits_for_a_call_that_must_not_be_run_twice(
    database: Database, tenant: TenantId
) -> None:
    tool, spec = CountedTool(hangs=True), begun(tenant)
    async with replica(database, Continuing(), Habits(tools=tool)) as leaving:
        await begin(leaving, spec)
        await tool.reached.wait()
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(leaving.supervisor.begin_drain())
            await asyncio.sleep(0)
            assert leaving.supervisor.is_draining
            assert not draining.done()
            tool.go_on.set()
    entries = await log_of(database, spec)
    assert any(isinstance(entry, ToolEnded) and entry.outcome == "ok" for entry in entries)
    second = CountedTool()
    async with replica(database, Continuing(), Habits(tools=second)) as alive:
        await alive.scheduler.claim_available()
        await alive.idle()
    assert (await load(database, spec)).status == "completed"
    assert len(tool.ran) + len(second.ran) == 1


@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_process_that_drains_does_not_wait_for_ever(
    database: Database, tenant: TenantId, *, repeatable: bool
) -> None:
    tool, spec = CountedTool(hangs=True, repeatable=repeatable), begun(tenant)
    habits = Habits(tools=tool, calls_wait_s=3600.0 if repeatable else 0.0)
    async with replica(database, Continuing(), habits) as leaving:
        await begin(leaving, spec)
        await tool.reached.wait()
        await leaving.supervisor.begin_drain()
        await tool.was_cancelled.wait()
    stored = await load(database, spec)
    assert (stored.status, stored.is_held) == ("in_progress", False)


async def test_only_who_knows_hosted_tools_goes_on(database: Database, tenant: TenantId) -> None:
    spec, plain = begun(tenant), background(tenant)
    for one in (spec, plain):
        await leave_behind(database, one, [], owner="gone")
    assert (await load(database, spec)).fold_version == TOOLS_FOLD_VERSION
    assert (await load(database, plain)).fold_version == FOLD_VERSION
    await let_time_pass(database, tenant, seconds=601)
    old = replace(TERMS, fold_versions=(FOLD_VERSION,))
    found = await claims.claim(database, "old release", old, limit=9, take_over=True)
    assert [run.claim.uuid for run in found] == [plain.head.uuid]


SECRETS = {"srv": {"authorization": "Bearer hunter2"}}
URL_ALONE = {"srv": {":url": "https://mcp.example/hunter2"}}
NAMED_BY_URL = replace(GRANTS, servers=(replace(SERVER, server="url:digest@mcp.example"),))
WITH_CREDENTIAL = replace(GRANTS, servers=(replace(SERVER, credential="digest"),))


async def kept(database: Database, tenant: TenantId) -> list[bytes]:
    async with database.transaction(tenant) as connection:
        return await connection.scalars(Statement("SELECT sealed FROM run_secrets"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grants", "secrets"), [(WITH_CREDENTIAL, SECRETS), (NAMED_BY_URL, URL_ALONE)]
)
async def test_secrets_are_sealed_for_whoever_goes_on_and_gone_with_the_end(
    database: Database, tenant: TenantId, grants: Grants, secrets: dict[str, dict[str, str]]
) -> None:
    spec = begun(tenant, grants=grants, secrets=secrets)
    tool, second = CountedTool(hangs=True, repeatable=True), CountedTool()
    async with replica(database, Continuing(), Habits(tools=tool)) as first:
        await begin(first, spec)
        await tool.reached.wait()
        [sealed] = await kept(database, tenant)
        assert b"hunter2" not in sealed
        await first.supervisor.begin_drain()
    async with replica(database, Continuing(), Habits(tools=second)) as alive:
        await alive.scheduler.claim_available()
        await alive.idle()
    assert (await load(database, spec)).status == "completed"
    assert second.scopes[0].secrets == tool.scopes[0].secrets == secrets
    assert await kept(database, tenant) == []


@pytest.mark.parametrize("how", ["cancelled", "abandoned", "other response"])
async def test_secrets_are_gone_however_a_response_ends(
    database: Database, tenant: TenantId, how: str
) -> None:
    spec = begun(tenant, grants=WITH_CREDENTIAL, secrets=SECRETS)
    async with replica(database, Continuing()) as one:
        await one.archive.accept(spec, None, owned=how == "abandoned")
        if how == "other response":
            stranger = Claim(tenant, background(tenant).head.uuid, 1)
            assert await one.archive.secrets(stranger) == {}
        elif how == "cancelled":
            await one.archive.cancel(tenant, spec.head.uuid)
        else:
            await let_time_pass(database, tenant, seconds=601)
            await one.archive.end_abandoned(tenant, spec.head.uuid)
    assert len(await kept(database, tenant)) == (how == "other response")


@plain_only("it looks at the column itself")
async def test_each_call_is_audited_once_without_its_content(
    database: Database, tenant: TenantId
) -> None:
    spec, tool = begun(tenant), CountedTool()
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        await begin(alive, spec)
        await alive.idle()
        owner = alive.owner
    async with database.transaction(tenant) as connection:
        [row] = await connection.execute(Statement("SELECT * FROM tool_calls"))
    assert (row.response_id, row.ordinal, row.attempt) == (spec.head.uuid, 0, 1)
    assert (row.kind, row.server, row.tool) == ("mcp", SERVER.server.encode(), b"srv.f")
    assert (row.outcome, row.replica) == ("ok", owner)
    assert (row.result_bytes, row.result_ids) == (len(OUTPUT), len(result_ids(OUTPUT)))
    assert b"Bern" not in row.arguments_hash
    async with database.transaction(tenant) as connection:
        [used] = await connection.execute(Statement("SELECT * FROM usage"))
    assert (used.tool_calls, used.web_searches) == (1, 0)
    assert used.tool_output_tokens == len(result_ids(OUTPUT))


@pytest.mark.slow
async def test_a_foreground_response_dies_with_its_process_and_its_call_with_it(
    database: Database, tenant: TenantId
) -> None:
    spec, tool = granted(foreground(tenant)), CountedTool()
    async with replica(database, Continuing(), Habits(tools=tool)) as one:
        await one.archive.begin(spec)
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        await alive.scheduler.claim_available()
        await alive.archive.end_abandoned(tenant, spec.head.uuid)
    assert (await load(database, spec)).status == "failed"
    assert not tool.ran


@pytest.mark.slow
async def test_a_long_result_is_in_the_log_as_it_was(database: Database, tenant: TenantId) -> None:
    output = "word " * 60_000
    spec = begun(tenant, window_left=1_000_000)
    async with replica(database, Continuing(), Habits(tools=CountedTool(output=output))) as alive:
        await begin(alive, spec)
        await alive.idle()
    body = orjson.loads((await load(database, spec)).body or b"")
    assert body["output"][1]["output"] == output
    whole = await log_of(database, spec)
    assert folded(spec, whole).response() == body
    [end] = [entry for entry in whole if isinstance(entry, ToolEnded)]
    assert end.ids == tuple(result_ids(output))
