"""The web as one response may read it: the local index, what is kept, and what is fetched now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urldefrag, urlsplit

from gateway.errors import StoreError
from gateway.protocol.grants import EVERY_DOMAIN, DomainRules, is_within
from gateway.store.tools import documents
from gateway.tools.browser.fetch import FetchFailed
from gateway.tools.browser.fetched import Unreadable
from gateway.tools.browser.page import Page
from gateway.tools.egress.transport import EGRESS_ERRORS, normalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.browser.document_reader import DocumentReader
    from gateway.tools.browser.fetch import PageFetcher
    from gateway.tools.browser.providers import Hit, Query
    from gateway.tools.browser.search import SearchClient


class FreshPages(Protocol):
    """Pages by the URL that led to them."""

    async def find(self, url: str, *, age_max_s: float) -> Page | None:
        """Return the page a URL led to at most `age_max_s` seconds ago."""
        ...


@dataclass(frozen=True, slots=True)
class Workplace:
    """Database, clients and ages of pages that all responses of a process share."""

    database: Database
    search: SearchClient
    fetcher: PageFetcher
    reader: DocumentReader
    fresh_s: float = 600.0
    kept_s: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class TenantWeb:
    """The web of one response. `is_live` False: only the index, and what its tenant has seen.
    `domains` are those of the request, `rules` the tenant's.
    """

    workplace: Workplace
    tenant_id: TenantId
    pages: FreshPages
    domains: Sequence[str] = ()
    is_live: bool = True
    rules: DomainRules = EVERY_DOMAIN

    async def search(self, query: Query) -> list[Hit]:
        return await self.workplace.search.search(query, self.tenant_id, is_live=self.is_live)

    async def open(self, url: str, *, anew: bool) -> Page:
        """Return the page at a URL. Raises `FetchFailed`."""
        try:
            url = normalised(urldefrag(url).url)
        except (*EGRESS_ERRORS, ValueError):
            raise FetchFailed("the URL is malformed") from None
        page = await self._find_known(url, anew=anew)
        if page is None:
            if not self.is_live:
                raise FetchFailed("only pages that are kept here may be opened now")
            found = await self.workplace.fetcher.fetch(url, may_visit=self._may_visit)
            try:
                return await self.workplace.reader.read(found)
            except Unreadable as error:
                raise FetchFailed(str(error)) from error
        if not self._may_visit(urlsplit(page.url).hostname or ""):
            raise FetchFailed("the domain is not among those that may be read")
        return page

    async def _find_known(self, url: str, *, anew: bool) -> Page | None:
        # None where the page has to be fetched.
        workplace = self.workplace
        try:
            document = await documents.get(workplace.database, self.tenant_id, url)
        except StoreError:
            document = None
        if document is not None:
            return Page(document.url, document.title, document.text, document.links)
        if not self.is_live:
            return await self.pages.find(url, age_max_s=workplace.kept_s)
        return None if anew else await self.pages.find(url, age_max_s=workplace.fresh_s)

    def _may_visit(self, host: str) -> bool:
        return is_within(host, self.domains) and self.rules.permits(host)
