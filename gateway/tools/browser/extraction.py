"""Convert a fetched document into a page. It runs in `document_worker.py`, for the author of a
document decides how long it takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import BytesIO
from typing import Final
from urllib.parse import urljoin, urlsplit

from gateway.tools.browser.page import (
    TITLE_CHARS_MAX,
    Fetched,
    Links,
    Page,
    Unreadable,
    link,
    plain,
)

_PDF_TITLE_CHARS_MAX: Final = 1000


def _pdf_pages(body: bytes, *, pages_max: int, chars_max: int) -> tuple[str, list[str]]:
    # The title, which may be empty, and the text of each page, within the bounds.
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(BytesIO(body))
        title = str((reader.metadata and reader.metadata.title) or "")
        pages: list[str] = []
        for number, page in enumerate(reader.pages):
            if number >= pages_max or sum(map(len, pages)) >= chars_max:
                break
            pages.append(page.extract_text()[:chars_max])
    except (PyPdfError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        raise Unreadable("the PDF is damaged, locked, or too large to read") from None
    if not any(text.strip() for text in pages):
        raise Unreadable("the PDF has no text that can be read; it may be of pictures")
    return title[:_PDF_TITLE_CHARS_MAX], pages


PDF: Final = "application/pdf"
LIBRARIES: Final = ("selectolax", "pypdf")
"""The extra `web`."""
CUT_NOTE: Final = "[The page is longer than can be shown.]"
EMPTY_NOTE: Final = "[The page has no text. It may need a browser that runs its scripts.]"
_MARKDOWN_LINK: Final = re.compile(
    r"(?<!!)\[([^\]\[\n]{1,300})\]\(\s*<?([^\s()<>]{1,2048})(?:>|(?=[\s)]))[^()\n]{0,100}\)"
)
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_NO_LINKS: Final[tuple[str, ...]] = ()


TEXT_CHARS_MAX: Final = 1_000_000
DOCUMENT_TIMEOUT_S: Final = 10.0
DOCUMENT_MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
"""Memory of the process, in bytes."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    text_chars_max: int = TEXT_CHARS_MAX
    pdf_pages_max: int = 200
    document_memory_bytes_max: int = DOCUMENT_MEMORY_BYTES_MAX
    document_timeout_s: float = DOCUMENT_TIMEOUT_S
    documents_max: int = 2


def page_of(document: Fetched, limits: ReadLimits) -> Page:
    """Return the page of a document. Raises `Unreadable`."""
    if document.content_type == PDF:
        return _pdf(document, limits)
    if document.content_type in _HTML:
        from gateway.tools.browser.html import page_of as page_of_html

        page = page_of_html(document.text, document.url)
        text = _truncate(page.text, limits)
        is_empty = not text.partition("\n")[2].strip()
        return replace(page, text=f"{text}\n\n{EMPTY_NOTE}" if is_empty else text)
    text, links = plain(document.text), _NO_LINKS
    if document.content_type == "text/markdown":
        text, links = _number_links(text, document.url)
    return _page(document.url, _first_line(text), text, links, limits)


def _pdf(document: Fetched, limits: ReadLimits) -> Page:
    title, pages = _pdf_pages(
        document.body, pages_max=limits.pdf_pages_max, chars_max=limits.text_chars_max
    )
    numbered = (f"Page {number}\n\n{text}" for number, text in enumerate(pages, start=1))
    text = plain("\n\n".join(numbered).encode("utf-8", "replace").decode())
    return _page(document.url, plain(title or _first_line(pages[0])), text, _NO_LINKS, limits)


def _page(url: str, title: str, text: str, links: tuple[str, ...], limits: ReadLimits) -> Page:
    parts = urlsplit(url)
    name = title or parts.path.rpartition("/")[2] or parts.netloc
    shown = " ".join(name.encode("utf-8", "replace").decode().split())[:TITLE_CHARS_MAX]
    whole = f"URL: {plain(url)}\n\n{text.strip()}".strip()
    return Page(url, shown, _truncate(whole, limits), links)


def _truncate(text: str, limits: ReadLimits) -> str:
    bound = limits.text_chars_max
    return text if len(text) <= bound else f"{text[:bound]}\n\n{CUT_NOTE}"


def missing_libraries() -> list[str]:
    return [name for name in LIBRARIES if find_spec(name) is None]


def _number_links(text: str, url: str) -> tuple[str, tuple[str, ...]]:
    links = Links()
    host = urlsplit(url).hostname

    def numbered(match: re.Match[str]) -> str:
        try:
            target = urljoin(url, match[2])
            parts = urlsplit(target)
        except ValueError:
            return match[1]
        if parts.scheme not in {"http", "https"} or match[2].startswith("#"):
            return match[1]
        number = links.number(target)
        if number is None:
            return match[1]
        return link(number, match[1], None if parts.hostname == host else parts.hostname)

    return _MARKDOWN_LINK.sub(numbered, text), links.urls


def _first_line(text: str) -> str:
    # A title for a document that has none.
    return next((line.strip(" #*=-") for line in text.splitlines() if line.strip(" #*=-")), "")
