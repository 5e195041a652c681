"""The demo's site, and what goes wrong on the web.

/robots.txt          closes /private
/scan.pdf            a PDF without text
/slow                a page that does not come in time
/loop                a redirect to itself
/away                a redirect to an address inside of somebody's network
/bomb                a page that says it is compressed
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from gateway.simulator.demo_site import create_site
from tests.fakes.pdf_files import pdf_of

if TYPE_CHECKING:
    from starlette.requests import Request

SLOW_S: Final = 600.0


def create_troubled_site() -> Starlette:
    return Starlette(
        routes=[
            Route("/robots.txt", _robots),
            Route("/private", _private),
            Route("/scan.pdf", _scan),
            Route("/slow", _slow),
            Route("/loop", _loop),
            Route("/away", _away),
            Route("/bomb", _bomb),
            Mount("/", create_site()),
        ]
    )


async def _robots(_request: Request) -> Response:
    return PlainTextResponse("User-agent: *\nDisallow: /private\n")


async def _private(_request: Request) -> Response:
    return PlainTextResponse("nobody is to read this")


async def _scan(_request: Request) -> Response:
    return Response(pdf_of("A photograph", [""]), media_type="application/pdf")


async def _slow(_request: Request) -> Response:
    await asyncio.sleep(SLOW_S)
    return PlainTextResponse("late")


async def _loop(_request: Request) -> Response:
    return RedirectResponse("/loop")


async def _away(_request: Request) -> Response:
    return RedirectResponse("http://169.254.169.254/latest/meta-data/")


async def _bomb(_request: Request) -> Response:
    return Response(b"\x1f\x8b", media_type="text/html", headers={"content-encoding": "gzip"})
