"""Pages that one response may read: kept between calls, in the local index, or fetched now."""

from __future__ import annotations

from dataclasses import dataclass
from sys import getsizeof
from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urlsplit

from gateway.cache import LruCache
from gateway.errors import StoreError
from gateway.protocol.grants import EVERY_DOMAIN, DomainRules, is_within
from gateway.store.tools import web_pages
from gateway.store.tools.web_pages import StoredPage
from gateway.telemetry.logs import EventLog
from gateway.tools.browser.fetch import FetchFailed
from gateway.tools.browser.page import LINE_CHARS_MAX, Page, Unreadable
from gateway.tools.egress.transport import EGRESS_ERRORS, normalised

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.browser.document_reader import DocumentReader
    from gateway.tools.browser.fetch import PageFetcher
    from gateway.tools.browser.search import Hit, Query, SearchClient


Cache = LruCache[tuple["UUID", str], Page]
"""By tenant, or response that is not stored, and key; sizes are in bytes."""

CACHE_BYTES_MAX: Final = 128_000_000
LINE_BYTES: Final = 64
"""Beside its characters."""
PAGE_BYTES: Final = 1000
"""Beside its text and its links."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class KeptPages:
    database: Database
    cache: Cache
    tenant_id: TenantId

    async def put(self, page: Page, requested_url: str = "") -> str:
        stored = _stored(page)
        key = stored.key.hex()
        self.cache.put((self.tenant_id, key), page, size=_size(page))
        try:
            await web_pages.put_page(
                self.database, self.tenant_id, stored, requested_url=requested_url
            )
        except StoreError as error:
            _log.warning("a page of the browser was not stored", error=error)
        return key

    async def get(self, key: str) -> Page | None:
        page = self.cache.get((self.tenant_id, key))
        if page is not None:
            return page
        try:
            stored = await web_pages.get_page(self.database, self.tenant_id, bytes.fromhex(key))
        except (StoreError, ValueError):
            return None
        if stored is None:
            return None
        page = _page(stored)
        self.cache.put((self.tenant_id, key), page, size=_size(page))
        return page

    async def find(self, url: str, *, age_max_s: float) -> Page | None:
        """Return a page that the URL led to at most `age_max_s` seconds ago."""
        try:
            stored = await web_pages.find_page(
                self.database, self.tenant_id, url, age_max_s=age_max_s
            )
        except StoreError:
            return None
        return None if stored is None else _page(stored)


class SessionPages:
    """Pages of one response that is not stored: in `values`, for responses that continue it, or
    else in the cache until it ends.
    """

    def __init__(
        self, kept: KeptPages, response: UUID, values: LruCache[str, Page] | None = None
    ) -> None:
        self._kept = kept
        self._response = response
        self._values = values
        self._keys: set[str] = set()

    async def put(self, page: Page, requested_url: str = "") -> str:  # noqa: ARG002 - it is not looked for
        key = _stored(page).key.hex()
        if self._values is not None:
            self._values.put(key, page, size=_size(page))
            return key
        self._kept.cache.put((self._response, key), page, size=_size(page))
        self._keys.add(key)
        return key

    async def get(self, key: str) -> Page | None:
        if self._values is not None:
            own = self._values.get(key)
        else:
            own = self._kept.cache.get((self._response, key))
        return own or await self._kept.get(key)

    async def find(self, url: str, *, age_max_s: float) -> Page | None:
        return await self._kept.find(url, age_max_s=age_max_s)

    def close(self) -> None:
        # Pages of this response that were never stored.
        for key in self._keys:
            self._kept.cache.drop((self._response, key))


def _stored(page: Page) -> StoredPage:
    return StoredPage(page.url, page.title, page.text, page.links)


def _page(stored: StoredPage) -> Page:
    return Page(stored.url, stored.title, stored.text, stored.links)


def _size(page: Page) -> int:
    # The text is there twice, once in lines: those may be short, and many.
    lines = page.text.count("\n") + len(page.text) // LINE_CHARS_MAX
    text = 2 * getsizeof(page.text) + LINE_BYTES * lines
    return text + sum(map(len, page.links)) + PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Workplace:
    database: Database
    search: SearchClient
    fetcher: PageFetcher
    reader: DocumentReader
    fresh_s: float = 600.0
    kept_s: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class TenantWeb:
    """Web of one response. `is_live` False: only indexed and kept pages. `rules`: the tenant's."""

    workplace: Workplace
    tenant_id: TenantId
    pages: KeptPages | SessionPages
    domains: Sequence[str] = ()
    is_live: bool = True
    rules: DomainRules = EVERY_DOMAIN

    async def search(self, query: Query) -> list[Hit]:
        return await self.workplace.search.search(query, self.tenant_id, is_live=self.is_live)

    async def open(self, url: str, *, anew: bool) -> Page:
        try:
            url = normalised(urldefrag(url).url)
        except EGRESS_ERRORS:
            raise FetchFailed("the URL is malformed") from None
        page = await self._find_kept(url, anew=anew)
        if page is None:
            if not self.is_live:
                raise FetchFailed("only pages that are kept here may be opened now")
            tenant = self.tenant_id
            document = await self.workplace.fetcher.fetch(url, tenant, may_visit=self._may_visit)
            try:
                return await self.workplace.reader.read(document, tenant)
            except Unreadable as error:
                raise FetchFailed(str(error)) from error
        if not self._may_visit(urlsplit(page.url).hostname or ""):
            raise FetchFailed("the domain is not among those that may be read")
        return page

    async def _find_kept(self, url: str, *, anew: bool) -> Page | None:
        # None where the page has to be fetched.
        workplace = self.workplace
        try:
            document = await web_pages.get_document(workplace.database, self.tenant_id, url)
        except StoreError:
            document = None
        if document is not None:
            return Page(document.url, document.title, document.text, document.links)
        if not self.is_live:
            return await self.pages.find(url, age_max_s=workplace.kept_s)
        return None if anew else await self.pages.find(url, age_max_s=workplace.fresh_s)

    def _may_visit(self, host: str) -> bool:
        return is_within(host, self.domains) and self.rules.permits(host)
