"""Tools of the MCP servers that a request names. A server that does not answer costs its tools, not
the response. Its text comes from a stranger: it is bounded, cleaned, and never believed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import orjson

from gateway.cache import LruCache
from gateway.entries import ToolsListed
from gateway.json_output import lasting_json
from gateway.protocol.grants import McpTool, ServerGrant
from gateway.protocol.hosted_tools import ApprovalFilters, ToolFilter
from gateway.protocol.tool_types import FUNCTION_NAME
from gateway.telemetry.logs import EventLog
from gateway.tools.mcp.failures import INTERNAL_ERROR, McpError
from gateway.tools.mcp.servers import ANY_URL, kept_secrets, outgoing_headers, refusal
from gateway.tools.mcp.session import ToolPages
from gateway.tools.result_text import bounded, shown_in_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.protocol.hosted_tools import ApprovalMode, McpServerTool
    from gateway.tenancy import TenantId
    from gateway.tools.mcp.failures import ErrorType
    from gateway.tools.mcp.servers import McpServer, ServerResolver, UrlTerms
    from gateway.tools.mcp.session import McpLimits, ServerTool
    from gateway.tools.mcp.session_pool import Peer, SessionPool

SERVER_DESCRIPTION_CHARS_MAX: Final = 2048
TOOL_DESCRIPTION_CHARS_MAX: Final = 1024
SCHEMA_DEPTH_MAX: Final = 32
REASON_CHARS_MAX: Final = 500
TTL_S_MAX: Final = 24 * 3600.0
VALUE_BYTES: Final = 64
"""Memory of a member or an element beside its text."""
_log = EventLog(__name__)
_TEXTS: Final = frozenset({"description", "title", "$comment"})
_HINTS: Final = frozenset({"default", "examples", "example"})
"""Keywords that nothing follows from."""
_VALUES: Final = frozenset({"enum", "const"})
_NAMING: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)
"""Keywords whose value has names as its keys."""
_ANY: Final[dict[str, Any]] = {"type": "object", "properties": {}}


Matches = Callable[[str, bool], bool]
"""From a tool's name, and whether it only reads."""


def matches(wanted: ToolFilter | None) -> Matches:
    if wanted is None:
        return lambda _name, _is_read_only: True
    names = None if wanted.tool_names is None else frozenset(wanted.tool_names)
    return lambda name, is_read_only: (
        (names is None or name in names) and wanted.read_only in {None, is_read_only}
    )


def needs_approval(rule: ApprovalMode | ApprovalFilters | None) -> Matches:
    """Return the rule of calls that need approval: all, except those that `never` matches and
    `always` does not. An empty `never`, which would match every tool, counts as none.
    """
    if not isinstance(rule, ApprovalFilters):
        return lambda _name, _is_read_only: rule != "never"
    always = None if rule.always is None else matches(rule.always)
    has_filter = rule.never is not None and rule.never.model_dump(exclude_none=True)
    never = matches(rule.never) if has_filter else None
    return lambda name, is_read_only: (
        (always is not None and always(name, is_read_only))
        or never is None
        or not never(name, is_read_only)
    )


@dataclass(frozen=True, slots=True)
class RequestedServer:
    """Tool of type `mcp`, and its path, such as `tools[0]`."""

    tool: McpServerTool
    param: str
    sent: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, tool: McpServerTool, param: str) -> RequestedServer:
        sent = outgoing_headers(tool.headers or {}, tool.authorization, param)
        return cls(tool, param, sent)

    @property
    def label(self) -> str:
        return self.tool.server_label


@dataclass(frozen=True, slots=True)
class Listing:
    """Result for one server. `shown` are its tools as clients see them."""

    grant: ServerGrant
    shown: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    error_code: ErrorType | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def entry(self) -> ToolsListed:
        error = b"" if self.error is None else lasting_json(self.error)
        return ToolsListed(self.grant.label, lasting_json(list(self.shown)), error)


@dataclass(frozen=True, slots=True)
class _Kept:
    pages: ToolPages
    until: float
    requested_at: float


