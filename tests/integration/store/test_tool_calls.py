"""The audit of hosted tools."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gateway import ids
from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store.postgres.statements import Statement
from gateway.store.tools import tool_calls
from gateway.store.tools.tool_calls import AuditedCall
from tests.fakes.unsealed_only import plain_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

DAY_S = 86_400
CALL = AuditedCall(
    response=ids.new_uuid(),
    ordinal=0,
    attempt=1,
    kind="mcp",
    server="https://mcp.example",
    tool="srv.\x00\ud800",
    arguments_hash=bytes(32),
    arguments_bytes=12,
    result_bytes=40,
    result_ids=9,
    outcome="ok",
    duration_ms=17,
    replica="replica_a",
    at=datetime.now(UTC),
)


async def rows(database: Database, tenant: TenantId) -> Sequence[Row]:
    async with database.transaction(tenant) as connection:
        statement = Statement("SELECT * FROM tool_calls ORDER BY ordinal, attempt")
        return list(await connection.execute(statement))


@plain_only("it looks at the column itself")
async def test_an_attempt_is_recorded_once_and_each_tenant_sees_its_own(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    again = replace(CALL, attempt=2, outcome="unknown")
    await tool_calls.record_all(database, [(tenant, CALL), (other_tenant, CALL), (tenant, again)])
    await tool_calls.record_all(database, [(tenant, replace(CALL, outcome="timeout"))])
    first, second = await rows(database, tenant)
    assert (first.outcome, second.outcome) == ("ok", "unknown")
    assert first.tool == b"srv.\x00?"
    assert (first.response_id, first.duration_ms, first.at) == (CALL.response, 17, CALL.at)
    assert len(await rows(database, other_tenant)) == 1


async def test_how_a_call_was_approved_and_what_it_reached_is_told_newest_first(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    asked = replace(
        CALL,
        tool="srv.say",
        ordinal=1,
        approval="user",
        approval_request_id="mcpr_1",
        hosts=("a.example", "b.example"),
        at=CALL.at + timedelta(seconds=1),
    )
    await tool_calls.record_all(database, [(tenant, CALL), (tenant, asked)])
    begin = CALL.at - timedelta(seconds=1)
    newest, oldest = await tool_calls.since(database, tenant, begin, rows_max=9)
    assert newest == asked
    assert (oldest.approval, oldest.hosts) == (None, ())
    assert await tool_calls.since(database, tenant, begin, rows_max=1) == [asked]
    assert await tool_calls.since(database, tenant, asked.at, rows_max=9) == []
    assert await tool_calls.since(database, other_tenant, begin, rows_max=9) == []


async def test_what_has_expired_goes(database: Database, tenant: TenantId) -> None:
    old = datetime.now(UTC) - timedelta(days=91)
    calls = [replace(CALL, ordinal=number, at=old) for number in range(3)]
    await tool_calls.record_all(
        database, [(tenant, call) for call in (*calls, replace(CALL, ordinal=3))]
    )
    keep = Retention.model_construct(log_s=1, response_s=1, idempotency_key_s=1, traces_s=1)
    assert keep.tool_calls_s == 90 * DAY_S
    assert await sweep.delete_expired("tool_calls", database, keep, rows_max=2) == 2
    assert await sweep.delete_expired("tool_calls", database, keep, rows_max=2) == 1
    assert await sweep.delete_expired("tool_calls", database, keep, rows_max=2) == 0
    assert [row.ordinal for row in await rows(database, tenant)] == [3]
