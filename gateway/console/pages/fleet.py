"""What the fleet does now: the pages that are streamed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.admin.fleet import QUEUE_ROWS_MAX
from gateway.console.fleet import fleet_of
from gateway.console.page import Act, Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.console.fleet import Fleet
    from gateway.console.page import Call, Services
    from gateway.protocol.admin_bodies import Json

BACKENDS_PATH: Final = "/backends"
QUEUE_PATH: Final = "/queue"
OLDEST_SHOWN: Final = 20


async def read_fleet(services: Services) -> Fleet:
    return fleet_of(await services.operator.fleet.snapshots())


async def read_backends(services: Services) -> Json:
    backends = await services.operator.fleet.backends()
    return {
        "fleet": await read_fleet(services),
        "drained": {one["name"]: one["drained"] for one in backends if one["drained"]},
        "is_owner": await services.ownership.is_owner(),
    }


async def drain(call: Call) -> str:
    await call.services.operator.fleet.drain(call.author, call.path["name"])
    return BACKENDS_PATH


async def undrain(call: Call) -> str:
    await call.services.operator.fleet.undrain(call.author, call.path["name"])
    return BACKENDS_PATH


async def read_queue(services: Services) -> Json:
    rows = await services.operator.fleet.queue()
    by_tenant: dict[str, list[Json]] = {}
    for row in rows:
        by_tenant.setdefault(row["tenant"], []).append(row)
    queued = [row for row in rows if row["status"] == "queued"]
    return {
        "fleet": await read_fleet(services),
        "tenants": [_of_tenant(name, own) for name, own in sorted(by_tenant.items())],
        "oldest": queued[:OLDEST_SHOWN],
        "is_cut": len(rows) == QUEUE_ROWS_MAX,
    }


async def drop(call: Call) -> str:
    await call.services.operator.responses.cancel(call.author, call.path["response_id"])
    return QUEUE_PATH


def _of_tenant(name: str, rows: Sequence[Json]) -> Json:
    queued = [row for row in rows if row["status"] == "queued"]
    oldest = min((row["created_at"] for row in queued), default=None)
    return {
        "tenant": name,
        "queued": len(queued),
        "running": len(rows) - len(queued),
        "taken_over": sum(row["attempts"] > 1 for row in rows),
        "oldest_s": None if oldest is None else max(0.0, time.time() - oldest),
    }


NOW: Final = Page(
    path="/now",
    title="Now",
    template="now.html",
    permission="replicas.read",
    icon="now",
    shortcut="n",
    live=read_fleet,
)
BACKENDS: Final = Page(
    path=BACKENDS_PATH,
    title="Backends",
    template="backends.html",
    permission="backends.read",
    acts=(
        Act(f"{BACKENDS_PATH}/{{name}}/drain", "backends.write", drain),
        Act(f"{BACKENDS_PATH}/{{name}}/undrain", "backends.write", undrain),
    ),
    icon="backends",
    shortcut="b",
    live=read_backends,
)
QUEUE: Final = Page(
    path=QUEUE_PATH,
    title="Queue",
    template="queue.html",
    permission="responses.read",
    acts=(Act(f"{QUEUE_PATH}/{{response_id}}/drop", "responses.cancel", drop),),
    icon="queue",
    shortcut="q",
    live=read_queue,
)
