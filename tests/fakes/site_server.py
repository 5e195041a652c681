"""The demo's site, or its MCP server, as a process: `python -m tests.fakes.site_server PORT NAME`.

NAME is `site` or `workshop`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import uvicorn

from gateway.simulator.demo_site import create_site
from gateway.simulator.workshop import create_workshop
from tests.fakes.tool_server import Healthy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp

APPS: Final[Mapping[str, Callable[[], ASGIApp]]] = {
    "site": create_site,
    "workshop": create_workshop,
}

if __name__ == "__main__":
    port, name = sys.argv[1:]
    uvicorn.run(Healthy(APPS[name]()), port=int(port), log_level="critical")
