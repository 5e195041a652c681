"""Grants: which hosted tools a response may use, decided once when it is created.

They are stored with the request, so that whoever continues it has the same tools, rules and
budgets. They hold no secrets.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_within(host: str, domains: Sequence[str]) -> bool:
    host = host.lower().rstrip(".")
    return not domains or any(host == one or host.endswith(f".{one}") for one in domains)


@dataclass(frozen=True, slots=True)
class DomainRules:
    """Domains with their subdomains, in lower case; `denied` takes precedence."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    @classmethod
    def from_policy(cls, allowed: str, denied: str) -> DomainRules:
        # Policies store the lists separated by spaces.
        return cls(tuple(allowed.split()), tuple(denied.split()))

    def permits(self, host: str) -> bool:
        is_denied = bool(self.denied) and is_within(host, self.denied)
        return not is_denied and is_within(host, self.allowed)


EVERY_DOMAIN = DomainRules()
SearchContextSize = Literal["low", "medium", "high"]
CITED_FILES_MAX: Final = 256
"""The last files that code wrote; answers cite these alone."""
REGISTERED: Final = "registry:"
"""Prefix of the identity of a server that the operator registered."""


@dataclass(frozen=True, slots=True)
class ShownPage:
    """Page that the browser showed to the model, by its cursor.

    `key` is that of its text in the store of pages. `links` are the targets of its numbers. Lines
    `first` to `end` were shown. `of` is the page that a find searched. `hits` of a search have for
    each link its first line and its words, for citations.
    """

    cursor: int
    key: str
    kind: Literal["search", "page", "find"]
    url: str
    title: str
    first: int = 0
    end: int = 0
    links: tuple[str, ...] = ()
    of: int | None = None
    hits: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BrowserGrant:
    """Grant of `browser.search`, `browser.open` and `browser.find`.

    `pages` are those of earlier responses, which their answers cite: new cursors begin behind
    theirs. If `opens` is `known`, a URL that the model writes is opened only if it is in `urls`,
    those of the user's input, or on a shown page.
    """

    type: str
    context_size: SearchContextSize = "medium"
    allowed_domains: tuple[str, ...] = ()
    country: str | None = None
    location: str | None = None
    is_live: bool = True
    pages: tuple[ShownPage, ...] = ()
    opens: Literal["any", "known"] = "any"
    urls: tuple[str, ...] = ()
    tenant_domains: tuple[str, ...] = ()
    denied_domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonGrant:
    """Grant of `python` in this container. With `containers_max` it is made on first use, if the
    tenant has fewer then.
    """

    container_id: str
    engine: str
    memory_bytes: int
    file_ids: tuple[str, ...] = ()
    description: str | None = None
    """Replaces the text that the model was trained with."""
    containers_max: int | None = None


@dataclass(frozen=True, slots=True)
class McpTool:
    """Tool of an MCP server. `digest` is of name, description and schema. The hints are false
    unless the server is trusted.
    """

    name: str
    parameters: dict[str, Any] = field(hash=False)
    description: str = ""
    digest: str = ""
    is_read_only: bool = False
    is_idempotent: bool = False
    needs_approval: bool = True


@dataclass(frozen=True, slots=True)
class ServerGrant:
    """An MCP server and those of its tools that may be called.

    `server` is `registry:` and an id, or its host and a digest of the URL, which may be a secret
    itself. `credential` is a digest of what the request sends to it.
    """

    label: str
    server: str
    credential: str = ""
    description: str = ""
    tools: tuple[McpTool, ...] = ()

    @property
    def has_secrets(self) -> bool:
        return bool(self.credential) or not self.server.startswith(REGISTERED)


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """Call of an MCP tool, with exactly the `arguments` that the model wrote and the user
    approved.
    """

    request_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolBudget:
    """Bounds of the hosted tools of one response.

    `calls_max` is at most the request's `max_tool_calls`; `failures_max` failures in a row withdraw
    a tool. The others are for all calls together: `result_ids_max` as the model is shown the
    results, `result_bytes_max` as the tools returned them.
    """

    calls_max: int = 64
    failures_max: int = 3
    time_max_s: float = 900.0
    result_ids_max: int = 48_000
    result_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Grants:
    """All hosted tools of one response.

    `unused_pages` and `unused_container` are passed on along the chain if this response has no such
    tool; with `cites_unused` answers may cite those pages.
    """

    browser: BrowserGrant | None = None
    python: PythonGrant | None = None
    servers: tuple[ServerGrant, ...] = ()
    approved: ApprovedCall | None = None
    budget: ToolBudget = ToolBudget()
    include: tuple[str, ...] = ()
    unused_pages: tuple[ShownPage, ...] = ()
    unused_container: str | None = None
    cites_unused: bool = False

    @property
    def has_tools(self) -> bool:
        return self.browser is not None or self.python is not None or bool(self.servers)

    @property
    def cited_pages(self) -> tuple[ShownPage, ...] | None:
        """Return the pages of earlier responses that answers may cite; with None citations are
        plain text.
        """
        if self.browser is not None:
            return self.browser.pages
        return self.unused_pages if self.cites_unused else None


_GRANTS: Final = TypeAdapter(Grants)


def grants_json(grants: Grants) -> dict[str, Any]:
    stored: dict[str, Any] = _GRANTS.dump_python(grants, mode="json", exclude_defaults=True)
    return stored


def grants_of(stored: object) -> Grants:
    return _GRANTS.validate_python(stored)


def approval_digest(server: ServerGrant, tool: McpTool, arguments: str) -> bytes:
    parts = (server.label, server.server, server.credential, tool.name, tool.digest, arguments)
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(4, "big") + content)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class ToolState:
    pages: tuple[ShownPage, ...] = ()
    container_id: str | None = None


NO_TOOL_STATE: Final = ToolState()
_STATE: Final = TypeAdapter(ToolState)


def tool_state_of(packed: bytes | None) -> ToolState:
    """Parse stored tool state; empty for None and for unreadable data."""
    if not packed:
        return NO_TOOL_STATE
    try:
        return _STATE.validate_json(packed)
    except ValidationError:
        return NO_TOOL_STATE
