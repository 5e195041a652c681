from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.console.page import Page
from gateway.store.schema import REVISION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/system"
TABLES_SHOWN: Final = 12


async def view(call: Call) -> Json:
    services = call.services.operator
    system = await services.fleet.system()
    settings = (await services.fleet.settings())["settings"]
    return {
        "system": system,
        "is_current": system["schema_revision"] == REVISION,
        "replicas": await services.fleet.replicas(),
        "tables": system["tables"][:TABLES_SHOWN],
        "settings": list(_flat(settings)),
    }


def _flat(settings: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", orjson.dumps(value).decode()


PAGE: Final = Page(
    path=PATH,
    title="System",
    template="system.html",
    permission="settings.read",
    view=view,
    icon="system",
    shortcut="s",
)
