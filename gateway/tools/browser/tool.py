"""The browser as the engine calls it: `builtin:browser.search`, `.open` and `.find`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from gateway.protocol.grants import BrowserGrant, DomainRules, SearchContextSize, ShownPage
from gateway.tools.browser.browser import Browser, BrowserOptions
from gateway.tools.browser.kept_pages import KeptPages, SessionPages
from gateway.tools.browser.web import TenantWeb
from gateway.tools.contract import ToolResult, ToolStart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from gateway.tools.browser.browser import Function, Shown
    from gateway.tools.browser.kept_pages import Cache
    from gateway.tools.browser.web import Workplace
    from gateway.tools.contract import ToolCall, ToolScope

PREFIX: Final = "builtin:browser."
HEAD_IDS_MAX: Final = 1024
"""Of a display, beside its lines: cursor, title and URL."""
NO_DOMAIN: Final = "invalid"
"""For an allowed domain that is none: a list of nothing else must not allow everything."""
HITS: Final[dict[SearchContextSize, int]] = {"low": 5, "medium": 10, "high": 20}
_PAGE: Final = TypeAdapter(ShownPage)


@dataclass(frozen=True, slots=True)
class Views:
    """Number of ids that one call shows, by the context size that the request sets."""

    low_ids_max: int = 512
    medium_ids_max: int = 1024
    high_ids_max: int = 2048

    def ids_max(self, size: SearchContextSize) -> int:
        """Return how many ids of a page one call shows for this `search_context_size`."""
        sizes = {"low": self.low_ids_max, "high": self.high_ids_max}
        return sizes.get(size, self.medium_ids_max)


class BrowserTools:
    """The browsers of all responses of a process."""

    def __init__(
        self,
        workplace: Workplace,
        cache: Cache,
        *,
        views: Views = Views(),
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        # `close` closes the connections of the workplace.
        self._workplace = workplace
        self._cache = cache
        self._views = views
        self._close = close

    def session(self, scope: ToolScope) -> BrowserSession:
        # The scope must grant a browser.
        return BrowserSession(scope, self._workplace, self._cache, self._views)

    async def check(self) -> str:
        """Return a line for the start-up log that names the search sources."""
        names = ", ".join(self._workplace.search.names)
        return f"web search by {names}"

    async def close(self) -> None:
        # No session may be in use.
        if self._close is not None:
            await self._close()


class BrowserSession:
    """The browser of one response."""

    def __init__(self, scope: ToolScope, workplace: Workplace, cache: Cache, views: Views) -> None:
        self._grant = grant = scope.grants.browser or BrowserGrant("web_search")
        self._earlier = (*grant.pages, *_pages_of(scope.states))
        self._shown: dict[int, ShownPage] = {}
        """By the ordinal of the call."""
        kept = KeptPages(workplace.database, cache, scope.tenant_id)
        self._store = kept if scope.stored else SessionPages(kept, scope.response, scope.values)
        domains = tuple(domain_of(one) or NO_DOMAIN for one in grant.allowed_domains)
        rules = DomainRules(grant.tenant_domains, grant.denied_domains)
        self._web = TenantWeb(
            workplace, scope.tenant_id, self._store, domains, grant.is_live, rules
        )
        self._view_ids_max = views.ids_max(grant.context_size)
        self._options = BrowserOptions(
            count_ids=scope.count_ids,
            view_ids_max=self._view_ids_max,
            hits=HITS[grant.context_size],
            domains=domains or rules.allowed,
            rules=rules,
            country=grant.country,
            user_urls=grant.urls,
            only_known_urls=grant.opens == "known",
        )

    def start(self, call: ToolCall) -> ToolStart:
        """Return what the item shows while the call runs. The call only reads, so it may run
        again.
        """
        action = self._browser(call).action(_function(call), call.arguments)
        return ToolStart(repeatable=True, shown={"action": action})

    async def run(
        self,
        call: ToolCall,
        on_handle: Callable[[bytes], None],  # noqa: ARG002 - it has none
    ) -> ToolResult:
        # Failures are shown to the model.
        shown = await self._browser(call).call(_function(call), call.arguments)
        if shown.page is not None:
            self._shown[call.ordinal] = shown.page
        return ToolResult(
            output=shown.text,
            outcome="tool_error" if shown.failed else "ok",
            shown={"action": _action(shown)},
            state={} if shown.page is None else {"page": asdict(shown.page)},
            ids_max=self._view_ids_max + HEAD_IDS_MAX,
        )

    async def resume(
        self,
        call: ToolCall,  # noqa: ARG002
        handle: bytes,  # noqa: ARG002
    ) -> ToolResult | None:
        # There are no handles.
        return None

    async def close(self) -> None:
        # Stored pages stay for later responses.
        if isinstance(self._store, SessionPages):
            self._store.close()

    def _browser(self, call: ToolCall) -> Browser:
        # With the pages that were shown before this call; the call may be one that runs again.
        own = [page for ordinal, page in self._shown.items() if ordinal < call.ordinal]
        return Browser(
            (*self._earlier, *own),
            web=self._web,
            store=self._store,
            options=self._options,
            first_cursor=self._grant.first_cursor,
        )


def domain_of(allowed: str) -> str:
    """Return the domain of a request's filter without scheme, path and port; empty if invalid."""
    try:
        host = urlsplit(allowed if "//" in allowed else f"//{allowed}").hostname or ""
        ascii_host = host.strip(".").encode("idna").decode() if host else ""
    except ValueError:
        return ""
    return ascii_host.lower()


def _function(call: ToolCall) -> Function:
    return cast("Function", call.name.removeprefix(PREFIX))


def _action(shown: Shown) -> Mapping[str, Any]:
    if shown.action["type"] != "search":
        return shown.action
    return {**shown.action, "sources": [{"type": "url", "url": url} for url in shown.sources]}


def _pages_of(states: Sequence[Mapping[str, Any]]) -> Iterator[ShownPage]:
    # Of calls that ended before. A damaged state has no page.
    for state in states:
        try:
            yield _PAGE.validate_python(state.get("page"))
        except ValidationError:
            continue
