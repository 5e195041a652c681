"""Sums and the lines behind them are the ledger, whenever lines were added up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway.retention.sweep import remove_expired
from gateway.settings.sections import Ledger
from gateway.store import usage_lines
from gateway.store.ledger import rollup
from gateway.store.ledger.rollup import LineSpan, Question
from gateway.store.postgres.statements import Statement
from tests.conftest import new_tenant
from tests.fakes.usage_lines import NOON, added_up, line, random_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from gateway.store.postgres.database import Database, Row
    from gateway.store.usage_lines import UsageLine
    from gateway.tenancy import TenantId

LINES_MAX = 7
HOUR = timedelta(hours=1)
WANTS_END_USERS = Statement("UPDATE tenants SET usage_by_end_user = 'allowed' WHERE id = :tenant")
BY_END_USER = Statement(
    "SELECT day, project_id, end_user, model, requests, output_tokens FROM usage_end_user_days"
    " WHERE tenant_id = :tenant"
)


WITH_COST = Statement(
    "INSERT INTO usage (tenant_id, response_id, key_id, model, at, input_tokens, cached_tokens,"
    " output_tokens, reasoning_tokens, kind, cost_nano)"
    " VALUES (:tenant, gen_random_uuid(), gen_random_uuid(), :model, now(), 10, 4, 5, 0, :kind,"
    " :cost_nano)"
)


async def write(database: Database, tenant: TenantId, *lines: UsageLine) -> None:
    await usage_lines.record_all(database, [(tenant, one) for one in lines])


def span(start: datetime, end: datetime) -> LineSpan:
    inner_start = start.replace(minute=0, second=0) + (HOUR if start.minute else timedelta())
    inner_end = end.replace(minute=0, second=0)
    return LineSpan(start=start, end=end, inner_start=inner_start, inner_end=inner_end)


async def by_end_user(database: Database, tenant: TenantId) -> list[Row]:
    async with database.owner_transaction() as connection:
        return await connection.execute(BY_END_USER, {"tenant": tenant})


async def told(database: Database, tenant: TenantId | None, question: Question) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in await rollup.read_usage(database, tenant, question, rows_max=10_000):
        sums += Counter({name: value for name, value in row.items() if type(value) is int})
    sums.pop("background_requests", None)
    return sums


@asynccontextmanager
async def slow_insert(url: str, tenant: TenantId, one: UsageLine) -> AsyncIterator[None]:
    """A transaction that writes a line as releases of before do, and commits it at the end."""
    slow = await asyncpg.connect(url)
    try:
        async with slow.transaction():
            await slow.execute(
                "INSERT INTO usage (tenant_id, response_id, key_id, model, at, input_tokens,"
                " cached_tokens, output_tokens, reasoning_tokens)"
                " VALUES ($1, $2, $3, $4, $5, 10, 4, 5, 0)",
                *(tenant, one.response, one.key_id, one.model, one.at),
            )
            yield
    finally:
        await slow.close(timeout=2)


async def roll(database: Database) -> int:
    lines = 0
    while (done := await rollup.advance(database, lines_max=LINES_MAX)) is not None:
        lines += done.lines
        if done.is_done:
            break
    return lines


@pytest.mark.slow
async def test_sums_and_lines_together_are_the_ledger(database: Database) -> None:
    chance = random.Random(20)
    tenants = [await new_tenant(database) for _ in range(2)]
    written: dict[TenantId, list[UsageLine]] = {tenant: [] for tenant in tenants}
    cut = span(NOON + timedelta(minutes=25), NOON + timedelta(hours=20, minutes=10))
    for _ in range(12):
        tenant = chance.choice(tenants)
        lines = [random_line(chance) for _ in range(chance.randrange(1, 12))]
        await write(database, tenant, *lines)
        await write(database, tenant, *lines)  # which changes nothing
        written[tenant] += lines
        if chance.random() < 0.6:
            await roll(database)
        for one, its in written.items():
            inside = [its_line for its_line in its if cut.start <= its_line.at < cut.end]
            assert await told(database, one, Question(span=cut, unit="hour")) == added_up(inside)
    everything = [one for lines in written.values() for one in lines]
    whole = span(NOON, NOON + timedelta(days=1))
    assert await told(database, None, Question(span=whole, unit="day")) == added_up(everything)
    assert await rollup.behind_s(database) >= 0
    await roll(database)
    assert await rollup.behind_s(database) == 0


@pytest.mark.slow
async def test_filters_and_groups_pick_lines_and_sums_alike(
    database: Database, tenant: TenantId
) -> None:
    chance = random.Random(4)
    lines = [random_line(chance) for _ in range(60)]
    await write(database, tenant, *lines[:40])
    await roll(database)
    await write(database, tenant, *lines[40:])
    whole = span(NOON, NOON + timedelta(days=1))
    by = Question(span=whole, unit="day", dimensions=("model", "key_id", "service_tier"))
    rows = await rollup.read_usage(database, tenant, by, rows_max=1_000)
    for row in rows:
        own = [
            one
            for one in lines
            if (one.model, one.key_id, one.metered.service_tier)
            == (row["model"], row["key_id"], row["service_tier"])
            and one.at.date() == row["bucket"].date()
        ]
        assert row["input_tokens"] == added_up(own)["input_tokens"]
        assert row["background_requests"] == sum(one.background for one in own)
    assert sum(row["requests"] for row in rows) == 60
    of_one = replace(by, filters={"model": ["gpt-oss-20b"], "project_id": [tenant]})
    own = [one for one in lines if one.model == "gpt-oss-20b" and one.project_id is None]
    assert await told(database, tenant, of_one) == added_up(own)
    by_person = replace(by, dimensions=(), tags=("team",), by_end_user=True)
    rows = await rollup.read_usage(database, tenant, by_person, rows_max=1_000)
    people = Counter((one.metered.who.end_user, one.metered.who.tags["team"]) for one in lines)
    assert Counter({(row["end_user"], row["tag_0"]): 0 for row in rows}) + people == people
    assert sum(row["requests"] for row in rows) == 60


@pytest.mark.slow
async def test_only_a_tenant_that_wants_it_is_added_up_by_end_user(database: Database) -> None:
    wanting, other = await new_tenant(database), await new_tenant(database)
    async with database.owner_transaction() as connection:
        await connection.execute(WANTS_END_USERS, {"tenant": wanting})
    chance = random.Random(7)
    lines = [random_line(chance) for _ in range(40)] + [line()]
    await write(database, wanting, *lines)
    await write(database, other, *lines)
    await roll(database)
    found = {
        (row["day"], row["project_id"], row["end_user"], row["model"]): (
            row["requests"],
            row["output_tokens"],
        )
        for row in await by_end_user(database, wanting)
    }
    wanted: defaultdict[tuple[date, UUID, bytes, str], list[int]] = defaultdict(list)
    for one in lines:
        if (person := one.metered.who.end_user) is not None:
            key = (one.at.date(), one.project_id or wanting, person, one.model)
            wanted[key].append(one.tokens.output_tokens)
    assert found == {key: (len(tokens), sum(tokens)) for key, tokens in wanted.items()} != {}
    assert await by_end_user(database, other) == []


@pytest.mark.slow
async def test_a_slow_transaction_holds_sums_back_and_loses_nothing(
    database: Database, tenant: TenantId, database_url: str
) -> None:
    early, late = line(), [line() for _ in range(3)]
    whole = Question(span=span(NOON, NOON + HOUR), unit="hour")
    async with slow_insert(database_url, tenant, early):
        await write(database, tenant, *late)
        assert await roll(database) == 0
        assert await told(database, tenant, whole) == added_up(late)
    assert await told(database, tenant, whole) == added_up([early, *late])
    assert await roll(database) == 4
    assert await told(database, tenant, whole) == added_up([early, *late])


async def test_what_was_added_says_what_it_costs_without_corrections(
    database: Database, tenant: TenantId
) -> None:
    """Corrections may be below 0, and a counter never sinks."""
    costs = [
        ("m", "response", 500),
        ("m", "response", 70),
        ("m", "adjustment", -570),
        ("n", "adjustment", -1),
        ("free", "response", None),
    ]
    async with database.owner_transaction() as connection:
        for model, kind, cost_nano in costs:
            values = {"tenant": tenant, "model": model, "kind": kind, "cost_nano": cost_nano}
            await connection.execute(WITH_COST, values)
    done = await rollup.advance(database)
    assert done is not None
    assert done.lines == len(costs)
    assert done.costs_nano == {"m": 570, "n": 0, "free": 0}


async def test_one_process_at_a_time_adds_up(database: Database, tenant: TenantId) -> None:
    await write(database, tenant, *[line() for _ in range(30)])
    await asyncio.gather(*(rollup.advance(database, lines_max=LINES_MAX) for _ in range(4)))
    await roll(database)
    whole = Question(span=span(NOON, NOON + HOUR), unit="hour")
    assert (await told(database, tenant, whole))["requests"] == 30


async def test_an_hour_is_made_again_from_its_lines(database: Database, tenant: TenantId) -> None:
    lines = [line(), line(NOON + timedelta(minutes=59)), line(NOON + HOUR)]
    await write(database, tenant, *lines)
    await roll(database)
    async with database.runs_transaction() as connection:
        spoilt = Statement("UPDATE usage_hours SET input_tokens = 1, requests = 9")
        await connection.execute(spoilt)
    behind = line()
    await write(database, tenant, behind)
    assert await rollup.add_hour_again(database, tenant, NOON)
    whole = Question(span=span(NOON, NOON + HOUR), unit="hour")
    assert await told(database, tenant, whole) == added_up([*lines[:2], behind])


@pytest.mark.slow
async def test_a_dump_of_another_cluster_is_noticed(database: Database, tenant: TenantId) -> None:
    await write(database, tenant, line())
    await roll(database)
    async with database.runs_transaction() as connection:
        ahead = "UPDATE usage_cursors SET tx = CAST('99999999999' AS xid8)"
        await connection.execute(Statement(ahead))
    await write(database, tenant, line())
    done = await rollup.advance(database, lines_max=LINES_MAX)
    assert done is not None
    assert done.is_foreign
    assert done.lines == 0


async def test_minutes_are_those_of_the_last_days(database: Database, tenant: TenantId) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    old, young = line(now - timedelta(days=3)), line(now - timedelta(minutes=5))
    await write(database, tenant, old, young)
    await roll(database)
    recent = LineSpan(
        start=now - timedelta(days=4), end=now, inner_start=now - timedelta(days=4), inner_end=now,
        sums="minute",
    )  # fmt: skip
    assert await told(database, tenant, Question(span=recent, unit="minute")) == added_up([young])


@pytest.mark.slow
async def test_hours_become_days_and_nothing_is_lost_or_told_twice(database: Database) -> None:
    chance = random.Random(35)
    tenants = [await new_tenant(database) for _ in range(2)]
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    start, day_s = midnight - timedelta(days=8), 86_400
    keep = Ledger.model_construct(
        lines_s=400 * day_s,
        minutes_s=2 * day_s,
        hours_s=4 * day_s,
        days_s=400 * day_s,
        end_user_days_s=day_s,
    )
    whole = Question(
        span=LineSpan(start=start, end=midnight, inner_start=start, inner_end=midnight),
        unit="day",
        dimensions=("model", "key_id"),
    )
    written: list[UsageLine] = []
    for _ in range(4):
        lines = [random_line(chance, start=start, span_s=8 * day_s) for _ in range(30)]
        await write(database, tenants[0], *lines)
        await write(database, tenants[1], line(start))
        written += lines
        await roll(database)
        # Several processes at once, and late lines of hours that have become days.
        await asyncio.gather(*(remove_expired(database, keep, rows_max=7) for _ in range(3)))
        assert await told(database, tenants[0], whole) == added_up(written)
    everything = await told(database, None, whole)
    assert everything["requests"] == len(written) + 4
    by_day = await rollup.read_usage(database, tenants[0], whole, rows_max=1_000)
    for row in by_day:
        own = [one for one in written if one.at.date() == row["bucket"].date()]
        assert row["requests"] == sum(
            (one.model, one.key_id) == (row["model"], row["key_id"]) for one in own
        )
    async with database.runs_transaction() as connection:
        oldest = await connection.scalar(Statement("SELECT min(at) FROM usage_hours"))
        days = await connection.scalar(Statement("SELECT count(DISTINCT at) FROM usage_days"))
    assert oldest >= now - timedelta(days=4, minutes=1)
    assert 4 <= days <= 5
