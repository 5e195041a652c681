"""Limiters that share a database, as replicas do, and keys with limits."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.errors import RateLimited
from gateway.limits.accounting import Used
from gateway.limits.rules import Budget, Limit, Terms
from gateway.replication.limiter import Limiter, LimitStore, LimitTiming
from gateway.store.limits import counters, key_terms
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import Principal, TenantId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Any

    from gateway.limits.accounting import Charge
    from gateway.limits.rules import What
    from gateway.store.postgres.database import Database

MODEL = "gpt-oss-20b"
TENANT = TenantId(UUID(int=7))
BUDGET = UUID(int=77)


def limit(what: What, value: int, **more: Any) -> Limit:
    """One of the tenant's."""
    return Limit(**{"scope": "tenant", "scope_id": TENANT, "what": what, "value": value, **more})


def at_once(what: What, value: int, **more: Any) -> Limit:
    return limit(what, value, window_s=0, **more)


def budget(cap: int, **more: Any) -> Budget:
    """One of the tenant's: dollars a month."""
    given = {"unit": "usd", "interval": "month", **more}
    return Budget(id=BUDGET, scope="tenant", scope_id=TENANT, cap=cap, **given)


def caller(
    *limits: Limit, budgets: Sequence[Budget] = (), tenant_id: TenantId = TENANT
) -> Principal:
    """A key of the tenant."""
    terms = Terms(tuple(limits), tuple(budgets), organization="acme")
    return Principal(tenant_id, "acme", UUID(int=8), terms=terms)


def limiter(
    database: Database, replica: str, *, clock: Callable[[], float] = time.monotonic, **timing: Any
) -> Limiter:
    """One replica's."""
    limit_store = LimitStore(
        partial(counters.exchange, database, replica),
        partial(key_terms.valid_prices, database),
        partial(counters.forget, database),
        partial(counters.read, database, replica),
    )
    return Limiter(limit_store, Metrics(), LimitTiming(**timing), clock=clock)


@asynccontextmanager
async def running(*limiters: Limiter) -> AsyncIterator[None]:
    """They keep in step while entered."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in limiters]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def admitted(
    one: Limiter, principal: Principal, *, tokens: int = 100, most: int = 4096
) -> Charge | RateLimited:
    """The charge of a request that passed both gates, or why it did not."""
    try:
        charge = await one.enter(principal, MODEL, "default")
        assert charge is not None, "the key has limits"
        await one.reserve(charge, principal, tokens=tokens, most=most)
    except RateLimited as refusal:
        return refusal
    return charge


def used(tokens_in: int, tokens_out: int, *, is_whole: bool = True) -> Used:
    return Used(tokens_in, 0, tokens_out, is_whole=is_whole)
