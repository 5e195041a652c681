"""`browser.search`, `browser.open` and `browser.find`, as gpt-oss was trained to call them.

Source: https://github.com/openai/gpt-oss, gpt_oss/tools/simple_browser; where it differs: a page is
kept by its cursor and not by its URL, `topn` counts, and a find in results of a search is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast
from urllib.parse import urldefrag, urlsplit

import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from gateway.protocol.grants import (
    EVERY_DOMAIN,
    BrowserGrant,
    DomainRules,
    SearchContextSize,
    ShownPage,
    is_within,
)
from gateway.tools.browser.fetch import FetchFailed
from gateway.tools.browser.page import (
    NoSuchLine,
    Page,
    find,
    link,
    link_places,
    links_in,
    plain,
    view,
)
from gateway.tools.browser.page_access import KeptPages, SessionPages, TenantWeb
from gateway.tools.browser.search import Query, SearchFailed
from gateway.tools.tool_contract import ToolResult, ToolSession, ToolStart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from gateway.tools.browser.page import View
    from gateway.tools.browser.page_access import Cache, Workplace
    from gateway.tools.browser.search import Hit
    from gateway.tools.tool_contract import ToolCall, ToolScope


T = TypeVar("T")
Function = Literal["search", "open", "find"]
Kind = Literal["search", "page", "find"]

HITS_MAX: Final = 20
QUERY_CHARS_MAX: Final = 1000
PATTERN_CHARS_MAX: Final = 200
URL_CHARS_MAX: Final = 2048
OWN_URL_CHARS_MAX: Final = 512
OWN_URL_QUERY_CHARS_MAX: Final = 128
"""In a URL that the model makes up: it may carry secrets away."""
INLINE_CHARS_MAX: Final = 50_000
"""Longer pages are processed in a thread."""
SNIPPET_LINES: Final = 3
LINES_ABOVE_MATCH: Final = 4
CHANGED_NOTE: Final = "(This page was fetched again: it may have changed.)"


@dataclass(frozen=True, slots=True)
class Shown:
    """Result of a call. `page` None: no new page. `action`: that of the `web_search_call` item."""

    text: str
    action: Mapping[str, Any]
    page: ShownPage | None = None
    sources: tuple[str, ...] = ()
    failed: bool = False


class PageStore(Protocol):
    async def put(self, page: Page, requested_url: str = "") -> str:
        """Store the page that `requested_url` led to; return its key."""
        ...

    async def get(self, key: str) -> Page | None: ...


class Web(Protocol):
    async def search(self, query: Query) -> list[Hit]:
        """Return the hits, best first. Raises `SearchFailed`."""
        ...

    async def open(self, url: str, *, anew: bool) -> Page:
        """Return a page; `anew`: no recent copy. Raises `FetchFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class BrowserOptions:
    """Bounds of one response. `only_seen_urls`: the model opens only `user_urls` and those of shown
    pages.
    """

    count_ids: Callable[[str], int]
    view_ids_max: int = 1024
    hits: int = 10
    domains: tuple[str, ...] = ()
    rules: DomainRules = EVERY_DOMAIN
    country: str | None = None
    user_urls: tuple[str, ...] = ()
    only_seen_urls: bool = False


class BadCall(Exception):
    """Arguments that make no sense. The message is for the model."""


class NotThere(Exception):
    """Unknown cursor, link or line. The message is for the model."""


class Browser:
    def __init__(
        self, pages: Sequence[ShownPage], *, web: Web, store: PageStore, options: BrowserOptions
    ) -> None:
        self._pages = {page.cursor: page for page in pages}
        self._next = 1 + max(self._pages, default=-1)
        self._web = web
        self._store = store
        self._options = options

    def action(self, function: Function, arguments: str) -> dict[str, Any]:
        """Describe what a call is about to do. Raises nothing."""
        if function == "search":
            return {"type": "search"}
        try:
            parsed = _Arguments(arguments)
            if function == "open":
                return _opening(self._target(parsed)[0])
            _, page = self._page_at(parsed.number("cursor", -1))
            return _finding(page.url, parsed.text("pattern")[:PATTERN_CHARS_MAX])
        except (BadCall, NotThere):
            return _finding("", "") if function == "find" else _opening("")

    async def call(self, function: Function, arguments: str) -> Shown:
        # Errors are shown to the model, too.
        try:
            parsed = _Arguments(arguments)
            if function == "search":
                return await self._search(parsed)
            return await (self._open(parsed) if function == "open" else self._find(parsed))
        except (BadCall, NotThere) as error:
            action = self.action(function, arguments)
            return Shown(f"Error: {error}", action, failed=isinstance(error, BadCall))

    async def _search(self, parsed: _Arguments) -> Shown:
        text = parsed.text("query")[:QUERY_CHARS_MAX].strip()
        if not text:
            raise BadCall("`query` is missing.")
        options = self._options
        count = min(HITS_MAX, max(1, parsed.number("topn", options.hits)))
        action = {"type": "search", "query": text, "queries": [text]}
        try:
            hits = await self._web.search(
                Query(text, count, options.domains, options.country, options.rules)
            )
        except SearchFailed as error:
            return Shown(f"Error: {error}", action, failed=True)
        if not hits:
            return Shown(f"No results for `{plain(text)}`. Try other words.", action)
        page = _results(text, hits)
        shown, seen = await self._show(page, "search", first=0)
        return Shown(seen.text, action, shown, sources=page.links)

    async def _open(self, parsed: _Arguments) -> Shown:
        first, count = parsed.number("loc", -1), parsed.number("num_lines", -1)
        lines = count if count > 0 else None
        url, page = self._target(parsed)
        number = parsed.number("id", -1) if parsed.url("id") is None else -1
        if page is None or (number >= 0 and page.kind != "find"):
            if page is None:
                await self._check(url)
            return await self._visit(url, anew=page is None, first=max(0, first), line_count=lines)
        if number >= 0:
            return await self._open_match(page, number, line_count=lines)
        content, is_again = await self._content(page)
        start = first if first >= 0 else page.first
        shown, seen = await self._show(
            content, page.kind, first=start, line_count=lines, key=None if is_again else page.key,
            of=page.of,
        )  # fmt: skip
        return Shown(_with_note(seen, is_again=is_again), _opening(page.url), shown)

    def _target(self, parsed: _Arguments) -> tuple[str, ShownPage | None]:
        # The page is the one that a link or line belongs to; None for a URL of its own.
        if (url := parsed.url("id")) is not None:
            return url, None
        number, cursor = parsed.number("id", -1), parsed.number("cursor", -1)
        if number < 0 and not self._pages:
            raise BadCall("no page was opened yet: search, or open a URL.")
        place, page = self._page_at(cursor)
        if number < 0:
            return page.url, page
        if page.kind == "find":
            assert page.of is not None, "results of a find know their page"
            return self._page_at(page.of)[1].url, page
        if number >= len(page.links):
            valid = f"0 to {len(page.links) - 1}" if page.links else "none"
            raise NotThere(f"page [{place}] has no link {number}; its links: {valid}.")
        return page.links[number], page

    async def _open_match(
        self, results: ShownPage, number: int, *, line_count: int | None
    ) -> Shown:
        assert results.of is not None, "results of a find know their page"
        _, page = self._page_at(results.of)
        matches = _match_lines((await self._content(results))[0].text)
        if number >= len(matches):
            raise NotThere(f"there is no match {number}.")
        first = max(0, matches[number] - LINES_ABOVE_MATCH)
        content, is_again = await self._content(page)
        shown, seen = await self._show(
            content, page.kind, first=first, line_count=line_count,
            key=None if is_again else page.key,
        )  # fmt: skip
        return Shown(_with_note(seen, is_again=is_again), _opening(page.url), shown)

    async def _visit(self, url: str, *, anew: bool, first: int, line_count: int | None) -> Shown:
        try:
            page = await self._web.open(url, anew=anew)
        except FetchFailed as error:
            text = f"Error: {plain(url)[:URL_CHARS_MAX]} could not be opened: {error}."
            return Shown(text, _opening(url), failed=True)
        key = await self._store.put(page, url)
        shown, seen = await self._show(page, "page", first=first, line_count=line_count, key=key)
        return Shown(seen.text, _opening(page.url), shown, (page.url,))

    async def _check(self, url: str) -> None:
        # The model may open only URLs that it was shown, depending on the options. Raises
        # `BadCall`.
        if await self._is_seen(urldefrag(url).url if _is_url(url) else url):
            return
        if self._options.only_seen_urls:
            raise BadCall(
                "only URLs that the user gave, or that a shown page has, can be opened here:"
                " search, or open a link by its number."
            )
        if len(url) > OWN_URL_CHARS_MAX or (
            _is_url(url) and len(urlsplit(url).query) > OWN_URL_QUERY_CHARS_MAX
        ):
            raise BadCall("the URL is too long, and no page that was shown has it.")

    async def _is_seen(self, url: str) -> bool:
        # Results repeat what the model itself searched for, so only their links count.
        pages = self._pages.values()
        shown = (one for page in pages for one in (page.url, *page.links))
        if url.rstrip("/") in {_plain_url(one) for one in (*shown, *self._options.user_urls)}:
            return True
        if not self._options.only_seen_urls and len(url) <= OWN_URL_QUERY_CHARS_MAX:
            return False  # it may be opened all the same
        for key in {page.key for page in pages if page.kind == "page"}:
            page = await self._store.get(key)
            if page is not None and url in page.text:
                return True
        return False

    async def _find(self, parsed: _Arguments) -> Shown:
        pattern = parsed.text("pattern")[:PATTERN_CHARS_MAX]
        if not pattern.strip():
            raise BadCall("`pattern` is missing.")
        if not self._pages:
            raise BadCall("no page was opened yet: there is nothing to find anything in.")
        place, page = self._page_at(parsed.number("cursor", -1))
        if page.kind != "page":
            raise NotThere(f"[{place}] is a list of results: open a page to find text in it.")
        content, is_again = await self._content(page)
        results = await _work(partial(find, content, pattern), content)
        shown, seen = await self._show(results, "find", first=0, of=place)
        return Shown(_with_note(seen, is_again=is_again), _finding(page.url, pattern), shown)

    async def _show(
        self,
        page: Page,
        kind: Kind,
        *,
        first: int,
        line_count: int | None = None,
        key: str | None = None,
        of: int | None = None,
    ) -> tuple[ShownPage, View]:
        # Under the next cursor.
        look = partial(
            view,
            page,
            self._next,
            first=first,
            line_count=line_count,
            ids_max=self._options.view_ids_max,
            count_ids=self._options.count_ids,
        )
        try:
            seen = await _work(look, page)
        except NoSuchLine as error:
            raise NotThere(str(error)) from None
        kept = key or await self._store.put(page)
        links = page.links[: links_in(seen.text)]
        hits = link_places(page)[: len(links)] if kind == "search" else ()
        shown = ShownPage(
            self._next, kept, kind, page.url, page.title, seen.first, seen.end, links, of, hits
        )
        return shown, seen

    def _page_at(self, cursor: int) -> tuple[int, ShownPage]:
        # -1 is the last cursor.
        if cursor < 0 and self._pages:
            cursor = max(self._pages)
        page = self._pages.get(cursor)
        if page is None:
            shown = f"{min(self._pages)} to {max(self._pages)}" if self._pages else "none"
            raise NotThere(f"there is no cursor {cursor}; those shown: {shown}.")
        return cursor, page

    async def _content(self, page: ShownPage) -> tuple[Page, bool]:
        # The text of a page, and True if it had to be fetched again.
        host = urlsplit(page.url).hostname if page.url else None
        options = self._options
        may_read = is_within(host or "", options.domains) and options.rules.permits(host or "")
        if host is not None and not may_read:
            raise NotThere(f"{plain(page.url)} is not of a domain that may be read now.")
        content = await self._store.get(page.key)
        if content is not None:
            return content, False
        if not page.url:
            raise NotThere("these results are no longer kept: search or find again.")
        try:
            return await self._web.open(page.url, anew=False), True
        except FetchFailed as error:
            raise NotThere(f"{plain(page.url)} is no longer kept, and: {error}.") from error


class _Arguments:
    """Arguments as the model wrote them. Numbers may be text; null counts as absent."""

    def __init__(self, arguments: str) -> None:
        try:
            values = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError as error:
            raise BadCall(f"the arguments are not valid JSON ({error}). Call again.") from None
        if not isinstance(values, dict):
            raise BadCall("the arguments are not a JSON object. Call again.")
        self._values = values

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def url(self, name: str) -> str | None:
        """Return an argument that is text but no number."""
        value = self.text(name).strip()
        return value if value and _whole(value) is None else None

    def number(self, name: str, default: int) -> int:
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return default
        number = _whole(value)
        if number is None:
            raise BadCall(f"`{name}` is not a number.")
        return number


def _whole(value: object) -> int | None:
    # Accepts `3`, `3.0` and `"3"`; None for anything else.
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else None


async def _work(work: Callable[[], T], page: Page) -> T:
    # Long pages are processed in a thread.
    return await asyncio.to_thread(work) if len(page.text) > INLINE_CHARS_MAX else work()


def _with_note(seen: View, *, is_again: bool) -> str:
    return f"{seen.text}\n\n{CHANGED_NOTE}" if is_again else seen.text


def _opening(url: str) -> dict[str, Any]:
    return {"type": "open_page", "url": url} if url else {"type": "open_page"}


def _finding(url: str, pattern: str) -> dict[str, Any]:
    return {"type": "find_in_page", "url": url, "pattern": pattern}


def _plain_url(url: str) -> str:
    # Without the parts that do not change the page.
    return url.partition("#")[0].rstrip("/")


def _is_url(text: str) -> bool:
    try:
        return bool(urlsplit(text).scheme)
    except ValueError:
        return False


def _results(query: str, hits: Sequence[Hit]) -> Page:
    parts = [f"# Search results for `{plain(query)}`"]
    for number, hit in enumerate(hits):
        domain = urlsplit(hit.url).hostname
        lines = hit.snippet.splitlines()[:SNIPPET_LINES]
        when = f" ({hit.published})" if hit.published else ""
        parts.append("\n".join([f"* {link(number, hit.title, domain)}{when}", *lines]))
    return Page("", query, "\n\n".join(parts), tuple(hit.url for hit in hits))


def _match_lines(text: str) -> list[int]:
    marks = (line.partition("†match at L")[2].rstrip("】") for line in text.splitlines())
    return [int(mark) for mark in marks if mark.isdecimal()]


PREFIX: Final = "builtin:browser."
HEAD_IDS_MAX: Final = 1024
"""Ids of cursor, title and URL beside the lines."""
HITS: Final[dict[SearchContextSize, int]] = {"low": 5, "medium": 10, "high": 20}
VIEW_IDS: Final[dict[SearchContextSize, int]] = {"low": 512, "medium": 1024, "high": 2048}
_PAGE: Final = TypeAdapter(ShownPage)


class BrowserTools:
    def __init__(
        self,
        workplace: Workplace,
        cache: Cache,
        *,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        # `close` closes the connections of the workplace.
        self._workplace = workplace
        self._cache = cache
        self._close = close

    def session(self, scope: ToolScope) -> BrowserSession:
        # The scope must grant a browser.
        return BrowserSession(scope, self._workplace, self._cache)

    async def check(self) -> str:
        return f"web search by {', '.join(one.name for one in self._workplace.search.sources)}"

    async def close(self) -> None:
        # No session may be in use.
        if self._close is not None:
            await self._close()


class BrowserSession(ToolSession):
    def __init__(self, scope: ToolScope, workplace: Workplace, cache: Cache) -> None:
        grant = scope.grants.browser or BrowserGrant("web_search")
        self._earlier = (*grant.pages, *_pages_of(scope.states))
        self._shown: dict[int, ShownPage] = {}
        """By the ordinal of the call."""
        kept = KeptPages(workplace.database, cache, scope.tenant_id)
        self._store = kept if scope.stored else SessionPages(kept, scope.response, scope.values)
        domains = grant.allowed_domains
        rules = DomainRules(grant.tenant_domains, grant.denied_domains)
        self._web = TenantWeb(
            workplace, scope.tenant_id, self._store, domains, grant.is_live, rules
        )
        self._options = BrowserOptions(
            count_ids=scope.count_ids,
            view_ids_max=VIEW_IDS[grant.context_size],
            hits=HITS[grant.context_size],
            domains=domains or rules.allowed,
            rules=rules,
            country=grant.country,
            user_urls=grant.urls,
            only_seen_urls=grant.opens == "known",
        )

    @override
    def start(self, call: ToolCall) -> ToolStart:
        action = self._browser(call).action(_function(call), call.arguments)
        return ToolStart(repeatable=True, shown={"action": action})

    @override
    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        # Failures are shown to the model.
        shown = await self._browser(call).call(_function(call), call.arguments)
        if shown.page is not None:
            self._shown[call.ordinal] = shown.page
        return ToolResult(
            output=shown.text,
            outcome="tool_error" if shown.failed else "ok",
            shown={"action": _action(shown)},
            state={} if shown.page is None else {"page": asdict(shown.page)},
            ids_max=self._options.view_ids_max + HEAD_IDS_MAX,
        )

    @override
    async def close(self) -> None:
        # Stored pages stay for later responses.
        if isinstance(self._store, SessionPages):
            self._store.close()

    def _browser(self, call: ToolCall) -> Browser:
        # With the pages that were shown before this call; the call may be one that runs again.
        own = [page for ordinal, page in self._shown.items() if ordinal < call.ordinal]
        pages = (*self._earlier, *own)
        return Browser(pages, web=self._web, store=self._store, options=self._options)


def _function(call: ToolCall) -> Function:
    return cast("Function", call.name.removeprefix(PREFIX))


def _action(shown: Shown) -> Mapping[str, Any]:
    if shown.action["type"] != "search":
        return shown.action
    return {**shown.action, "sources": [{"type": "url", "url": url} for url in shown.sources]}


def _pages_of(states: Sequence[Mapping[str, Any]]) -> Iterator[ShownPage]:
    # Yield the pages that earlier calls showed. A damaged state has no page.
    for state in states:
        try:
            yield _PAGE.validate_python(state.get("page"))
        except ValidationError:
            continue
