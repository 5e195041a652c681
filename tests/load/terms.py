"""What limits, budgets, prices, an alert, tags and an end user cost a whole request, in CPU.

`python -m tests.load.terms [requests]` asks one gateway for short answers, `store: false`, in turns
with the key of a tenant that has none of it and of one that has all, so many requests in a batch.
Client, gateway and backend are one process: what it used for a batch is told by request, and of
`BATCHES` the smallest, which is the least disturbed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.prices import PriceCreate, Prices
from gateway.admin.spend_limits import SpendLimits
from gateway.audit import COMMAND_LINE
from gateway.limits.money import NANO
from gateway.limits.rules import DAY_S, MINUTE_S
from gateway.store.migration.migrate import upgrade
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    import httpx2

    from gateway.limits.money import Component
    from gateway.limits.rules import What
    from gateway.store.postgres.database import Database

MODEL: Final = "gpt-oss-20b"
BATCHES: Final = 12
MUCH: Final = 10**12
TEXT: Final = "[[sim tokens=4 think=none]] go"
RULES: Final[dict[tuple[What, int], int | None]] = {
    ("requests", MINUTE_S): MUCH,
    ("requests", DAY_S): MUCH,
    ("input_tokens", MINUTE_S): MUCH,
    ("output_tokens", MINUTE_S): MUCH,
    ("tokens", MINUTE_S): MUCH,
}


async def have_all(database: Database, name: str) -> None:
    """Limits of tenant and project, budgets of money and tokens, a price, and an alert."""
    limits, budgets = Limits(database), SpendLimits(database)
    tenant = await limits.tenant(name)
    place = LimitOwner.of_tenant(tenant)
    nano: dict[Component, int] = {"input": 50, "input_cached": 10, "output": 200}
    await Prices(database).set(COMMAND_LINE, PriceCreate(model=MODEL, nano_per_unit=nano))
    for one in (place, LimitOwner(tenant, "project", tenant)):
        await limits.set_limits(one, RULES)
        await budgets.set_budget(one, MUCH * NANO // 10**6)
        await budgets.set_budget(one, MUCH, unit="tokens", interval="day")
    await budgets.add_alert(place, MUCH, {"type": "operator", "percent": 50})


async def batch(client: httpx2.AsyncClient, requests: int, more: dict[str, Any]) -> float:
    """CPU of one request, in microseconds."""
    body = {"model": MODEL, "input": TEXT, "store": False} | more
    begun = time.process_time()
    for _ in range(requests):
        answer = await client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
    return (time.process_time() - begun) / requests * 1e6


async def measure(database_url: str, requests: int) -> None:
    await upgrade(database_url)
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"metadata": {"team": "red"}, "safety_identifier": "somebody"},
    )
    told: tuple[list[float], list[float]] = ([], [])
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(serving(create_simulator(WaywardOptions())))
        settings = gateway_settings(database_url, [backend])
        gateway = await stack.enter_async_context(running_gateway(settings))
        keys = [await new_key(settings, "none")]
        keys.append(await new_key(settings, "all", {"usage_tags": "team"}))
        await have_all(gateway.process.foundation.database, "all")
        clients = [
            await stack.enter_async_context(
                http_client(gateway.url, headers={"authorization": f"Bearer {key}"})
            )
            for key in keys
        ]
        for _ in range(BATCHES):
            for each, client, more in zip(told, clients, asked, strict=True):
                each.append(await batch(client, requests, more))
    none, all_ = map(min, told)
    print(f"none of it {none:.0f} us, all of it {all_:.0f} us: {all_ - none:+.0f} us a request")
    differences = sorted(two - one for one, two in zip(*told, strict=True))
    print("differences of the pairs:", *(f"{one:+.0f}" for one in differences))


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with reachable_folder() as folder, embedded(folder / "data") as server:
        postgres = PostgresServer(server.url)
        name = asyncio.run(postgres.create())
        asyncio.run(measure(postgres.database_url(name), requests))


if __name__ == "__main__":
    main()