class _Asking:
    """Lock and last failure, shared by those that wait for the same list."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failure: McpError | None = None
        self.failed_at = -inf


class McpServers:
    def __init__(self, resolver: ServerResolver, sessions: SessionPool, limits: McpLimits) -> None:
        self.resolver = resolver
        self._sessions = sessions
        self._limits = limits
        self._kept: LruCache[Peer, _Kept] = LruCache(size_max=limits.cache_bytes_max)
        self._asking: WeakValueDictionary[Peer, _Asking] = WeakValueDictionary()
        sessions.on_list_changed = self._forget

    async def list(
        self,
        tenant_id: TenantId,
        entries: Sequence[RequestedServer],
        terms: UrlTerms = ANY_URL,
        *,
        anew: bool = False,
    ) -> Sequence[Listing]:
        """List the tools of each server, in order. `anew` bypasses the cache.

        Raises `StoreError`, and `InvalidRequest` for a server that may not be used.
        """
        servers = [
            await self.resolver.resolve(
                tenant_id, one.label, one.tool.server_url, terms=terms, param=one.param
            )
            for one in entries
        ]
        for one, server in zip(entries, servers, strict=True):
            _refuse_replaced(one, server)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._list_server(tenant_id, one, server, anew=anew))
                for one, server in zip(entries, servers, strict=True)
            ]
        return self._within_tools_max([one.result() for one in running])

    async def instructions(self, tenant_id: TenantId, server: McpServer) -> str:
        """Return instructions for the prompt. Raises `McpError`."""
        pages = await self._pages(server.peer(tenant_id, {}))
        return bounded(pages.instructions, SERVER_DESCRIPTION_CHARS_MAX)

    async def _list_server(
        self, tenant_id: TenantId, entry: RequestedServer, server: McpServer, *, anew: bool
    ) -> Listing:
        grant = ServerGrant(
            label=entry.label,
            server=server.identity,
            credential=self.resolver.credential(entry.sent),
            description=bounded(entry.tool.server_description or "", SERVER_DESCRIPTION_CHARS_MAX),
        )
        secrets = kept_secrets(server, entry.sent)
        try:
            pages = await self._pages(server.peer(tenant_id, entry.sent), anew=anew)
            granted, shown = self._grant_tools(pages.tools, entry, server)
        except McpError as error:
            _log.info("an MCP server listed no tools", reason=error.type, code=str(error.code))
            return _failed_listing(grant, error, secrets)
        granting = ServerGrant(
            grant.label, grant.server, grant.credential, grant.description, granted
        )
        return Listing(granting, shown, secrets=secrets)

    async def _pages(self, peer: Peer, *, anew: bool = False) -> ToolPages:
        # From the cache while it is fresh. Raises `McpError`.
        asking = self._asking.get(peer)
        if asking is None:
            asking = self._asking[peer] = _Asking()
        clock = asyncio.get_running_loop().time
        came_at = clock()
        async with asking.lock:
            kept = self._kept.get(peer)
            may_be_older = not anew or (kept is not None and kept.requested_at >= came_at)
            if kept is not None and kept.until > clock() and may_be_older:
                return kept.pages
            if (failure := asking.failure) is not None and asking.failed_at >= came_at:
                # Or a server that hangs would keep each of those who wait for as long again.
                raise McpError(failure.type, failure.code, str(failure), sent=failure.sent)
            requested_at = clock()
            try:
                pages = await self._sessions.list_tools(peer)
            except McpError as error:
                asking.failure, asking.failed_at = error, clock()
                raise
            kept = self._kept.get(peer)
            if kept is not None and kept.requested_at >= requested_at:
                return pages  # the server has changed its tools since: they are asked for again
            kept = _Kept(pages, clock() + self._ttl_s(pages), requested_at)
            size = sum(map(_held_bytes, pages.tools)) + len(pages.instructions) + VALUE_BYTES
            self._kept.put(peer, kept, size=size)
            return pages

    def _ttl_s(self, pages: ToolPages) -> float:
        # The SDK's servers send 0 by default, so 0 means no value.
        return min(pages.ttl_s, TTL_S_MAX) or self._limits.ttl_s

    def _forget(self, peer: Peer) -> None:
        # The server's tools have changed: what was requested before counts no more.
        now = asyncio.get_running_loop().time()
        self._kept.put(peer, _Kept(ToolPages(()), 0.0, now), size=1)

    def _grant_tools(
        self, tools: Sequence[ServerTool], entry: RequestedServer, server: McpServer
    ) -> tuple[tuple[McpTool, ...], tuple[dict[str, Any], ...]]:
        # Return the tools as granted and as shown. Raises `McpError` for too many tools.
        granted: list[McpTool] = []
        shown: list[dict[str, Any]] = []
        size = left_out = 0
        is_requested = matches(entry.tool.allowed_tools)
        asks = needs_approval(entry.tool.require_approval)
        for tool in tools:
            # The server's own list can only narrow the tools that may be called, so a lie gains it
            # nothing.
            is_offered = server.allowed_tools is None or tool.name in server.allowed_tools
            if not is_offered or not is_requested(tool.name, tool.read_only):
                continue
            made = _tool(tool, entry.label, server, asks)
            if made is None:
                left_out += 1
                continue
            granted.append(made)
            shown.append(_tool_body(made, tool))
            size += len(orjson.dumps(made.parameters))
        if left_out:
            _log.info("tools of an MCP server cannot be offered", count=left_out)
        if size > self._limits.schema_bytes_max:
            raise _too_much(f"schemas of {size} bytes, of {self._limits.schema_bytes_max} at most")
        if len(granted) > self._limits.tools_max:
            raise _too_much(f"{len(granted)} tools, of {self._limits.tools_max} at most")
        return tuple(granted), tuple(shown)

    def _within_tools_max(self, listings: Sequence[Listing]) -> Sequence[Listing]:
        # Servers that do not fit into what the earlier ones leave have no tools.
        left = self._limits.tools_max
        kept = []
        for listing in listings:
            count = len(listing.grant.tools)
            if count <= left:
                left -= count
                kept.append(listing)
                continue
            grant = listing.grant
            bare = ServerGrant(grant.label, grant.server, grant.credential, grant.description)
            error = _too_much(f"tools of all servers: {self._limits.tools_max} at most")
            kept.append(_failed_listing(bare, error, listing.secrets))
        return kept


def _held_bytes(tool: ServerTool) -> int:
    # About what it takes of memory: many times its text, if that is brackets.
    schema = str(tool.input_schema)
    values = schema.count(",") + schema.count("{") + schema.count("[")
    return VALUE_BYTES * (1 + values) + len(schema) + len(tool.description)


def _refuse_replaced(entry: RequestedServer, server: McpServer) -> None:
    # A request does not replace the operator's headers.
    both = sorted(entry.sent.keys() & server.headers.keys())
    if both:
        message = (
            f"The MCP server '{entry.label}' has credentials of its own for '{both[0]}': leave "
            "it out."
        )
        raise refusal(message, f"{entry.param}.headers")


def _tool(tool: ServerTool, label: str, server: McpServer, asks: Matches) -> McpTool | None:
    # None for a tool that no model could call.
    if not FUNCTION_NAME.fullmatch(f"{label}.{tool.name}"):
        return None
    parameters = _parameters(tool.input_schema)
    if parameters is None:
        return None
    description = bounded(tool.description, TOOL_DESCRIPTION_CHARS_MAX)
    is_read_only = server.is_trusted and tool.read_only
    return McpTool(
        name=tool.name,
        parameters=parameters,
        description=description,
        digest=_digest(tool.name, description, parameters),
        is_read_only=is_read_only,
        is_idempotent=server.is_trusted and tool.idempotent,
        needs_approval=server.always_asks or asks(tool.name, is_read_only),
    )


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    # Removes hidden instructions from the texts of a schema. None for a schema that is not of an
    # object, is too deep, cannot be stored, or has unclean names or values.
    if not schema:
        return dict(_ANY)
    if schema.get("type", "object") != "object":
        return None
    try:
        cleaned = _clean(dict(schema), SCHEMA_DEPTH_MAX)
        orjson.dumps(cleaned)
    except (TypeError, ValueError):
        return None
    made: dict[str, Any] = {"type": "object", **cleaned}
    return made


def _clean(value: Any, depth_left: int, *, is_named: bool = False) -> Any:
    # `is_named`: the keys are names that the server chose. Texts are cleaned; names and values mean
    # something to the server, so unclean ones are refused. Raises `ValueError`.
    if depth_left < 0:
        raise ValueError("the schema is nested too deeply")
    if isinstance(value, dict):
        # The value of each name that the server chose is a schema, even if it is a keyword.
        return {
            _require_visible(key): _clean(inner, depth_left - 1)
            if is_named
            else _member(key, inner, depth_left - 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_clean(inner, depth_left - 1) for inner in value]
    return _require_visible(value) if isinstance(value, str) else value


def _member(keyword: str, value: Any, depth_left: int) -> Any:
    if keyword in _TEXTS and isinstance(value, str):
        return bounded(value, TOOL_DESCRIPTION_CHARS_MAX)
    if keyword in _HINTS:
        return _shown_hint(value, depth_left)
    if keyword in _VALUES:
        _shown_hint(value, depth_left)
        _require_visible(orjson.dumps(value).decode())
        return value
    return _clean(value, depth_left, is_named=keyword in _NAMING)


def _shown_hint(value: Any, depth_left: int) -> Any:
    # Hints only advise a reader, so their texts are cleaned at any depth. Raises `ValueError`.
    if depth_left < 0:
        raise ValueError("the schema is nested too deeply")
    if isinstance(value, dict):
        return {
            shown_in_json(key): _shown_hint(inner, depth_left - 1) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_shown_hint(inner, depth_left - 1) for inner in value]
    return shown_in_json(value) if isinstance(value, str) else value


def _require_visible(text: str) -> str:
    if shown_in_json(text) != text:
        raise ValueError("the schema has characters that nobody sees")
    return text


def _digest(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    content = orjson.dumps([name, description, parameters], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()


def _tool_body(made: McpTool, tool: ServerTool) -> dict[str, Any]:
    # Absent fields are left out, for clients that accept no null there.
    annotations = _clean(dict(tool.annotations), 1)
    shown = {"name": made.name, "input_schema": made.parameters, "description": made.description}
    return shown | ({"annotations": annotations} if annotations else {})


def _too_much(what: str) -> McpError:
    hint = "name those that are needed in 'allowed_tools'"
    return McpError("mcp_protocol_error", INTERNAL_ERROR, f"it offers too much ({what}): {hint}")


def _failed_listing(grant: ServerGrant, error: McpError, secrets: Mapping[str, str]) -> Listing:
    message = _failure_message(grant.label, error)
    return Listing(grant, error=message, error_code=error.type, secrets=secrets)


def _failure_message(label: str, error: McpError) -> str:
    why = bounded(str(error), REASON_CHARS_MAX)
    return f"The tools of the MCP server '{label}' could not be listed: {why}."
