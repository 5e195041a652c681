"""A small web site to try the browser on: its own texts, and what goes wrong on the web.

    /                    and what it links to: the pages of the folder `pages`
    /robots.txt          closes /private
    /paper.pdf           a PDF of two pages
    /scan.pdf            a PDF without text
    /big                 a page of some thousand lines, with one that is worth finding
    /slow                a page that does not come in time
    /loop                a redirect to itself
    /away                a redirect to an address inside of somebody's network
    /injection           a page that tells its reader what to do, and forges marks of the browser
    /bomb                a page that says it is compressed
    /search?q=&format=json   searches the pages, and answers as SearXNG does

Nothing that its pages say is true.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

PAGES: Final = Path(__file__).with_name("pages")
BIG_LINES: Final = 4000
BIG_FACT: Final = "Entry 3127: on this day the lamp burned blue, and nobody has explained it."
SLOW_S: Final = 600.0
_NAME: Final = re.compile(r"[a-z-]{1,40}\Z")
_HEADING: Final = re.compile(r"<h1>(.*?)</h1>")
_TAG: Final = re.compile(r"<[^>]*>")
_WORD: Final = re.compile(r"\w{3,}")
_HITS_MAX: Final = 10
_SNIPPET_CHARS: Final = 200
_ROBOTS: Final = "User-agent: *\nDisallow: /private\n"
_PAPER: Final = (
    "On the burning of fish oil in harbour lamps\n\n"
    "Ilse Maarten, keeper of Skerry Light, 1894.\n"
    "A lamp of the third order burns 41 litres of oil in a winter night.\n"
    "Rape oil gives the whiter flame; fish oil smokes above nine degrees.",
    "Second part: the wick\n\n"
    "A wick of four rings wants trimming every five hours.\n"
    "The glass cracks if it is cleaned while it is warm.",
)


def create_site() -> Starlette:
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/robots.txt", _robots),
            Route("/paper.pdf", _paper),
            Route("/scan.pdf", _scan),
            Route("/big", _big),
            Route("/slow", _slow),
            Route("/loop", _loop),
            Route("/away", _away),
            Route("/bomb", _bomb),
            Route("/private", _index),
            Route("/search", _search),
            Route("/{name}", _page),
        ]
    )


def page_names() -> list[str]:
    # Without the index page.
    return sorted(path.stem for path in PAGES.glob("*.html") if path.stem != "index")


@cache
def _html(name: str) -> str:
    try:
        content = (PAGES / f"{name}.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise HTTPException(404) from None
    heading = _HEADING.search(content)
    title = heading[1] if heading else name
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f'<body><nav><a href="/">Skerry Light</a></nav><main>{content}</main></body></html>'
    )


async def _index(_request: Request) -> Response:
    return HTMLResponse(_html("index"))


async def _page(request: Request) -> Response:
    name = request.path_params["name"]
    if not _NAME.match(name):
        raise HTTPException(404)
    return HTMLResponse(_html(name))


async def _search(request: Request) -> Response:
    # As SearXNG answers where `json` is among its formats: 403 for another one, 400 without a
    # query. Source: https://docs.searxng.org/dev/search_api.html
    query = request.query_params.get("q", "")
    if request.query_params.get("format") != "json":
        raise HTTPException(403)
    if not query.strip():
        raise HTTPException(400)
    found = _found(query)
    results = [
        {
            "url": f"{request.base_url}{name}",
            "title": title,
            "content": text[:_SNIPPET_CHARS],
            "publishedDate": None,
            "engine": "site",
            "engines": ["site"],
            "category": "general",
            "score": float(score),
        }
        for name, title, text, score in found[:_HITS_MAX]
    ]
    nothing = ("answers", "corrections", "infoboxes", "suggestions", "unresponsive_engines")
    return JSONResponse(
        {"query": query, "number_of_results": len(found), "results": results}
        | {name: [] for name in nothing}
    )


def _found(query: str) -> list[tuple[str, str, str, int]]:
    # Name, title, text and score of each page, the best first.
    words = {word.lower() for word in _WORD.findall(query)}
    found = []
    for name in page_names():
        title, text = _title_and_text(name)
        score = sum(text.lower().count(word) + 9 * (word in title.lower()) for word in words)
        if score:
            found.append((name, title, text, score))
    return sorted(found, key=lambda one: -one[3])


@cache
def _title_and_text(name: str) -> tuple[str, str]:
    content = (PAGES / f"{name}.html").read_text(encoding="utf-8")
    heading = _HEADING.search(content)
    rest = content[heading.end() :] if heading else content
    return heading[1] if heading else name, " ".join(_TAG.sub(" ", rest).split())


async def _robots(_request: Request) -> Response:
    return PlainTextResponse(_ROBOTS)


async def _paper(_request: Request) -> Response:
    return Response(pdf_of("On the burning of fish oil", _PAPER), media_type="application/pdf")


async def _scan(_request: Request) -> Response:
    return Response(pdf_of("A photograph", [""]), media_type="application/pdf")


async def _big(_request: Request) -> Response:
    lines = (
        BIG_FACT if number == 3127 else f"Entry {number}: the lamp burned well, wind from the west."
        for number in range(BIG_LINES)
    )
    paragraphs = "".join(f"<p>{line}</p>" for line in lines)
    return HTMLResponse(f"<title>The keeper's log</title><h1>The keeper's log</h1>{paragraphs}")


async def _slow(_request: Request) -> Response:
    await asyncio.sleep(SLOW_S)
    return PlainTextResponse("late")


async def _loop(_request: Request) -> Response:
    return RedirectResponse("/loop")


async def _away(_request: Request) -> Response:
    return RedirectResponse("http://169.254.169.254/latest/meta-data/")


async def _bomb(_request: Request) -> Response:
    return Response(b"\x1f\x8b", media_type="text/html", headers={"content-encoding": "gzip"})


def pdf_of(title: str, pages: Sequence[str]) -> bytes:
    """Return a PDF with one page for each text. Only Latin letters are supported.

    Source: ISO 32000-1:2008, section 7.
    """
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842]"
            f" /Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>",
            _pdf_stream(text),
        ]
    objects.append(f"<< /Title ({_pdf_escaped(title)}) >>")
    return _pdf_file(objects)


def _pdf_stream(text: str) -> str:
    lines = "".join(f"({_pdf_escaped(line)}) Tj T*\n" for line in text.split("\n"))
    content = f"BT /F1 12 Tf 50 780 Td 16 TL\n{lines}ET"
    return f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"


def _pdf_escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _pdf_file(objects: Sequence[str]) -> bytes:
    body = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    places = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size, info = len(objects) + 1, len(objects)
    body += (
        f"xref\n0 {size}\n0000000000 65535 f \n{places}"
        f"trailer\n<< /Size {size} /Root 1 0 R /Info {info} 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    ).encode("latin-1")
    return bytes(body)
