"""Limits that several replicas keep together, in a real database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from gateway.admin.limits import LimitOwner
from gateway.admin.spend_limits import SpendLimits
from gateway.errors import RateLimited, StoreUnavailable
from gateway.ledger.jobs import SILENT_S, forget_spending
from gateway.limits.accounting import FORGOTTEN_S, Charge
from gateway.store.limits.counters import BUCKETS_MAX, FRESH_S, resize
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.tenancy import TenantId
from tests.fakes.clock import Clock
from tests.fakes.limited import (
    TENANT,
    admitted,
    at_once,
    budget,
    caller,
    limit,
    limiter,
    running,
    used,
)  # fmt: skip

if TYPE_CHECKING:
    from gateway.limits.rules import Limit
    from gateway.replication.limiter import Limiter

LEVEL = Statement("SELECT level FROM buckets WHERE tenant_id = :tenant AND name = :name")

SPENT = Statement("SELECT CAST(sum(amount) AS bigint) FROM spend WHERE tenant_id = :tenant")

ROWS = Statement("SELECT replica, amount FROM spend")
AGED = Statement("UPDATE spend SET at = at - CAST(:age AS double precision) * interval '1 second'")
STARTED_ANEW = Statement("UPDATE spend SET at = clock_timestamp() WHERE replica = :replica")

AGE = Statement("""
UPDATE limit_reports SET at = at - CAST(:age AS double precision) * interval '1 second'
WHERE replica = CAST(:replica AS text)
""")

REPORTS_GONE = Statement("ALTER TABLE limit_reports RENAME TO limit_reports_gone")
REPORTS_BACK = Statement("ALTER TABLE limit_reports_gone RENAME TO limit_reports")


async def level(database: Database, one: Limit) -> float:
    async with database.runs_transaction() as connection:
        found: float = await connection.scalar(LEVEL, {"tenant": TENANT, "name": one.name})
        return found


async def burst(
    limiters: list[Limiter], count: int, *limits: Limit
) -> tuple[list[Charge], list[RateLimited]]:
    """So many requests at the same moment, spread over the replicas."""
    principal = caller(*limits)
    each = [
        admitted(limiters[number % len(limiters)], principal, tokens=250, most=4096)
        for number in range(count)
    ]
    results = await asyncio.gather(*each)
    charges = [one for one in results if isinstance(one, Charge)]
    return charges, [one for one in results if isinstance(one, RateLimited)]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
async def test_a_burst_never_takes_more_than_the_bucket_has(
    database: Database, replicas: int
) -> None:
    day = limit("tokens", 100_000, window_s=86_400)  # what fills meanwhile is next to nothing
    limiters = [limiter(database, f"r{number}") for number in range(replicas)]
    async with running(*limiters):
        charges, refusals = await burst(limiters, 500, day)
        reserved = sum(one.reserved for charge in charges for one in charge.tokens)
        assert reserved <= day.value + 500
        assert len(charges) + len(refusals) == 500
        assert reserved >= 0.9 * day.value
        assert {refusal.kind for refusal in refusals} == {"tokens"}
        for charge in charges:
            charge.settle(used(250, 500))
            charge.settle(used(10**9, 10**9))
        for one in limiters:
            await one.once()
    left = await level(database, day)
    held = sum(bucket.held for one in limiters for _, bucket in one.gates.live_buckets())
    assert left + held == pytest.approx(day.value - 750 * len(charges), abs=500)


@pytest.mark.slow
async def test_what_is_granted_waits_for_the_request_that_asked_for_it(database: Database) -> None:
    """More tenants than one statement takes, each with a request now and then: all buckets are
    full, and somebody waits for the next exchange whenever one is over.
    """
    one = limiter(database, "one")
    callers = [
        caller(limit("requests", 60), tenant_id=TenantId(UUID(int=1_000 + number)))
        for number in range(BUCKETS_MAX + 44)
    ]

    async def ask(number: int) -> None:
        for _ in range(7 * number):
            await asyncio.sleep(0)  # so that exchanges begin at any moment of those of others
        assert isinstance(await admitted(one, callers[number]), Charge)

    async with running(one):
        await asyncio.gather(*[ask(number) for number in range(len(callers))])


async def test_a_debt_is_paid_before_anything_fits_again(database: Database) -> None:
    day = limit("tokens", 10_000, window_s=86_400)
    one, other = limiter(database, "one"), limiter(database, "other")
    async with running(one, other):
        charge = await admitted(one, caller(day))
        assert isinstance(charge, Charge)
        charge.settle(used(100, 50_000))
        await one.once()
        refusal = await admitted(other, caller(day))
    assert isinstance(refusal, RateLimited)
    assert -day.value <= await level(database, day) < 0
    assert "Please try again in" in refusal.message


async def test_who_has_not_heard_of_a_raised_limit_takes_nothing_of_it_away(
    database: Database,
) -> None:
    day, raised = (limit("tokens", value, window_s=86_400) for value in (10_000, 100_000))
    late, other = limiter(database, "late"), limiter(database, "other")
    async with running(late, other):
        charge = await admitted(late, caller(day))
        assert isinstance(charge, Charge)
        charge.settle(used(100, 9_900))
        assert isinstance(await admitted(late, caller(day)), RateLimited)
        await resize(database, TENANT, {day.name: day}, [raised])
        for _ in range(3):
            await late.once()
            assert isinstance(await admitted(late, caller(day), tokens=1, most=1), Charge)
        assert isinstance(await admitted(other, caller(raised), tokens=80_000), Charge)
        await resize(database, TENANT, {day.name: raised}, [day])
        assert await level(database, day) <= day.value


async def test_what_died_with_a_process_holds_no_place(database: Database) -> None:
    few = at_once("responses", 3)
    one, other = limiter(database, "one"), limiter(database, "other")
    async with running(one, other):
        held = [await admitted(one, caller(few)) for _ in range(3)]
        assert all(isinstance(charge, Charge) for charge in held)
        await one.once()
        refusal = await admitted(other, caller(few))
        assert isinstance(refusal, RateLimited)
        assert "concurrent responses: Limit 3, Used 3" in refusal.message
    async with database.runs_transaction() as connection:
        await connection.execute(AGE, {"replica": "one", "age": FRESH_S + 1})
    await other.once()
    async with running(other):
        assert isinstance(await admitted(other, caller(few)), Charge)
    assert sum(other.gates.places.values()) == 1


@pytest.mark.slow
async def test_a_budget_holds_for_who_spends_so_slowly_that_its_meter_is_forgotten(
    database: Database,
) -> None:
    clock, spender = 0.0, caller(budgets=[budget(10_000, unit="tokens")])
    one = limiter(database, "one", clock=lambda: clock)
    async with running(one):
        for number in range(8):
            charge = await admitted(one, spender, tokens=1_000, most=1_000)
            assert isinstance(charge, Charge) == (number < 5)
            if isinstance(charge, Charge):
                charge.settle(used(1_000, 1_000))
            clock += 2 * FORGOTTEN_S
            while any(True for _ in one.gates.meters()):
                await one.once()
        figures = await one.figures(spender.tenant_id, spender.terms)
    assert [figure.spent for figure in figures.budgets] == [10_000]
    async with database.runs_transaction() as connection:
        assert await connection.scalar(SPENT, {"tenant": TENANT}) == 10_000


async def test_a_budget_without_an_end_has_one_row_for_all_processes_that_are_gone(
    database: Database,
) -> None:
    spender = caller(budgets=[budget(10_000, unit="tokens", interval="none")])
    limiters = [limiter(database, f"r{number}") for number in range(5)]
    for one in limiters:
        async with running(one):
            charge = await admitted(one, spender, tokens=100, most=100)
            assert isinstance(charge, Charge)
            charge.settle(used(100, 100))
        await one.flush()
    async with database.runs_transaction() as connection:
        await connection.execute(AGED, {"age": SILENT_S + 1})
        for name in ("r0", "r1", "r2"):
            await connection.execute(AGE, {"replica": name, "age": 61})
        await connection.execute(STARTED_ANEW, {"replica": "r2"})
    for _ in range(2):
        await forget_spending(database, datetime.now(UTC))
        async with database.runs_transaction() as connection:
            rows = {row.replica: row.amount for row in await connection.execute(ROWS)}
        # Two are gone; one spent something a moment ago, and two told that they are there.
        assert rows == {"": 400, "r2": 200, "r3": 200, "r4": 200}
    new = limiter(database, "new")
    async with running(new):
        assert isinstance(await admitted(new, spender), Charge)
        (figure,) = (await new.figures(spender.tenant_id, spender.terms)).budgets
    assert figure.spent == 1_000


async def test_a_place_is_given_back_once_whatever_is_called_after(database: Database) -> None:
    few = at_once("responses", 2)
    one = limiter(database, "one")
    async with running(one):
        charges = [await admitted(one, caller(few)) for _ in range(2)]
        for charge in charges:
            assert isinstance(charge, Charge)
            charge.settle(used(1, 1))
            charge.settle(used(1, 1))
            charge.hand_over()
    assert not one.gates.places


async def test_without_a_database_each_goes_on_with_its_share() -> None:
    away = Database(
        "postgresql://nobody@127.0.0.1:1/none", pool_size_max=1, command_timeout_s=1,
        connect_timeout_s=1,
    )  # fmt: skip
    many = limit("requests", 50)
    one = limiter(away, "one")
    async with running(one):
        results = [await admitted(one, caller(many)) for _ in range(60)]
    charges = [one for one in results if isinstance(one, Charge)]
    assert 50 <= len(charges) < 60
    assert {charge.headers for charge in charges} == {()}
    await away.close()


async def test_after_a_bounded_time_without_a_database_nothing_is_let_in() -> None:
    away = Database(
        "postgresql://nobody@127.0.0.1:1/none", pool_size_max=1, command_timeout_s=1,
        connect_timeout_s=1,
    )  # fmt: skip
    many = limit("requests", 50)
    one = limiter(away, "one", stale_max_s=-1.0)
    async with running(one):
        await admitted(one, caller(many))
        with pytest.raises(StoreUnavailable):
            await admitted(one, caller(many))
    await away.close()


async def test_an_outage_is_over_with_the_database_although_no_request_comes(
    database: Database,
) -> None:
    clock, principal = Clock(), caller(at_once("responses", 2))
    one = limiter(database, "one", clock=clock, stale_max_s=900.0)
    async with running(one):
        charge = await admitted(one, principal)
    assert isinstance(charge, Charge)
    charge.settle(used(1, 1))
    async with database.owner_transaction() as connection:
        await connection.execute(REPORTS_GONE)
    await one.once()
    async with database.owner_transaction() as connection:
        await connection.execute(REPORTS_BACK)
    clock.now += FORGOTTEN_S + 1
    await one.once()
    clock.now += 900.0
    async with running(one):
        assert isinstance(await admitted(one, principal), Charge)


async def test_a_budget_may_be_set_by_several_at_the_same_moment(
    database: Database, tenant: TenantId
) -> None:
    limits, place = SpendLimits(database), LimitOwner.of_tenant(tenant)
    made = [limits.set_budget(place, number, unit="tokens") for number in range(8)]
    await asyncio.gather(*made)
    ((budget, _),) = [(one.budget, one.spent) for one in await limits.budgets(tenant)]
    assert budget.cap in range(8)
