"""Built-in tools of the model that an operator's MCP server does the work of.

    browser    the server's tools `search`, `open` and `find`
    python     its tool `python`, which takes the code
    search     its tool `search`, which the gateway's own browser asks for hits

As vLLM does, the server is told in `x-session-id` which response a call is of, so that it can keep
pages and variables apart. So each response has a connection of its own.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.errors import StoreError
from gateway.store.tools.mcp_servers import OPERATOR
from gateway.tools.contract import ToolResult, ToolStart
from gateway.tools.mcp.browsing import Browsing, NotShown
from gateway.tools.mcp.failures import McpError
from gateway.tools.mcp.results import cut, plain
from gateway.tools.mcp.tool import NOBODY_KNOWS, call_meta, outcome_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.entries import ToolOutcome
    from gateway.tools.contract import ToolCall, ToolScope
    from gateway.tools.mcp.pool import Peer, SessionPool
    from gateway.tools.mcp.results import CallResult
    from gateway.tools.mcp.servers import McpServer, Purpose, Registry
    from gateway.tools.mcp.tool import McpLimits

BROWSER: Final = "builtin:browser."
PYTHON: Final = "builtin:python"
SESSION_ID: Final = "x-session-id"
URL_CHARS_MAX: Final = 2048
NO_STATE: Final[Mapping[str, Any]] = MappingProxyType({})


class McpBuiltins:
    """The browser and Python, where operators registered MCP servers for them."""

    def __init__(self, registry: Registry, sessions: SessionPool, limits: McpLimits) -> None:
        self._registry = registry
        self._sessions = sessions
        self._limits = limits

    def session(self, scope: ToolScope) -> BuiltinSession:
        # Connects to nothing before the first call.
        return BuiltinSession(scope, self._registry, self._sessions, self._limits)


class BuiltinSession:
    """The built-in tools of one response."""

    def __init__(
        self, scope: ToolScope, registry: Registry, sessions: SessionPool, limits: McpLimits
    ) -> None:
        self._scope = scope
        self._registry = registry
        self._sessions = sessions
        self._limits = limits
        self._peers: set[Peer] = set()
        self._browsing = Browsing(scope.grants.browser, scope.states)

    def start(self, call: ToolCall) -> ToolStart:
        # The browser only reads; Python code may have any effect.
        if call.name == PYTHON:
            return ToolStart(repeatable=False)
        return ToolStart(repeatable=True, shown={"action": _action(call, "")})

    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:  # noqa: ARG002 - there is none
        """Run a call; every failure of the server becomes a result."""
        purpose: Purpose = "python" if call.name == PYTHON else "browser"
        given = {"code": call.arguments} if purpose == "python" else _object(call.arguments)
        if given is None:
            return self._end_call(call, "The arguments are not a JSON object.", "tool_error")
        try:
            server = await self._registry.for_purpose(self._scope.tenant_id, purpose)
        except StoreError:
            server = None
        if server is None:
            return self._end_call(call, "The tool is not available now.", "refused")
        try:
            if purpose == "python":
                return await self._run_python(call, server, given)
            return await self._browse(call, server, given)
        except McpError as error:
            return self._failure(call, error)

    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:  # noqa: ARG002
        # Servers have no handles for their calls.
        return None

    async def close(self) -> None:
        # Its connections carry the id of this response, so no other session can use them.
        for peer in self._peers:
            self._sessions.retire(peer)

    async def _run_python(
        self, call: ToolCall, server: McpServer, given: Mapping[str, Any]
    ) -> ToolResult:
        result = await self._call_server(call, server, "python", given)
        output = plain(cut(result.output, self._limits.output_bytes_max))
        return self._end_call(call, output, "tool_error" if result.is_error else "ok")

    async def _browse(
        self, call: ToolCall, server: McpServer, given: Mapping[str, Any]
    ) -> ToolResult:
        # The server gets its own cursors, not those of the model.
        function, browsing = call.name.removeprefix(BROWSER), self._browsing
        if (refusal := browsing.refusal(given)) is not None:
            return self._end_call(call, refusal, "refused")
        try:
            cursor = browsing.cursor(function, given)
            if cursor is not None:
                if (url := browsing.url_of(cursor)) is not None:
                    opened = await self._call_server(call, server, "open", {"id": url})
                    browsing.opened(cursor, "" if opened.is_error else opened.output)
                given = {**given, "cursor": browsing.theirs(cursor)}
            result = await self._call_server(call, server, function, given)
            output = plain(cut(result.output, self._limits.output_bytes_max))
            if result.is_error:
                return self._end_call(call, output, "tool_error")
            shown, state = browsing.shown(function, output, cursor)
            return self._end_call(call, shown, state=state)
        except NotShown as error:
            return self._end_call(call, str(error), "tool_error")

    async def _call_server(
        self, call: ToolCall, server: McpServer, name: str, given: Mapping[str, Any]
    ) -> CallResult:
        response = self._scope.response
        session_id = {SESSION_ID: ids.response_id(response)}
        peer = server.peer(self._scope.tenant_id, session_id, response)
        self._peers.add(peer)
        timeout_s = server.call_timeout_s or self._limits.call_timeout_s
        meta = call_meta(response, call.ordinal, timeout_s)
        return await self._sessions.call(peer, name, given, timeout_s=timeout_s, meta=meta)

    def _failure(self, call: ToolCall, error: McpError) -> ToolResult:
        outcome = outcome_of(error, only_reads=call.name != PYTHON)
        told = f"The tool gave no result: {plain(str(error))}."
        if call.name == PYTHON and error.sent and outcome in {"unknown", "timeout"}:
            told = f"{told} {NOBODY_KNOWS}"
        return self._end_call(call, told, outcome)

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
    """Return a function that calls the tool `search` of the operator's server.

    It maps arguments to the tool's output, and raises `McpError` where there is no server, or where
    the call fails.
    """

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
        given = orjson.loads(written.encode("utf-8", "surrogatepass") or b"{}")
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


def _action(call: ToolCall, url: str) -> dict[str, Any]:
    # `url` is that of the page that was shown.
    given = _object(call.arguments) or {}
    match call.name.removeprefix(BROWSER):
        case "search":
            query = _text(given.get("query"))
            return {"type": "search", "query": query, "queries": [query], "sources": []}
        case "find":
            return {"type": "find_in_page", "url": url, "pattern": _text(given.get("pattern"))}
        case _:
            asked = given.get("id")
            named = asked if isinstance(asked, str) and "://" in asked else ""
            return {"type": "open_page", "url": _text(url or named) or None}


def _text(value: object) -> str:
    return plain(value[:URL_CHARS_MAX]) if isinstance(value, str) else ""
