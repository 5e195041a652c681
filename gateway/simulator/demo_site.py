"""A web site to try the browser on.

`/injection` tells its reader what to do, and forges marks of the browser.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

PAGES: Final = Path(__file__).with_name("pages")
BIG_LINES: Final = 4000
BIG_FACT: Final = "Entry 3127: on this day the lamp burned blue, and nobody has explained it."
_NAME: Final = re.compile(r"[a-z-]{1,40}\Z")
_HEADING: Final = re.compile(r"<h1>(.*?)</h1>")
_TAG: Final = re.compile(r"<[^>]*>")
_WORD: Final = re.compile(r"\w{3,}")
_HITS_MAX: Final = 10
_SNIPPET_CHARS: Final = 200


def create_site() -> Starlette:
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/paper.pdf", _paper),
            Route("/big", _big),
            Route("/search", _search),
            Route("/{name}", _page),
        ]
    )


def page_names() -> list[str]:
    return sorted(path.stem for path in PAGES.glob("*.html") if path.stem != "index")


@cache
def _read(name: str) -> tuple[str, str]:
    # The title of a page, and its HTML.
    content = (PAGES / f"{name}.html").read_text(encoding="utf-8")
    heading = _HEADING.search(content)
    return heading[1] if heading else name, content


def _html(name: str) -> str:
    try:
        title, content = _read(name)
    except FileNotFoundError:
        raise HTTPException(404) from None
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
    # Answers like SearXNG with `json` among its formats: 403 for another one, 400 without a query.
    # Source: https://docs.searxng.org/dev/search_api.html
    query = request.query_params.get("q", "")
    if request.query_params.get("format") != "json":
        raise HTTPException(403)
    if not query.strip():
        raise HTTPException(400)
    hits = _search_pages(query)
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
        for name, title, text, score in hits[:_HITS_MAX]
    ]
    nothing = ("answers", "corrections", "infoboxes", "suggestions", "unresponsive_engines")
    return JSONResponse(
        {"query": query, "number_of_results": len(hits), "results": results}
        | {name: [] for name in nothing}
    )


def _search_pages(query: str) -> list[tuple[str, str, str, int]]:
    # Name, title, text and score of each page, the best first.
    words = {word.lower() for word in _WORD.findall(query)}
    hits = []
    for name in page_names():
        title, content = _read(name)
        text = " ".join(_TAG.sub(" ", _HEADING.sub("", content, count=1)).split())
        score = sum(text.lower().count(word) + 9 * (word in title.lower()) for word in words)
        if score:
            hits.append((name, title, text, score))
    return sorted(hits, key=lambda one: -one[3])


async def _paper(_request: Request) -> Response:
    return FileResponse(PAGES / "paper.pdf")


async def _big(_request: Request) -> Response:
    lines = (
        BIG_FACT if number == 3127 else f"Entry {number}: the lamp burned well, wind from the west."
        for number in range(BIG_LINES)
    )
    paragraphs = "".join(f"<p>{line}</p>" for line in lines)
    return HTMLResponse(f"<title>The keeper's log</title><h1>The keeper's log</h1>{paragraphs}")
