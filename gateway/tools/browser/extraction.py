"""What was fetched → the page that a model reads.

HTML is read here; long documents in threads, and PDF in a process of its own, because both take as
long as whoever wrote them likes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from gateway.tools.browser.page import TITLE_CHARS_MAX, Links, Page, link, plain

if TYPE_CHECKING:
    from gateway.tools.browser.fetch import Fetched

INLINE_BYTES_MAX: Final = 50_000
"""A longer document is read in a thread."""
LIBRARIES: Final = ("selectolax", "pypdf")
"""The libraries of the extra `web`, which a gateway without web search need not have."""
CUT_NOTE: Final = "[The page is longer than can be shown.]"
EMPTY_NOTE: Final = "[The page has no text. It may need a browser that runs its scripts.]"
_WORKER: Final = Path(__file__).with_name("pdf_worker.py")
_MARKDOWN_LINK: Final = re.compile(
    r"(?<!!)\[([^\]\[\n]{1,300})\]\(\s*<?([^\s()<>]{1,2048})(?:>|(?=[\s)]))[^()\n]{0,100}\)"
)
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_NO_LINKS: Final[tuple[str, ...]] = ()


class Unreadable(Exception):
    """No text can be had from a document. The message is for the model."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of one document. `pdf_memory_bytes_max` and `pdf_timeout_s` are those of the process
    that reads a PDF.
    """

    text_chars_max: int = 1_000_000
    pdf_pages_max: int = 200
    pdf_memory_bytes_max: int = 512 * 1024 * 1024
    pdf_timeout_s: float = 15.0
    documents_max: int = 2


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """Reads documents, a few at a time."""

    limits: ReadLimits = ReadLimits()
    _turns: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        turns = asyncio.Semaphore(self.limits.documents_max)
        object.__setattr__(self, "_turns", turns)

    async def read(self, found: Fetched) -> Page:
        """The page that a document is. Raises `Unreadable`."""
        if found.content_type == "application/pdf":
            async with self._turns:
                return await self._pdf(found)
        if len(found.body) <= INLINE_BYTES_MAX:
            return self._text(found)
        async with self._turns:
            return await asyncio.to_thread(self._text, found)

    def _text(self, found: Fetched) -> Page:
        if found.content_type in _HTML:
            from gateway.tools.browser.html import page_of

            page = page_of(found.text, found.url)
            text = self._truncate(page.text)
            is_empty = not text.partition("\n")[2].strip()
            return Page(
                page.url, page.title, f"{text}\n\n{EMPTY_NOTE}" if is_empty else text, page.links
            )
        text, links = plain(found.text), _NO_LINKS
        if found.content_type == "text/markdown":
            text, links = _number_links(text, found.url)
        return self._page(found.url, _first_line(text), text, links)

    async def _pdf(self, found: Fetched) -> Page:
        limits = self.limits
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_WORKER)),
            *(str(limits.pdf_pages_max), str(limits.text_chars_max)),
            *(str(limits.pdf_memory_bytes_max), str(max(1, int(limits.pdf_timeout_s)))),
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={},
        )  # fmt: skip
        try:
            async with asyncio.timeout(limits.pdf_timeout_s):
                said, _ = await process.communicate(found.body)
        except TimeoutError:
            raise Unreadable("the PDF took too long to read") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode != 0:
            raise Unreadable("the PDF is damaged, locked, or too large to read")
        read = json.loads(said)
        if not any(text.strip() for text in read["pages"]):
            raise Unreadable("the PDF has no text that can be read; it may be of pictures")
        pages = (f"Page {number}\n\n{text}" for number, text in enumerate(read["pages"], start=1))
        text = plain("\n\n".join(pages).encode("utf-8", "replace").decode())
        title = read["title"] or _first_line("\n".join(read["pages"][:1]))
        return self._page(found.url, plain(title), text, ())

    def _page(self, url: str, title: str, text: str, links: tuple[str, ...]) -> Page:
        parts = urlsplit(url)
        name = title or parts.path.rpartition("/")[2] or parts.netloc
        shown = " ".join(name.encode("utf-8", "replace").decode().split())[:TITLE_CHARS_MAX]
        return Page(
            url, shown, self._truncate(f"URL: {plain(url)}\n\n{text.strip()}".strip()), links
        )

    def _truncate(self, text: str) -> str:
        bound = self.limits.text_chars_max
        return text if len(text) <= bound else f"{text[:bound]}\n\n{CUT_NOTE}"


def missing_libraries() -> list[str]:
    """Those of the extra `web` that are not installed."""
    return [name for name in LIBRARIES if find_spec(name) is None]


def _number_links(text: str, url: str) -> tuple[str, tuple[str, ...]]:
    """Markdown with its links as the browser shows them."""
    links = Links()
    host = urlsplit(url).hostname

    def numbered(found: re.Match[str]) -> str:
        try:
            target = urljoin(url, found[2])
            parts = urlsplit(target)
        except ValueError:
            return found[1]
        if parts.scheme not in {"http", "https"} or found[2].startswith("#"):
            return found[1]
        number = links.number(target)
        if number is None:
            return found[1]
        return link(number, found[1], None if parts.hostname == host else parts.hostname)

    return _MARKDOWN_LINK.sub(numbered, text), links.urls


def _first_line(text: str) -> str:
    """A title for a document that has none."""
    return next((line.strip(" #*=-") for line in text.splitlines() if line.strip(" #*=-")), "")
