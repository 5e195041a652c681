"""What limits cost a request, and what they let through: `python -m tests.load.limits [seconds]`.

Prints CPU of the gates of one request (three scopes of requests and tokens, places, a budget), of
one without limits, then what 1 and 4 replicas admit of a burst of 3,000 requests and of a lasting
overload, on an embedded PostgreSQL.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.limits.accounting import Charge, Elsewhere
from gateway.limits.money import Price, Prices
from gateway.replication.limiter import Limiter, LimitStore, LimitTiming
from gateway.store.limits.counters import NOTHING_SPENT, SyncReply, SyncRequest
from gateway.store.migration.migrate import upgrade
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
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
)
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tenancy import Principal

EPOCH: Final = datetime.fromtimestamp(0, UTC)
ROUNDS: Final = 20_000
BURST: Final = 3_000
TOKENS_PER_MIN: Final = 600_000
PROMPT, ANSWER = 250, 400


async def generous(request: SyncRequest, *, is_round: bool) -> SyncReply:
    """A database that has everything."""
    return SyncReply(
        {key: (max(ask.want, 1e9), ask.capacity) for key, ask in request.asks.items()},
        dict.fromkeys(request.reports, 0),
        {(row.tenant_id, row.meter): NOTHING_SPENT for row in request.watched},
        is_round=is_round,
    )


async def _nothing() -> None:
    return None


def _limiter() -> Limiter:
    limit_store = LimitStore(generous, _no_prices, _nothing, _nobody)
    return Limiter(limit_store, Metrics(), LimitTiming())


async def _nobody(*_: object) -> Elsewhere:
    return Elsewhere()


async def _no_prices() -> Sequence[Price]:
    return ()


async def cost_of(principal: Principal) -> float:
    """Microseconds of CPU of one request: both gates, headers, and the settlement."""
    one = _limiter()
    price = Price(UUID(int=3), TENANT, "gpt-oss-20b", "*", {"input": 50, "output": 200}, EPOCH)
    async with running(one):
        await admitted(one, principal)
        one.gates.prices = Prices([price])
        for _, bucket in one.gates.live_buckets():
            bucket.held = 1e12
        began = time.process_time()
        for _ in range(ROUNDS):
            charge = await one.enter(principal, "gpt-oss-20b", "default")
            await one.reserve(charge, principal, tokens=PROMPT, most=4096)
            if charge is not None:
                charge.settle(used(PROMPT, ANSWER))
        return (time.process_time() - began) / ROUNDS * 1e6


async def cpu() -> None:
    full = caller(
        *(limit("requests", 10**9, window_s=window) for window in (60, 86_400)),
        *(limit("tokens", 10**12, window_s=window) for window in (60, 86_400)),
        limit("input_tokens", 10**12),
        limit("output_tokens", 10**12),
        at_once("responses", 10**6),
        budgets=[budget(10**17)],
    )
    typical = caller(limit("requests", 10**9), limit("tokens", 10**12), at_once("responses", 10**6))
    for name, principal in (("none", caller()), ("typical", typical), ("everything", full)):
        if name == "none":
            one = Limiter(
                LimitStore(generous, _no_prices, _nothing, _nobody), Metrics(), LimitTiming()
            )
            began = time.process_time()
            for _ in range(ROUNDS):
                await one.enter(principal, "gpt-oss-20b", "default")
            micros = (time.process_time() - began) / ROUNDS * 1e6
        else:
            micros = await cost_of(principal)
        print(f"cpu {name}: {micros:.1f} us a request")


async def burst(database: Database, replicas: int) -> None:
    principal = caller(limit("tokens", TOKENS_PER_MIN))
    await database_reset(database)
    limiters = [limiter(database, f"r{number}") for number in range(replicas)]
    async with running(*limiters):
        began = time.monotonic()
        results = await asyncio.gather(
            *(
                admitted(limiters[n % replicas], principal, tokens=PROMPT, most=4096)
                for n in range(BURST)
            )
        )
        seconds = time.monotonic() - began
        charges = [one for one in results if isinstance(one, Charge)]
        reserved = sum(one.reserved for charge in charges for one in charge.tokens)
        for charge in charges:
            charge.settle(used(PROMPT, ANSWER))
        actual = len(charges) * (PROMPT + ANSWER)
    print(
        f"burst {replicas} replicas: {len(charges)} of {BURST} in {seconds:.2f} s, reserved "
        f"{reserved / TOKENS_PER_MIN:.1%} of the limit, used {actual / TOKENS_PER_MIN:.1%}"
    )


async def overload(database: Database, replicas: int, seconds: float) -> None:
    """Five times as much as may be used, from a bucket that is empty at first."""
    principal = caller(limit("tokens", TOKENS_PER_MIN))
    await database_reset(database, level=0.0)
    limiters = [limiter(database, f"r{number}") for number in range(replicas)]
    per_s = 5 * TOKENS_PER_MIN / 60 / (PROMPT + ANSWER)
    spent = admitted_ = asked = 0

    async def ask(one: Limiter) -> None:
        nonlocal spent, admitted_
        charge = await admitted(one, principal, tokens=PROMPT, most=4096)
        if isinstance(charge, Charge):
            await asyncio.sleep(0.5)
            charge.settle(used(PROMPT, ANSWER))
            spent += PROMPT + ANSWER
            admitted_ += 1

    async with running(*limiters), asyncio.TaskGroup() as group:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            while asked < passed * per_s:
                group.create_task(ask(limiters[asked % replicas]))
                asked += 1
            await asyncio.sleep(0.01)
    share = spent / (TOKENS_PER_MIN / 60 * (time.monotonic() - began))
    print(
        f"overload x5, {replicas} replicas, {seconds:.0f} s: {asked} asked, {admitted_} admitted, "
        f"{share:.1%} of the limit used"
    )


async def database_reset(database: Database, level: float | None = None) -> None:
    async with database.runs_transaction() as connection:
        await connection.execute(Statement("DELETE FROM buckets"), {})
        if level is not None:
            name = limit("tokens", TOKENS_PER_MIN).name
            await connection.execute(
                Statement(
                    "INSERT INTO buckets (tenant_id, name, level, at, granted)"
                    " VALUES (:tenant, :name, :level, clock_timestamp(), 0)"
                ),
                {"tenant": TENANT, "name": name, "level": level},
            )


async def main(seconds: float) -> None:
    await cpu()
    with ExitStack() as stack:
        folder = stack.enter_context(reachable_folder())
        server = PostgresServer(stack.enter_context(embedded(folder / "data")).url)
        name = await server.create()
        url = server.database_url(name)
        await upgrade(url, wait_s=30, connect_timeout_s=30)
        open_ = partial(Database, url, command_timeout_s=30, connect_timeout_s=30)
        database = open_(pool_size_max=4)
        for replicas in (1, 4):
            await burst(database, replicas)
        for replicas in (1, 4):
            await overload(database, replicas, seconds)
        await database.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0))
