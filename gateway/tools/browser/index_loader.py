from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from gateway.store.tools import web_pages
from gateway.store.tools.web_pages import StoredPage
from gateway.tools.browser.fetch import FetchFailed
from gateway.tools.browser.page import Fetched, Unreadable
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import normalised

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.browser.document_reader import DocumentReader
    from gateway.tools.browser.fetch import PageFetcher
    from gateway.tools.browser.page import Page


NOWHERE: Final = "https://pages.invalid/"
"""For files without a URL: it never leads anywhere (RFC 2606)."""
TYPES: Final = {
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".txt": "text/plain",
    ".pdf": "application/pdf",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Page that was loaded, or the error."""

    url: str
    title: str = ""
    error: str = ""
    is_refused: bool = False
    """By the network policy."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Loader of one tenant's index, or of the index for all (None)."""

    database: Database
    fetcher: PageFetcher
    reader: DocumentReader
    language: str
    tenant_id: TenantId | None = None

    async def add_url(self, url: str, *, pages_max: int = 1) -> AsyncIterator[Loaded]:
        """Store a page and, breadth first, others of the same host."""
        url = urldefrag(url).url
        host = urlsplit(url).netloc
        seen, waiting = {url}, [url]
        while waiting and pages_max > 0:
            wanted, pages_max = waiting.pop(0), pages_max - 1
            try:
                page = await self.reader.read(await self.fetcher.fetch(wanted))
            except (FetchFailed, Unreadable) as error:
                is_refused = isinstance(error.__cause__, EgressRefused)
                yield Loaded(wanted, error=str(error), is_refused=is_refused)
                continue
            yield await self._put(page)
            links = [link for link in page.links if urlsplit(link).netloc == host]
            waiting += [link for link in dict.fromkeys(links) if link not in seen]
            seen.update(links)

    async def add_path(self, path: Path, base_url: str | None = None) -> AsyncIterator[Loaded]:
        """Store a file, or all readable files of a folder. Raises `OSError` and `StoreError`."""
        for file, url in _files(path, base_url):
            body = await asyncio.to_thread(file.read_bytes)
            document = Fetched(normalised(url), TYPES.get(file.suffix.lower(), "text/plain"), body)
            try:
                page = await self.reader.read(document)
            except Unreadable as error:
                yield Loaded(url, error=str(error))
            else:
                yield await self._put(page)

    async def _put(self, page: Page) -> Loaded:
        document = StoredPage(page.url, page.title, page.text, page.links)
        await web_pages.put_documents(
            self.database, self.tenant_id, [document], language=self.language
        )
        return Loaded(page.url, page.title)


def _files(path: Path, base_url: str | None) -> Iterator[tuple[Path, str]]:
    # Hidden files, and files of unknown types, only if they are named.
    if path.is_file():
        named = base_url is not None and not base_url.endswith("/")
        yield (
            path,
            base_url if named and base_url else urljoin(base_url or NOWHERE, _quoted(path.name)),
        )
        return
    path.stat()
    base = (base_url or NOWHERE).rstrip("/") + "/"
    for file in sorted(path.rglob("*")):
        place = file.relative_to(path)
        is_hidden = any(part.startswith(".") for part in place.parts)
        if file.is_file() and not is_hidden and file.suffix.lower() in TYPES:
            yield file, base + _quoted(place.as_posix())


def _quoted(name: str) -> str:
    return quote(name, errors="replace")
