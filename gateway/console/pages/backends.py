from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.console.fleet import fleet_of
from gateway.console.page import Act, Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.console.fleet import Fleet
    from gateway.console.page import Call, Services
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/backends"


@dataclass(frozen=True, slots=True)
class BackendsView:
    """The fleet, and who drained backends; `is_owner`: it can be done here."""

    fleet: Fleet
    drained: Mapping[str, Json]
    is_owner: bool


async def read(services: Services) -> BackendsView:
    fleet = fleet_of(await services.operator.fleet.snapshots())
    backends = await services.operator.fleet.backends()
    drained = {one["name"]: one["drained"] for one in backends if one["drained"]}
    return BackendsView(fleet, drained, await services.ownership.is_owner())


async def drain(call: Call) -> str:
    await call.services.operator.fleet.drain(call.author, call.path["name"])
    return PATH


async def undrain(call: Call) -> str:
    await call.services.operator.fleet.undrain(call.author, call.path["name"])
    return PATH


PAGE: Final = Page(
    path=PATH,
    title="Backends",
    template="backends.html",
    permission="backends.read",
    acts=(
        Act(f"{PATH}/{{name}}/drain", "backends.write", drain),
        Act(f"{PATH}/{{name}}/undrain", "backends.write", undrain),
    ),
    icon="backends",
    shortcut="b",
    live=read,
)
