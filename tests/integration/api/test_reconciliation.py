"""Sums and what is spent are held against the lines of real responses."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.spend_limits import SpendLimits
from gateway.audit import COMMAND_LINE
from gateway.store.postgres.statements import Statement
from gateway.wiring.admin import ledger_of
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

MODEL = "gpt-oss-20b"
LINES_OF = Statement("SELECT response_id FROM usage WHERE tenant_id = :tenant ORDER BY response_id")
TAMPERED = Statement("""
UPDATE usage SET output_tokens = output_tokens + 1 WHERE tenant_id = :tenant AND response_id = :id
""")
SPENT_MORE = Statement("""
INSERT INTO spend (tenant_id, meter, starts_at, replica, amount, at)
SELECT tenant_id, meter, starts_at, 'gone', 1000000, at FROM spend
WHERE tenant_id = :tenant LIMIT 1
""")

BOOKED = Statement("""
SELECT status, input_tokens + output_tokens AS tokens FROM usage WHERE tenant_id = :tenant
""")
SPENT = Statement("SELECT CAST(sum(amount) AS bigint) FROM spend WHERE tenant_id = :tenant")


async def until_settled(gateway: RunningGateway, user: httpx2.AsyncClient) -> None:
    """A follower sees an end before its process has settled it."""
    supervisor = gateway.process.replica.dependencies.supervisor
    while supervisor._running:
        await user.get("/v1/models")


@pytest.mark.slow
async def test_sums_and_budgets_are_what_lines_have(database_url: str, backends: Backends) -> None:
    settings = gateway_settings(database_url, backends.urls)
    async with running_gateway(settings) as gateway:
        key = await new_key(settings, "reconciled")
        foundation = gateway.process.foundation
        database, limits = foundation.database, Limits(foundation.database)
        tenant = await limits.tenant("reconciled")
        await SpendLimits(database).set_budget(LimitOwner.of_tenant(tenant), 10**9, unit="tokens")
        headers = {"authorization": f"Bearer {key}"}
        body: dict[str, Any] = {"model": MODEL, "input": "Hello there", "stream": True}
        more: list[dict[str, Any]] = [
            {}, {"background": True}, {"background": True, "max_output_tokens": 16},
        ]  # fmt: skip
        async with http_client(gateway.url, headers=headers) as user:
            for one in more:
                assert (await user.post("/v1/responses", json=body | one)).status_code == 200
            await until_settled(gateway, user)
        await gateway.process.replica.limiter.flush()
        ledger = ledger_of(settings, database, foundation.metrics)
        found = await ledger.reconcile(COMMAND_LINE)
        assert (found.unmetered, found.wrong_hours) == ((), ())

        async with database.owner_transaction() as connection:
            *_, last = await connection.execute(LINES_OF, {"tenant": tenant})
            wrong = {"tenant": tenant, "id": last.response_id}
            await connection.execute(TAMPERED, wrong)
        async with database.runs_transaction() as connection:
            await connection.execute(SPENT_MORE, {"tenant": tenant})
        found = await ledger.reconcile(COMMAND_LINE, repairs=False)
        assert found.wrong_hours, "its hour does not have the token more"
        assert not found.agrees
        assert found.corrected == ()
        found = await ledger.reconcile(COMMAND_LINE)
        (corrected,) = found.corrected
        assert corrected.tenant_id == tenant
        assert corrected.recorded - corrected.truth == 10**6 - 1
        found = await ledger.reconcile(COMMAND_LINE)
        assert found.corrected == ()
        assert found.wrong_hours == ()


@pytest.mark.slow
async def test_what_fails_before_its_first_token_is_neither_booked_nor_spent(
    database_url: str, backends: Backends
) -> None:
    """A client that hangs up by then pays for its input, here as there."""
    settings = gateway_settings(database_url, backends.urls)
    async with running_gateway(settings) as gateway:
        key = await new_key(settings, "unlucky")
        database = gateway.process.foundation.database
        tenant = await Limits(database).tenant("unlucky")
        await SpendLimits(database).set_budget(LimitOwner.of_tenant(tenant), 10**9, unit="tokens")
        headers = {"authorization": f"Bearer {key}"}

        async def post(how: str, **fields: Any) -> httpx2.Response:
            body = {"model": MODEL, "input": f"[[sim {how}]] Hello there", **fields}
            return await user.post("/v1/responses", json=body)

        async with http_client(gateway.url, headers=headers) as user:
            for how, status in (("status=503", 503), ("status=400", 502), ("error_after=0", 502)):
                for store in (True, False):
                    assert (await post(how, store=store)).status_code == status
            queued = (await post("status=400", background=True)).json()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await post("first_token_delay_s=60")
            assert (await post("think=none", store=False)).status_code == 200
            while (await user.get(f"/v1/responses/{queued['id']}")).json()["status"] != "failed":
                await user.get("/v1/models")
            await until_settled(gateway, user)
        dependencies = gateway.process.replica.dependencies
        await dependencies.archive.flush()
        await gateway.process.replica.limiter.flush()
        async with database.owner_transaction() as connection:
            lines = list(await connection.execute(BOOKED, {"tenant": tenant}))
            spent = await connection.scalar(SPENT, {"tenant": tenant})
        assert sorted(line.status for line in lines) == ["cancelled", "completed"]
        assert sum(line.tokens for line in lines) == spent
