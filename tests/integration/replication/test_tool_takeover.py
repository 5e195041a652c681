"""A response with a call that the gateway answers is gone on with, wherever its log ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.engine.tools import INTERRUPTED
from gateway.entries import Entry, Hop, Tokens, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from gateway.generation import FinishReason
from tests.fakes.harmony_script import script_ids
from tests.fakes.hosted_tools import CALL, Continuing, CountedTool, result_ids
from tests.fakes.replica import (
    Habits,
    background,
    folded,
    leave_behind,
    load,
    log_of,
    replica,
    shown_text,
)
from tests.fakes.staged_run import ANSWER
from tests.fakes.stored import let_time_pass

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

OUTPUT = "12 degrees."
LOG: list[Entry] = [
    TurnStarted(7),
    Tokens(tuple(script_ids(CALL))[:8]),
    Tokens(tuple(script_ids(CALL))[8:]),
    TurnEnded(FinishReason.STOP),
    ToolStarted(0),
    ToolEnded(0, tuple(result_ids(OUTPUT)), OUTPUT),
    TurnStarted(40),
    Tokens(tuple(script_ids(ANSWER))[:4]),
]


@pytest.mark.parametrize("size", range(1, len(LOG) + 1))
async def test_a_call_has_its_effect_once_whichever_replica_answers_it(
    database: Database, tenant: TenantId, size: int
) -> None:
    spec, tool, log = background(tenant), CountedTool(output=OUTPUT), LOG[:size]
    await leave_behind(database, spec, log, owner="gone")
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        await alive.scheduler.look()
        await alive.idle()
    stored = await load(database, spec)
    assert stored.status == "completed"
    body = orjson.loads(stored.body or b"")
    effects = sum(isinstance(entry, ToolStarted) for entry in log)
    assert len(tool.ran) + effects == 1
    is_lost = isinstance(log[-1], ToolStarted)
    call, result, _ = body["output"]
    assert result["call_id"] == call["call_id"]
    assert result["output"] == (INTERRUPTED.output if is_lost else OUTPUT)
    assert shown_text(body) == "Hello there"
    whole = await log_of(database, spec)
    assert sum(isinstance(entry, Hop) for entry in whole) == 1
    assert folded(spec, whole).response() == body


async def test_a_call_that_runs_is_in_the_log_already(database: Database, tenant: TenantId) -> None:
    spec, tool = background(tenant), CountedTool(hangs=True)
    await leave_behind(database, spec, LOG[:4], owner="gone")
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing(), Habits(tools=tool)) as alive:
        await alive.scheduler.look()
        await tool.reached.wait()
        assert (await log_of(database, spec))[-1] == ToolStarted(0)
