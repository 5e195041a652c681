"""A process of the ledger, to be killed: it writes lines, or adds up and delivers them.

`python -m tests.fakes.ledger_process write URL TENANT` prints `ready`, then writes a batch for each
line that it reads and prints its ids when it is committed; without more to read it ends. `… work
URL SINK` prints `ready` and works until it is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from gateway import ids
from gateway.ledger.jobs import Adding
from gateway.ledger.sinks import CloudEventsSink, Delivery
from gateway.store import usage_lines
from gateway.store.postgres.database import Database
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from tests.fakes.usage_lines import random_line

SINK = "events"
SOURCE = "test"
LINES_MAX = 40
BATCH_LINES = 12


def database_of(url: str) -> Database:
    return Database(url, pool_size_max=4, command_timeout_s=30, connect_timeout_s=30)


def jobs_of(database: Database, url: str) -> tuple[Adding, Delivery, CloudEventsSink]:
    """Adding up and delivering, as a replica does, but without pauses and leases."""
    metrics = Metrics()
    adding = Adding(database, lines_max=50, interval_s=0.01, metrics=metrics)
    # As the settings have it, whose import takes as long as all else.
    settings: Any = SimpleNamespace(name=SINK, url=url, secret=None, customers={})
    sink = CloudEventsSink(settings, source=SOURCE)
    holder = ids.new_replica_id()
    delivery = Delivery(
        database, sink, holder=holder, lines_max=LINES_MAX, interval_s=0.01, lease_s=0,
        metrics=metrics,
    )  # fmt: skip
    return adding, delivery, sink


async def write(url: str, tenant: TenantId) -> None:
    database, chance = database_of(url), random.Random()
    start = datetime.now(UTC) - timedelta(hours=5)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        lines = [random_line(chance, start=start, span_s=18_000) for _ in range(BATCH_LINES)]
        await usage_lines.record_all(database, [(tenant, one) for one in lines])
        print(*(one.response.hex for one in lines), flush=True)
    await database.close()


async def work(url: str, sink: str) -> None:
    adding, delivery, _ = jobs_of(database_of(url), sink)
    print("ready", flush=True)
    await asyncio.gather(adding.run(), delivery.run())


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "write":
        asyncio.run(write(where, TenantId(UUID(rest[0]))))
    else:
        asyncio.run(work(where, rest[0]))
