"""Repricing on a real ledger: lines stay, differences are booked once, sums and budgets follow."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.ledger.jobs import Adding
from gateway.limits.money import Prices
from gateway.services.limits import LimitOwner, Limits
from gateway.services.repricing import reprice_usage
from gateway.store import usage
from gateway.store.governance import audit_log
from gateway.store.ledger.rollup import RollupTerms
from gateway.store.limits import prices as price_rows
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.telemetry.metrics import Metrics
from tests.fakes.usage_lines import MODELS, random_line

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

LINES = Statement("SELECT * FROM usage ORDER BY response_id, seq")
COSTS = Statement("SELECT CAST(coalesce(sum(cost_nano), 0) AS bigint) FROM usage")
SUMMED = Statement("SELECT CAST(coalesce(sum(cost_nano), 0) AS bigint) FROM usage_hours")
AGED = Statement("UPDATE budgets SET created_at = :at WHERE tenant_id = :tenant")
CREDIT = Statement("""
INSERT INTO usage (tenant_id, response_id, seq, kind, key_id, model, at, input_tokens,
    cached_tokens, output_tokens, reasoning_tokens, recomputed_tokens, tool_output_tokens,
    tool_calls, web_searches, reason, author, cost_nano)
SELECT tenant_id, response_id, 1, 'adjustment', key_id, model, at, 0, 0, 0, 0, 0, 0, 0, 0,
    'disputed', 'anna', -777
FROM usage WHERE tenant_id = :tenant ORDER BY response_id LIMIT 1
""")


async def lines_of(database: Database, tenant: TenantId) -> list[Row]:
    async with database.transaction(tenant) as connection:
        return list(await connection.execute(LINES))


async def sum_of(database: Database, tenant: TenantId, statement: Statement) -> int:
    async with database.transaction(tenant) as connection:
        return int(await connection.scalar(statement))


def expected(line: Row, prices: Prices) -> int:
    """What the first line of a response costs now; nothing is known without a price."""
    tier = line.service_tier or "default"
    price = prices.of(line.tenant_id, EVERYONE, line.model, tier, line.at)
    if price is None:
        return line.cost_nano or 0
    return price.tokens(
        input_tokens=line.input_tokens,
        cached_tokens=line.cached_tokens,
        output_tokens=line.output_tokens,
    ) + price.calls(tool_calls=line.tool_calls, web_searches=line.web_searches)


@pytest.mark.parametrize("seed", range(4))
async def test_lines_add_up_to_what_the_prices_of_today_say(
    database: Database, tenant: TenantId, other_tenant: TenantId, seed: int
) -> None:
    chance, limits = random.Random(seed), Limits(database)
    now = datetime.now(UTC).replace(microsecond=0)
    start = now - timedelta(hours=20)
    until = now + timedelta(minutes=1)

    async def set_price(hours: int, **more: Any) -> None:
        nano: Any = {"input": chance.randrange(99), "output": chance.randrange(999)}
        await limits.set_price(
            chance.choice(MODELS), nano, valid_from=now - timedelta(hours=hours), **more
        )

    for hours in (40, 12):
        await set_price(hours)
    made = [random_line(chance, start=start, span_s=20 * 3600) for _ in range(60)]
    await usage.record_all(database, [(tenant, one) for one in made])
    await usage.record_all(database, [(other_tenant, made[0])])
    async with database.transaction(tenant) as connection:
        await connection.execute(CREDIT, {"tenant": tenant})
    before = await lines_of(database, tenant)
    await limits.set_budget(LimitOwner.of_tenant(tenant), 10**15, interval="none")
    async with database.transaction(tenant) as connection:
        await connection.execute(AGED, {"tenant": tenant, "at": start})
    for hours in (39, 15, 3):
        await set_price(hours, tenant_id=chance.choice((tenant, None)))
    name = f"tenant-{tenant}"
    (dry,) = await reprice_usage(database, start, until, tenant=name, is_dry=True)
    assert await lines_of(database, tenant) == before
    (done,) = await reprice_usage(database, start, until, tenant=name)
    assert done == dry
    assert done.seen == 60

    after = await lines_of(database, tenant)
    prices = Prices(await price_rows.every(database))
    assert [one for one in after if one.reason != "repricing"] == before, "no line is changed"
    wanted = sum(expected(one, prices) for one in after if one.seq == 0) - 777
    assert await sum_of(database, tenant, COSTS) == wanted
    booked = [one for one in after if one.reason == "repricing"]
    assert len(booked) == done.lines.total()
    assert sum(one.cost_nano for one in booked) == done.nano.total()
    assert all(one.author == "cli" and one.price_id for one in booked)

    again = await asyncio.gather(
        *(reprice_usage(database, start, until, tenant=name) for _ in range(2))
    )
    assert not any(one.lines for (one,) in again)
    assert await lines_of(database, tenant) == after
    await Adding(database, RollupTerms(), interval_s=1, metrics=Metrics()).round()
    assert await sum_of(database, tenant, SUMMED) == wanted
    (budget,) = await limits.budgets(tenant)
    assert budget.spent == pytest.approx(max(wanted, 0), rel=0.001, abs=1)
    entries = await audit_log.since(database, tenant, 0, rows_max=100)
    told = [one for one in entries if one.type == "harmony.usage.repriced"]
    assert len(told) == (1 if booked else 0)
    assert len(await lines_of(database, other_tenant)) == 1, "the other tenant was not asked for"


async def test_two_at_once_book_once(database: Database, tenant: TenantId) -> None:
    chance, limits = random.Random(7), Limits(database)
    now = datetime.now(UTC).replace(microsecond=0)
    made = [random_line(chance, start=now - timedelta(hours=2), span_s=3600) for _ in range(40)]
    await usage.record_all(database, [(tenant, one) for one in made])
    for model in MODELS:
        await limits.set_price(model, {"output": 3}, valid_from=now - timedelta(days=1))
    span = now - timedelta(hours=3), now
    found = await asyncio.gather(
        *(reprice_usage(database, *span, tenant=f"tenant-{tenant}") for _ in range(3))
    )
    spent = [one for one in made if one.tokens.output_tokens]
    assert sum(one.lines.total() for (one,) in found) == len(spent)
    assert await sum_of(database, tenant, COSTS) == 3 * sum(
        one.tokens.output_tokens for one in made
    )


async def test_what_is_no_time_and_no_tenant_is_refused(database: Database) -> None:
    now = datetime.now(UTC)
    with pytest.raises(InvalidRequest):
        await reprice_usage(database, now, now)
    with pytest.raises(ResourceNotFound):
        await reprice_usage(database, now - timedelta(1), now, tenant="nobody")
