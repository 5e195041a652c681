"""A site whose pages hold up who reads them: `python -m tests.fakes.hostile_pages PORT`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from tests.fakes.tool_server import Healthy

if TYPE_CHECKING:
    from starlette.requests import Request

SMALL_BYTES: Final = 50_000
_DIVS_IN_B: Final = "<b><div></b>"

PAGES: Final = {
    "nested": "<div>" * 400_000 + "x",
    "attributes": f"<p {' '.join(f'a{number}' for number in range(300_000))}>x",
    "small": "<div>" * ((SMALL_BYTES - 1) // len("<div>")),
    "unpaired": _DIVS_IN_B * 200_000,
}
"""The last is nested deeper than its tags tell: a parser reads it for minutes."""


async def _page(request: Request) -> HTMLResponse:
    return HTMLResponse(PAGES[request.url.path.removeprefix("/")])


if __name__ == "__main__":
    app = Starlette(routes=[Route(f"/{name}", _page) for name in PAGES])
    uvicorn.run(Healthy(app), port=int(sys.argv[1]), log_level="critical")
