from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.console.fleet import fleet_of
from gateway.console.page import Page

if TYPE_CHECKING:
    from gateway.console.fleet import Fleet
    from gateway.console.page import Services

PATH: Final = "/now"


async def read(services: Services) -> Fleet:
    return fleet_of(await services.operator.fleet.snapshots())


PAGE: Final = Page(
    path=PATH,
    title="Now",
    template="now.html",
    permission="replicas.read",
    icon="now",
    shortcut="n",
    live=read,
)
