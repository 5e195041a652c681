"""The browser of a process: its search providers, and the sources of pages."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway.errors import StartupError, installation
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId
from gateway.tools.browser.browser import BrowserTools
from gateway.tools.browser.document_reader import DocumentReader
from gateway.tools.browser.extraction import ReadLimits, missing_libraries
from gateway.tools.browser.fetch import FetchLimits, PageFetcher
from gateway.tools.browser.page_access import CACHE_BYTES_MAX, Cache, Workplace
from gateway.tools.browser.search import (
    SEARCH_TIMEOUT_S,
    Brave,
    Exa,
    HttpSource,
    IndexSource,
    McpSource,
    Query,
    SearchClient,
    SearXNG,
    SourceFailed,
    Tavily,
    YouCom,
)
from gateway.tools.egress.network_policy import NetworkPolicy, host_and_port_of
from gateway.tools.egress.transport import EgressLimits, client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from gateway.settings import Settings
    from gateway.settings.tools import SearchProvider, Web
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tools.browser.search import Provider, SearchSource

    McpCall = Callable[[dict[str, Any]], Awaitable[str]]
    """The arguments of a search → its text."""

_KEYED: Final[dict[str, type[Brave | Exa | Tavily | YouCom]]] = {
    "brave": Brave,
    "exa": Exa,
    "tavily": Tavily,
    "you": YouCom,
}


def browser_tools(
    settings: Settings, database: Database, metrics: Metrics, mcp_call: McpCall | None = None
) -> BrowserTools:
    """Build the browser. `mcp_call` is for providers that are MCP servers."""
    web = settings.tools.web
    workshop = Workshop.of(web, metrics)
    index = IndexSource(database, web.index_language)
    sources = _sources(workshop, index, mcp_call) or [index]
    workplace = Workplace(
        database,
        SearchClient(sources, index, metrics),
        workshop.fetcher,
        workshop.reader,
        kept_s=settings.retention.response_s,
    )
    cache = Cache(size_max=CACHE_BYTES_MAX)
    return BrowserTools(workplace, cache, close=workshop.close)


@dataclass(frozen=True, slots=True)
class Workshop:
    web: Web
    fetcher: PageFetcher
    reader: DocumentReader
    clients: AsyncExitStack

    @classmethod
    def of(cls, web: Web, metrics: Metrics) -> Workshop:
        if missing := missing_libraries():
            raise StartupError(
                f"web search needs what is not installed: {', '.join(missing)}",
                remedy=f"Install it, in a checkout: {installation('web')}. Or set "
                "tools.web.enabled to false.",
            )
        policy = NetworkPolicy.to(web)
        clients = AsyncExitStack()
        http = client(policy, EgressLimits())
        clients.push_async_callback(http.aclose)
        visits = web.fill(FetchLimits)
        fetcher = PageFetcher(http, policy, visits, user_agent=web.agent, metrics=metrics)
        reader = DocumentReader(web.fill(ReadLimits))
        clients.push_async_callback(reader.close)
        return cls(web, fetcher, reader, clients)

    async def close(self) -> None:
        await self.clients.aclose()

    def source(
        self, provider: SearchProvider, index: IndexSource, mcp_call: McpCall | None
    ) -> SearchSource:
        if provider.kind == "index":
            return index
        if provider.kind == "mcp":
            return _mcp_source(mcp_call)
        return _http_source(self, provider)


def _sources(
    workshop: Workshop, index: IndexSource, mcp_call: McpCall | None
) -> list[SearchSource]:
    # Several providers of one kind get distinct names.
    made: list[SearchSource] = []
    for provider in workshop.web.providers:
        source = workshop.source(provider, index, mcp_call)
        count = sum(one.name.split()[0] == source.name for one in made)
        if count and isinstance(source, HttpSource):
            source = replace(source, name=f"{source.name} {count + 1}")
        made.append(source)
    return made


async def probe_search(workshop: Workshop, provider: SearchProvider) -> str:
    """Send one query to a search engine; return why it fails, empty if it answers."""
    http = _http_source(workshop, provider)
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT_S):
            await http.find(Query("weather", count=1), TenantId(EVERYONE))
    except SourceFailed as error:
        return str(error)
    except TimeoutError:
        return f"no answer in {SEARCH_TIMEOUT_S:g} s"
    return ""


def _http_source(workshop: Workshop, provider: SearchProvider) -> HttpSource:
    engine = _engine(provider)
    # A provider may be contacted only at its configured host and port.
    policy = NetworkPolicy(hosts=frozenset({host_and_port_of(engine.base_url)}), public=False)
    http = client(policy, EgressLimits())
    workshop.clients.push_async_callback(http.aclose)
    return HttpSource(engine, http, provider.kind)


def _engine(provider: SearchProvider) -> Provider:
    key = provider.api_key.get_secret_value() if provider.api_key else ""
    if provider.kind == "searxng":
        assert provider.url is not None, "the settings say so"
        return SearXNG(provider.url, key)
    engine = _KEYED[provider.kind]
    return engine(key, provider.url) if provider.url else engine(key)


def _mcp_source(call: McpCall | None) -> McpSource:
    if call is None:
        raise StartupError(
            "a provider of web search is an MCP server, but MCP is off",
            remedy="Set tools.mcp.enabled to true, or remove it from tools.web.providers.",
        )
    return McpSource(call)
