"""Interface between the engine and the tools that the gateway runs.

A session never runs in the task of the run that calls it, and has no access to the response's log.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

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


INLINE_RESULT_CHARS: Final = 4096
"""Characters of a result that is tokenised without a thread."""
HOSTS_MAX: Final = 32
REACHED: Final[ContextVar[set[str]]] = ContextVar("tool_hosts_reached")
"""Hosts that the current call sent something to, for the audit."""


def note_reached(host: str) -> None:
    hosts = REACHED.get(None)
    if hosts is not None and len(hosts) < HOSTS_MAX:
        hosts.add(host)


def note_unreached(host: str) -> None:
    # Nothing came of the request for which `note_reached` was called.
    if (hosts := REACHED.get(None)) is not None:
        hosts.discard(host)


def kind_of(name: str) -> ToolKind:
    if name.startswith(_BROWSER):
        return "browser"
    return "python" if name.startswith(BUILTIN_PREFIX) else "mcp"


def server_of(name: str, grants: Grants | None) -> str:
    """Return an MCP server's identity, otherwise the kind."""
    kind, label = kind_of(name), name.partition(".")[0]
    if kind != "mcp" or grants is None:
        return kind
    return next((one.server for one in grants.servers if one.label == label), label)


async def _assured() -> None:
    # For a response that is not stored: it cannot be claimed by another process.
    pass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call by the model. `name` is `builtin:browser.search`, `builtin:python`, or `label.tool`.
    `ordinal` counts from 0. `ids_max`: room in the context window; None: unknown.
    """

    ordinal: int
    name: str
    arguments: str
    attempt: int = 1
    ids_max: int | None = None


@dataclass(frozen=True, slots=True)
class ToolStart:
    """Properties of a call before it runs. `repeatable`: it may run again if it is unknown how far
    it came. `shown`: fields of its item.
    """

    repeatable: bool
    shown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call, not cut yet. `shown`: final fields of the item. `state`: what later calls
    need, also of responses that continue this one.
    """

    output: str
    outcome: ToolOutcome = "ok"
    shown: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    ids_max: int = 8192


_NOT_MADE: Final = frozenset({"refused", "over_budget"})
_INVALID_REQUEST: Final = -32600
"""https://www.jsonrpc.org/specification#error_object"""


def explained(name: str, result: ToolResult) -> ToolResult:
    """Return the result with an error in its item: no MCP server reported one for a call that the
    gateway refused, gave up or lost.
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
"""`{"page": ShownPage as JSON}`, which citations are resolved by; `{"container_id": ..., "files":
{path: file id}}` of Python; of all, `bytes` before the cut."""


@dataclass(frozen=True, slots=True)
class ToolScope:
    """Response of a session, and what its tools may use.

    `stored`: a tool's data may outlive the response. Otherwise it may be kept in `values` for
    responses that continue this one; None: it goes with the response. `states` and `result_ids` are
    of calls that ended before. `secrets` are for MCP servers, by label.

    A tool awaits `assured` right before a call leaves the process. It returns once no other process
    may go on with the response for two seconds, and raises `ClaimLost` if one does.
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
    """Tools of one response, called one at a time."""

    def start(self, call: ToolCall) -> ToolStart:
        """Return the properties of a call, without I/O. Raises nothing."""
        ...

    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        """Run a call. Any exception is a defect. `on_handle` receives what `resume` needs."""
        ...

    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:  # noqa: ARG002
        """Return the result of a call that another replica began; None if it is lost."""
        return None

    async def close(self) -> None:
        """Free the resources. Raises nothing."""
        return


HostedTools: TypeAlias = "Callable[[ToolScope], ToolSession]"
"""Function that creates a session, which uses no resources yet."""
