from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.admin.fleet import QUEUE_ROWS_MAX
from gateway.console.fleet import fleet_of
from gateway.console.page import Act, Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.console.fleet import Fleet
    from gateway.console.page import Call, Services
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/queue"
OLDEST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """Background responses of a tenant."""

    tenant: str
    queued: int
    running: int
    taken_over: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class QueueView:
    """Queues; `is_cut`: there are more than were read."""

    fleet: Fleet
    tenants: Sequence[TenantQueue]
    oldest: Sequence[Json]
    is_cut: bool


async def read(services: Services) -> QueueView:
    fleet = fleet_of(await services.operator.fleet.snapshots())
    rows = await services.operator.fleet.queue()
    by_tenant: dict[str, list[Json]] = {}
    for row in rows:
        by_tenant.setdefault(row["tenant"], []).append(row)
    queued = [row for row in rows if row["status"] == "queued"]
    return QueueView(
        fleet,
        [_of_tenant(name, own) for name, own in sorted(by_tenant.items())],
        queued[:OLDEST_SHOWN],
        len(rows) == QUEUE_ROWS_MAX,
    )


async def drop(call: Call) -> str:
    await call.services.operator.responses.cancel(call.author, call.path["response_id"])
    return PATH


def _of_tenant(name: str, rows: Sequence[Json]) -> TenantQueue:
    queued = [row for row in rows if row["status"] == "queued"]
    oldest = min((row["created_at"] for row in queued), default=None)
    return TenantQueue(
        name,
        len(queued),
        len(rows) - len(queued),
        sum(row["attempts"] > 1 for row in rows),
        None if oldest is None else max(0.0, time.time() - oldest),
    )


PAGE: Final = Page(
    path=PATH,
    title="Queue",
    template="queue.html",
    permission="responses.read",
    acts=(Act(f"{PATH}/{{response_id}}/drop", "responses.cancel", drop),),
    icon="queue",
    shortcut="q",
    live=read,
)
