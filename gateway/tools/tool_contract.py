"""Interface between the engine and the tools that the gateway runs.

A process has one `HostedTools`; each response with grants has a `ToolSession` of its own, from its
first call to its end. A session never runs in the task of the run that calls it, and has no access
to the response's log: what has to outlive it is in what it returns.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from gateway.generation import BUILTIN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from gateway.cache import LruCache
    from gateway.entries import ToolOutcome
    from gateway.protocol.grants import Grants
    from gateway.tenancy import ProjectId, TenantId


ToolKind = Literal["browser", "python", "mcp"]
_BROWSER: Final = f"{BUILTIN_PREFIX}browser."


HOSTS_MAX: Final = 32
REACHED: Final[ContextVar[set[str]]] = ContextVar("tool_hosts_reached")
"""Hosts that the call of the current task sent something to, collected for the audit."""


def note_reached(host: str) -> None:
    """Record that a request was sent to this host. Does nothing outside of a call."""
    hosts = REACHED.get(None)
    if hosts is not None and len(hosts) < HOSTS_MAX:
        hosts.add(host)


def note_unreached(host: str) -> None:
    # Nothing came of the request for which `note_reached` was called.
    if (hosts := REACHED.get(None)) is not None:
        hosts.discard(host)


def kind_of(name: str) -> ToolKind:
    """Return the kind of the tool with this name, which selects its executor."""
    if name.startswith(_BROWSER):
        return "browser"
    return "python" if name.startswith(BUILTIN_PREFIX) else "mcp"


def server_of(name: str, grants: Grants | None) -> str:
    """Return who executes the tool's calls: an MCP server's identity, otherwise the kind."""
    kind, label = kind_of(name), name.partition(".")[0]
    if kind != "mcp" or grants is None:
        return kind
    return next((one.server for one in grants.servers if one.label == label), label)


async def _assured() -> None:
    # For a response that is not stored: it cannot be claimed by another process.
    pass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of a tool by the model. `name` is the tool's as rules know it: `builtin:browser.search`,
    `builtin:python`, or `label.tool` of an MCP server. `arguments` are exactly what the model
    wrote. `ordinal` counts the calls of the response that the gateway answers, from 0; `attempt`
    the attempts, from 1. `ids_max` is how many ids of its result there is room for in the context
    window; None: that is not known.
    """

    ordinal: int
    name: str
    arguments: str
    attempt: int = 1
    ids_max: int | None = None


@dataclass(frozen=True, slots=True)
class ToolStart:
    """Properties of a call before it runs. `repeatable`: it may run again if it is unknown how far
    it came. `shown`: the fields that its item shows from now on.
    """

    repeatable: bool
    shown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call. `output` is the text for the model, before it is cut; `ids_max` how many
    ids of it the model may read. `shown` are the fields that the item of the call shows in the end.
    `state` is what later calls need, of this response and of those that continue it.
    """

    output: str
    outcome: ToolOutcome = "ok"
    shown: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    ids_max: int = 8192


_NOT_MADE: Final = frozenset({"refused", "over_budget"})
_INVALID_REQUEST: Final = -32600
"""Source: https://www.jsonrpc.org/specification#error_object"""


def explained(name: str, result: ToolResult) -> ToolResult:
    """Return the result of a failed MCP call with an error in its item, if it has none.

    No server reported an error for a call that the gateway refused, gave up or lost, but the item
    has a field for one. Other results are returned unchanged.
    """
    if result.outcome in {"ok", "cancelled"} or result.shown or kind_of(name) != "mcp":
        return result
    error: dict[str, Any] = {"type": "http_error", "code": 0, "message": result.output}
    if result.outcome in _NOT_MADE:
        error |= {"type": "mcp_protocol_error", "code": _INVALID_REQUEST}
    elif result.outcome == "unknown":
        error["message"] = f"outcome unknown: {result.output}"
    return replace(result, shown={"output": None, "error": error})


ToolState = dict[str, Any]
"""The `state` of an ended call: `{"page": ShownPage as JSON}` of the browser, which citations are
resolved by; `{"container_id": ..., "files": {path: file id}}` of Python; and `bytes` of all, how
many it returned before they were cut."""


@dataclass(frozen=True, slots=True)
class ToolScope:
    """Scope of a session: its response, and what its tools may use. `project_id` None: the tenant's
    default project. `stored`: data that a tool keeps may outlive the response. Without it a tool
    may keep data in `values`, by keys of its own, for the responses that continue this one;
    `values` None: the data goes with the response. `states` are those of the calls that ended
    before the session began, `result_ids` how many ids their results are. `count_ids` returns how
    many ids a text is. `secrets` are those of the request for MCP servers, by label.

    `assured` returns once no other process may go on with the response for the next two seconds,
    and raises `ClaimLost` if one does: a tool awaits it right before a call leaves the process.
    """

    tenant_id: TenantId
    response: UUID
    grants: Grants
    stored: bool
    states: Sequence[ToolState]
    count_ids: Callable[[str], int]
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    result_ids: int = 0
    project_id: ProjectId | None = None
    values: LruCache[str, Any] | None = None
    assured: Callable[[], Awaitable[None]] = _assured


class ToolSession(Protocol):
    """The tools of one response. One call at a time.

    A subclass whose calls cannot be resumed, or that has nothing to free, need not say so.
    """

    def start(self, call: ToolCall) -> ToolStart:
        """Return the properties of a call before it runs. Does no I/O, and raises nothing."""
        ...

    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        """Run a call within its deadline. Cancelled when the response is.

        `on_handle` gets the handle by which the call can be resumed, if there is one. Any exception
        is a defect.
        """
        ...

    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:  # noqa: ARG002
        """Return the result of a call that another replica began; None if it is lost."""
        return None

    async def close(self) -> None:
        """Free the resources of the response, if it has any. Raises nothing."""
        return


class HostedTools(Protocol):
    """The tools that the gateway runs itself, of all responses."""

    def session(self, scope: ToolScope) -> ToolSession:
        """Create a session, which uses no resources before its first call."""
        ...


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """`HostedTools` made of a function that creates their sessions."""

    session: Callable[[ToolScope], ToolSession]
