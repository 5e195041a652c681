"""What is kept of each call of a hosted tool, off the way of its response."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway import ids
from gateway.engine.late_writes import USAGE_BOUNDS, ToolAudit
from gateway.errors import StoreConflict, StoreUnavailable
from gateway.store.tools.tool_calls import AuditedCall
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from tests.fakes.logs import captured_logs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

TENANT = TenantId(ids.new_uuid())
FAST = replace(USAGE_BOUNDS, interval_s=0.0, retry_pause_s=0.0)


def called(ordinal: int) -> AuditedCall:
    return AuditedCall(
        response=ids.new_uuid(),
        ordinal=ordinal,
        attempt=1,
        kind="mcp",
        server="https://mcp.example/secret-path",
        tool="srv.secret_tool",
        arguments_hash=bytes(32),
        arguments_bytes=1,
        result_bytes=1,
        result_ids=1,
        outcome="ok",
        duration_ms=1,
        replica="replica",
        at=datetime.now(UTC),
    )


class Table:
    """Where rows are written; the database is away for the first `away` writes."""

    def __init__(self, refused: AuditedCall | None = None, away: int = 0) -> None:
        self.rows: list[AuditedCall] = []
        self.refused = refused
        self.away = away
        self.audit = ToolAudit(self._record, metrics=Metrics(), bounds=FAST)

    async def _record(self, rows: Sequence[tuple[TenantId, AuditedCall]]) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        if any(row is self.refused for _, row in rows):
            raise StoreConflict("a row")
        self.rows += [row for _, row in rows]


async def test_rows_wait_for_the_database() -> None:
    table, calls = Table(away=2), [called(n) for n in range(3)]
    for call in calls:
        table.audit.put(TENANT, call)
    await table.audit.flush(wait_s=60.0)
    assert table.rows == calls


async def test_a_row_that_is_refused_costs_the_others_nothing_and_is_logged() -> None:
    calls = [called(n) for n in range(3)]
    table = Table(refused=calls[1])
    for call in calls:
        table.audit.put(TENANT, call)
    with captured_logs(of="gateway.engine.late_writes") as logs:
        await table.audit.flush(wait_s=60.0)
    assert table.rows == [calls[0], calls[2]]
    [lost] = logs
    assert lost["response_id"] == ids.response_id(calls[1].response)
    assert "secret" not in repr(lost)


async def test_a_tenant_whose_keys_are_away_holds_up_no_other() -> None:
    keyless, written = TenantId(ids.new_uuid()), list[AuditedCall]()
    are_keys_away = True

    async def record(rows: Sequence[tuple[TenantId, AuditedCall]]) -> None:
        if are_keys_away and any(tenant_id == keyless for tenant_id, _ in rows):
            raise StoreUnavailable("the keys of a tenant")
        written.extend(row for _, row in rows)

    async def usable(tenants: Collection[TenantId]) -> Collection[TenantId]:
        return {one for one in tenants if not are_keys_away or one != keyless}

    bounds = replace(FAST, batch_rows_max=2)
    audit = ToolAudit(record, metrics=Metrics(), bounds=bounds, usable=usable)
    calls = [called(n) for n in range(6)]
    for call in calls:
        audit.put(keyless if call.ordinal < 3 else TENANT, call)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        writing = group.create_task(audit.run())
        while len(written) < 3:  # noqa: ASYNC110 - what is written is no event
            await asyncio.sleep(0)
        assert written == calls[3:]
        are_keys_away = False
        while len(written) < 6:  # noqa: ASYNC110 - what is written is no event
            await asyncio.sleep(0)
        writing.cancel()
    assert {call.ordinal for call in written} == set(range(6))
