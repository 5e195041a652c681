"""The inference servers as this process sees them, and taking one out of use and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.console.page import Act, Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/backends"


@dataclass(frozen=True, slots=True)
class BackendList:
    """Backends as the admin API has them. `is_owner`: they can be drained here."""

    backends: Sequence[Json]
    is_owner: bool


async def view(call: Call) -> BackendList:
    backends = await call.services.operator.backends.list()
    return BackendList(backends, await call.services.ownership.is_owner())


async def drain(call: Call) -> str:
    await call.services.operator.backends.drain(call.author, call.path["name"])
    return PATH


async def undrain(call: Call) -> str:
    await call.services.operator.backends.undrain(call.author, call.path["name"])
    return PATH


PAGE: Final = Page(
    path=PATH,
    title="Backends",
    template="backends.html",
    permission="backends.read",
    view=view,
    acts=(
        Act(f"{PATH}/{{name}}/drain", "backends.write", drain),
        Act(f"{PATH}/{{name}}/undrain", "backends.write", undrain),
    ),
    icon="backends",
    shortcut="b",
)
