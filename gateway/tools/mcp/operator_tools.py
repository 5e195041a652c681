"""Built-in tools of the model that an operator's MCP server executes.

As in vLLM, the header `x-session-id` identifies the response, so that the server can keep pages and
variables apart: each response has a connection of its own. The server numbers its cursors anew in
each, while the model's continue along the chain of responses: they are translated, and an earlier
page is opened again before its first use.

If the domains are restricted, a display is withheld unless its header names an allowed domain.
Title and URL are untrusted: if a header can be read in several ways, each must be of an allowed
domain, and none is cited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from gateway import ids
from gateway.errors import StoreError
from gateway.protocol.grants import EVERY_DOMAIN, BrowserGrant, DomainRules, ShownPage, is_within
from gateway.store.tools.mcp_servers import OPERATOR
from gateway.tools.egress.network_policy import requested_host
from gateway.tools.mcp.failures import McpError
from gateway.tools.mcp.server_tools import call_meta, described_failure
from gateway.tools.result_text import cut, plain
from gateway.tools.tool_contract import ToolResult, ToolSession, ToolStart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gateway.entries import ToolOutcome
    from gateway.tools.mcp.servers import McpServer, Purpose, Registry
    from gateway.tools.mcp.session import CallResult, McpLimits
    from gateway.tools.mcp.session_pool import Peer, SessionPool
    from gateway.tools.tool_contract import ToolCall, ToolScope, ToolState


TITLE_CHARS_MAX: Final = 300
CLOSED: Final = "The web cannot be reached in this response. Answer without it."
WITHHELD: Final = "Error: the domain is not among those that may be read."
_DISPLAY: Final = re.compile(
    r"\[(?P<cursor>\d{1,9})\] (?P<head>.{0,4096}?)\n"
    r"\*\*viewing lines \[(?P<first>\d{1,9}) - (?P<last>\d{1,9})\] of \d{1,9}\*\*",
    re.DOTALL,
)
"""Heading of openai/gpt-oss, simple_browser_tool.py."""
_VIEWING: Final = "**viewing lines ["
_URL_BEGIN: Final = re.compile(
    r"(?:^|\s)\((?=(?:view-source:)*[a-z][a-z0-9+.-]*://)", re.IGNORECASE
)
_BEFORE_URL: Final = re.compile(r"[\x00- ]*(?:view-source:)*", re.IGNORECASE)
_WEB: Final = ("http", "https")
_SPACE: Final = re.compile(r"\s")
_PAGE: Final = TypeAdapter(ShownPage)
_KINDS: Final = {"search": "search", "find": "find"}


class NotShown(Exception):
    """Refusal of a page. The message is for the model."""


@dataclass(frozen=True, slots=True)
class Display:
    """Head of a page. `urls` are all readings of it."""

    cursor: int
    title: str
    urls: tuple[str, ...]
    first: int
    last: int

    def page(self, function: str) -> dict[str, Any]:
        # State of the call, so that the page can be cited.
        return {
            "cursor": self.cursor,
            "key": "",
            "kind": _KINDS.get(function, "page"),
            "url": self.urls[0] if len(self.urls) == 1 else "",
            "title": self.title[:TITLE_CHARS_MAX],
            "first": self.first,
            "end": self.last + 1,
        }


class Browsing:
    """Pages that one response was shown, or may be."""

    def __init__(self, grant: BrowserGrant | None, states: Sequence[ToolState]) -> None:
        # `states` are those of the calls that ended before.
        self._grant = grant = grant or BrowserGrant("web_search")
        self._rules = DomainRules(grant.tenant_domains, grant.denied_domains)
        self._domains = grant.allowed_domains
        self._is_bound = bool(self._domains) or self._rules != EVERY_DOMAIN
        """Not every domain may be read."""
        self._pages = {page.cursor: page for page in grant.pages}
        self._theirs: dict[int, int] = {}
        """The server's cursors of the pages that its session has."""
        self._is_in_step = True
        """The model and the server were last at the same page."""
        for state in states:
            self._remember(state)
        self._next = 1 + max(self._pages, default=-1)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Return why a call must not be made."""
        if not self._grant.is_live:
            return CLOSED
        url = arguments.get("id")
        if not isinstance(url, str) or not self._is_bound:
            return None
        is_allowed = _host(url) is not None and self._may_read(url)
        return None if is_allowed else "The domain is not among those that may be read."

    def cursor(self, function: str, arguments: Mapping[str, Any]) -> int | None:
        """Return the cursor that a call refers to; None: none, or one that the server knows.

        Raises `NotShown`.
        """
        if function == "search" or isinstance(arguments.get("id"), str):
            return None
        number = arguments.get("cursor")
        is_named = isinstance(number, int) and number >= 0
        if is_named and number not in self._pages:
            shown = f"{min(self._pages)} to {max(self._pages)}" if self._pages else "none"
            raise NotShown(f"Error: there is no cursor {number}; those shown: {shown}.")
        last = max(self._pages, default=None)
        if not is_named and (last is None or (last in self._theirs and self._is_in_step)):
            return None
        return number if is_named else last

    def url_of(self, cursor: int) -> str | None:
        """Return the URL to open before the server knows this page. Raises `NotShown`."""
        if cursor in self._theirs:
            return None
        page = self._pages[cursor]
        if page.kind != "page" or "://" not in page.url:
            raise NotShown(f"Error: the results [{cursor}] are no longer kept: search again.")
        if not self._may_read(page.url):
            raise NotShown(WITHHELD)
        return page.url

    def theirs(self, cursor: int) -> int:
        return self._theirs[cursor]

    def opened(self, cursor: int, output: str) -> None:
        """Record that an earlier page was opened again. Raises `NotShown`."""
        display = display_of(output)
        if display is None:
            raise NotShown(f"Error: the page [{cursor}] is no longer there: search again.")
        self._theirs[cursor] = display.cursor
        self._is_in_step = False

    def shown(self, function: str, output: str, about: int | None) -> tuple[str, dict[str, Any]]:
        """Return what the model sees, and the state of the call.

        `about` None: the last cursor. Raises `NotShown` for a page that may not be read.
        """
        display = display_of(output)
        if not self._may_show(function, display, about) and _VIEWING in output:
            # The server is at this page now, and the model at the one before.
            self._is_in_step = False
            raise NotShown(WITHHELD)
        if display is None:
            return output, {}
        page = display.page(function)
        if function == "find" and (searched := self._searched(about)) is not None:
            # gpt-oss's browser gives results of a find a URL that leads nowhere.
            page |= {"url": "", "of": searched.cursor}
        state = {"page": {**page, "cursor": self._next}, "theirs": page["cursor"]}
        self._remember(state)
        self._is_in_step = True
        shown = f"[{self._next}]{output.partition(']')[2]}"
        self._next += 1
        return shown, state

    def address(self, page: Mapping[str, Any]) -> str:
        """Return the URL of a page; for results of a find, that of their page."""
        searched = self._pages.get(page.get("of", -1))
        return str(page["url"]) if searched is None else searched.url

    def _searched(self, cursor: int | None) -> ShownPage | None:
        # The page that the search was on; None: only the server knows.
        last = max(self._pages, default=-1)
        page = self._pages.get(last if cursor is None else cursor)
        if page is not None and page.of is not None:
            return self._pages.get(page.of)
        return page

    def _remember(self, state: ToolState) -> None:
        try:
            page = _PAGE.validate_python(state.get("page"))
        except ValidationError:
            return
        self._pages[page.cursor] = page
        if isinstance(theirs := state.get("theirs"), int):
            self._theirs[page.cursor] = theirs

    def _may_show(self, function: str, display: Display | None, about: int | None) -> bool:
        if not self._is_bound:
            return True
        if display is None:
            return False
        if display.urls:
            return all(map(self._may_read, display.urls))
        # Results have no URL. They are of a page that was shown, or of a search.
        last = max(self._pages, default=-1)
        page = self._pages.get(last if about is None else about)
        return function in _KINDS or (page is not None and not page.url)

    def _may_read(self, url: str) -> bool:
        # A page that is on no host of the web may be read.
        host = _host(url)
        if host is None or not self._is_bound:
            return True
        return bool(host) and is_within(host, self._domains) and self._rules.permits(host)


def display_of(output: str) -> Display | None:
    """Parse the page header of an output."""
    match = _DISPLAY.match(output)
    if match is None:
        return None
    head = match["head"].rstrip()
    begins = list(_URL_BEGIN.finditer(head)) if head.endswith(")") else []
    urls = (_address(head[one.end() : -1]) for one in begins)
    title = head[: begins[0].start()] if begins else head.removesuffix("()")
    return Display(
        int(match["cursor"]),
        " ".join(title.split()),
        tuple(urls),
        int(match["first"]),
        int(match["last"]),
    )


def _address(url: str) -> str:
    # A URL as a server shows it → one that can be linked to.
    return _SPACE.sub(lambda one: quote(one[0]), _BEFORE_URL.sub("", url, count=1))


def _host(url: str) -> str | None:
    # None for a URL that is not of the web; empty if clients may disagree on its host.
    address = _BEFORE_URL.sub("", url, count=1)
    if address.partition(":")[0].lower() not in _WEB:
        return None
    try:
        netloc, host = urlsplit(address).netloc, requested_host(address)
    except ValueError:
        return ""
    return "" if {"@", "\\"}.intersection(netloc) else host


BROWSER: Final = "builtin:browser."
PYTHON: Final = "builtin:python"
SESSION_ID: Final = "x-session-id"
URL_CHARS_MAX: Final = 2048
NO_STATE: Final[Mapping[str, Any]] = MappingProxyType({})


class BuiltinSession(ToolSession):
    def __init__(
        self, registry: Registry, sessions: SessionPool, limits: McpLimits, scope: ToolScope
    ) -> None:
        self._scope = scope
        self._registry = registry
        self._sessions = sessions
        self._limits = limits
        self._peers: set[Peer] = set()
        self._browsing = Browsing(scope.grants.browser, scope.states)

    @override
    def start(self, call: ToolCall) -> ToolStart:
        # The browser only reads; Python code may have any effect.
        if call.name == PYTHON:
            return ToolStart(repeatable=False)
        return ToolStart(repeatable=True, shown={"action": _action(call, "")})

    @override
    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        purpose: Purpose = "python" if call.name == PYTHON else "browser"
        arguments = {"code": call.arguments} if purpose == "python" else _object(call.arguments)
        if arguments is None:
            return self._end_call(call, "The arguments are not a JSON object.", "tool_error")
        try:
            server = await self._registry.for_purpose(self._scope.tenant_id, purpose)
        except StoreError:
            server = None
        if server is None:
            return self._end_call(call, "The tool is not available now.", "refused")
        try:
            if purpose == "python":
                return await self._run_python(call, server, arguments)
            return await self._browse(call, server, arguments)
        except McpError as error:
            return self._failure(call, error)

    @override
    async def close(self) -> None:
        # Its connections carry the id of this response, so no other session can use them.
        for peer in self._peers:
            self._sessions.retire(peer)

    async def _run_python(
        self, call: ToolCall, server: McpServer, arguments: Mapping[str, Any]
    ) -> ToolResult:
        result = await self._call_server(call, server, "python", arguments)
        output = plain(cut(result.output, self._limits.output_bytes_max))
        return self._end_call(call, output, "tool_error" if result.is_error else "ok")

    async def _browse(
        self, call: ToolCall, server: McpServer, arguments: Mapping[str, Any]
    ) -> ToolResult:
        # The server gets its own cursors, not those of the model.
        function, browsing = call.name.removeprefix(BROWSER), self._browsing
        if (refusal := browsing.refusal(arguments)) is not None:
            return self._end_call(call, refusal, "refused")
        try:
            cursor = browsing.cursor(function, arguments)
            if cursor is not None:
                if (url := browsing.url_of(cursor)) is not None:
                    opened = await self._call_server(call, server, "open", {"id": url})
                    browsing.opened(cursor, "" if opened.is_error else opened.output)
                arguments = {**arguments, "cursor": browsing.theirs(cursor)}
            result = await self._call_server(call, server, function, arguments)
            output = plain(cut(result.output, self._limits.output_bytes_max))
            if result.is_error:
                return self._end_call(call, output, "tool_error")
            shown, state = browsing.shown(function, output, cursor)
            return self._end_call(call, shown, state=state)
        except NotShown as error:
            return self._end_call(call, str(error), "tool_error")

    async def _call_server(
        self, call: ToolCall, server: McpServer, name: str, arguments: Mapping[str, Any]
    ) -> CallResult:
        response = self._scope.response
        session_id = {SESSION_ID: ids.response_id(response)}
        peer = server.peer(self._scope.tenant_id, session_id, response)
        self._peers.add(peer)
        timeout_s = server.call_timeout_s or self._limits.call_timeout_s
        meta = call_meta(response, call.ordinal, timeout_s)
        return await self._sessions.call(peer, name, arguments, timeout_s=timeout_s, meta=meta)

    def _failure(self, call: ToolCall, error: McpError) -> ToolResult:
        outcome, _, text = described_failure(error, only_reads=call.name != PYTHON)
        return self._end_call(call, text, outcome)

    def _end_call(
        self,
        call: ToolCall,
        output: str,
        outcome: ToolOutcome = "ok",
        state: Mapping[str, Any] = NO_STATE,
    ) -> ToolResult:
        ids_max = self._limits.result_ids_max
        if call.name == PYTHON:
            outputs = [{"type": "logs", "logs": output}]
            return ToolResult(output, outcome, shown={"outputs": outputs}, ids_max=ids_max)
        url = self._browsing.address(state["page"]) if state else ""
        shown = {"action": _action(call, url)}
        return ToolResult(output, outcome, shown=shown, state=state, ids_max=ids_max)


def search_call(
    registry: Registry, sessions: SessionPool, *, timeout_s: float
) -> Callable[[Mapping[str, Any]], Awaitable[str]]:
    """Return a function that calls the operator's tool `search`, and raises `McpError`."""

    async def call(arguments: Mapping[str, Any]) -> str:
        server = await registry.for_purpose(OPERATOR, "search")
        if server is None:
            raise McpError("mcp_protocol_error", 0, "no server is registered to search with")
        peer = server.peer(OPERATOR, {})
        result = await sessions.call(peer, "search", arguments, timeout_s=timeout_s, meta={})
        if result.is_error:
            raise McpError("mcp_protocol_error", 0, plain(result.output[:200]))
        return result.output

    return call


def _object(written: str) -> dict[str, Any] | None:
    try:
        arguments = orjson.loads(written.encode("utf-8", "surrogatepass") or b"{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _action(call: ToolCall, url: str) -> dict[str, Any]:
    # `url` is that of the page that was shown.
    arguments = _object(call.arguments) or {}
    match call.name.removeprefix(BROWSER):
        case "search":
            query = _text(arguments.get("query"))
            return {"type": "search", "query": query, "queries": [query], "sources": []}
        case "find":
            return {"type": "find_in_page", "url": url, "pattern": _text(arguments.get("pattern"))}
        case _:
            page_id = arguments.get("id")
            named = page_id if isinstance(page_id, str) and "://" in page_id else ""
            return {"type": "open_page", "url": _text(url or named) or None}


def _text(value: object) -> str:
    return plain(value[:URL_CHARS_MAX]) if isinstance(value, str) else ""
