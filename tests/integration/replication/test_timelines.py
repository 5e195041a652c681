"""The timeline of a response knows who had it before, whoever ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.entries import Mark, Tokens, TurnStarted
from gateway.eventlog.fold.execution import execution_of, unpacked_timeline
from gateway.store.postgres.statements import Statement
from tests.fakes.harmony_script import script_ids
from tests.fakes.hosted_tools import Continuing
from tests.fakes.replica import background, leave_behind, replica
from tests.fakes.staged_run import ANSWER
from tests.fakes.stored import let_time_pass

if TYPE_CHECKING:
    from gateway.entries import Entry
    from gateway.eventlog.fold.execution import Execution
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

TIMELINE = Statement("SELECT timeline FROM responses WHERE tenant_id = :tenant")
ATTEMPTS = Statement("SELECT attempts FROM usage WHERE tenant_id = :tenant")


async def taken_over(database: Database, tenant: TenantId) -> Execution:
    """The execution of a response whose first owner died in the middle of its answer."""
    spec = background(tenant)
    begin_ms = spec.head.created_at * 1000
    said: list[Entry] = [
        Mark("replica", begin_ms + 10, "gone"),
        TurnStarted(7),
        Mark("backend", begin_ms + 20, "gpu-1"),
        Mark("token", begin_ms + 30),
        Tokens(tuple(script_ids(ANSWER))[:4]),
    ]
    await leave_behind(database, spec, said, owner="gone")
    await let_time_pass(database, tenant, seconds=601)
    async with replica(database, Continuing()) as alive:
        await alive.scheduler.claim_available()
        await alive.idle()
        async with database.transaction(tenant) as connection:
            packed = await connection.scalar(TIMELINE, {"tenant": tenant})
            assert await connection.scalar(ATTEMPTS, {"tenant": tenant}) == 2
        execution = execution_of(unpacked_timeline(packed), begin_ms=begin_ms)
        assert [one.name for one in execution.replicas] == ["gone", alive.owner]
    return execution


async def test_a_takeover_is_a_change_of_replica_and_its_wait_a_phase(
    database: Database, tenant: TenantId
) -> None:
    execution = await taken_over(database, tenant)
    assert execution.is_over
    assert [one.outcome for one in execution.replicas] == ["taken over", "completed"]
    assert execution.attempts[0][:1] == ("gpu-1",)
    assert execution.attempts[0].outcome == "taken over"
    assert "interrupted" in execution.totals
    assert [(one.kind, one.name) for one in execution.points] == [("hop", "replica")]
