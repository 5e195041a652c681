from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from gateway.protocol.base import FAIL_FAST, Many, NullableModel, by_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.grants import SearchContextSize


HostedFamily = Literal["web_search", "code_interpreter", "mcp"]
WebSearchType = Literal[
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"
]
ApprovalMode = Literal["always", "never"]
MemoryLimit = Literal["1g", "4g", "16g", "64g"]
WEB_SEARCH_TYPES: Final[tuple[WebSearchType, ...]] = get_args(WebSearchType)
FAMILIES: Final[Mapping[str, HostedFamily]] = {
    **dict.fromkeys(WEB_SEARCH_TYPES, "web_search"),
    "code_interpreter": "code_interpreter",
    "mcp": "mcp",
}
NO_FAMILIES: Final[frozenset[HostedFamily]] = frozenset()
DOMAINS_MAX: Final = 100
DOMAIN_CHARS_MAX: Final = 253
FILE_IDS_MAX: Final = 50
SERVER_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The namespace of the server's tools, which the model sees as functions."""
HEADERS_MAX: Final = 16
HEADERS_CHARS_MAX: Final = 4_096
AUTHORIZATION_CHARS_MAX: Final = 8_192
URL_CHARS_MAX: Final = 2_048
TOOL_NAMES_MAX: Final = 512
TOOL_NAME_CHARS_MAX: Final = 128
_LOCATION_CHARS_MAX: Final = 128
_REDACTED: Final = "<redacted>"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DOMAIN: Final = re.compile(rf"[^\s/:?#@\\,;\"'<>]{{1,{DOMAIN_CHARS_MAX}}}")


def domain_of(text: str) -> str:
    """Return the domain in lower-case ASCII: `https://www.example.com/` → `www.example.com`.

    Raises `ValueError` for other text.
    """
    host = _SCHEME.sub("", text, count=1).rstrip("/").removeprefix("*.").rstrip(".").lower()
    if not _DOMAIN.fullmatch(host):
        raise ValueError(f"not a domain: {text!r}")
    return host.encode("idna").decode()


def _domain(text: str) -> str:
    try:
        domain_of(text)
    except ValueError:
        raise PydanticCustomError("not_a_domain", "") from None
    return text


class SearchFilters(NullableModel):
    """Filters of a search and of the pages that may be opened; no `allowed_domains` allow all."""

    allowed_domains: Annotated[
        Many[Annotated[str, AfterValidator(_domain)]], Field(max_length=DOMAINS_MAX)
    ] = ()


_Place = Annotated[str, StringConstraints(max_length=_LOCATION_CHARS_MAX)]


class UserLocation(NullableModel):
    """Approximate location; `country` is an ISO code of two letters."""

    type: Literal["approximate"] = "approximate"
    city: _Place | None = None
    country: _Place | None = None
    region: _Place | None = None
    timezone: _Place | None = None

    @property
    def in_words(self) -> str | None:
        """Return e.g. `Paris, Île-de-France, FR, timezone Europe/Paris`."""
        zone = f"timezone {self.timezone}" if self.timezone else None
        words = [word for word in (self.city, self.region, self.country, zone) if word]
        return ", ".join(" ".join(word.split()) for word in words) or None


class WebSearchTool(NullableModel):
    """Web search; without `external_web_access` only in stored pages. `search_content_types` has no
    effect.
    """

    type: WebSearchType = "web_search"
    filters: SearchFilters | None = None
    user_location: UserLocation | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    external_web_access: bool = True
    search_content_types: Many[str] | None = None

    @property
    def context_size(self) -> SearchContextSize:
        return self.search_context_size or "medium"

    @property
    def allowed_domains(self) -> tuple[str, ...]:
        named = self.filters.allowed_domains if self.filters else ()
        return tuple(dict.fromkeys(map(domain_of, named)))


class NetworkPolicy(NullableModel):
    type: str


class AutoContainer(NullableModel):
    """Container that is made for the response, or that of its context."""

    type: Literal["auto"]
    file_ids: Annotated[Many[str], Field(max_length=FILE_IDS_MAX)] = ()
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None


class CodeInterpreterTool(NullableModel):
    type: Literal["code_interpreter"] = "code_interpreter"
    container: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=128), Tag("container_id")]
        | Annotated[AutoContainer, Tag("container_auto")],
        by_shape("container_id", "container_auto", dict, AutoContainer),
    ]


_ToolNames = Annotated[
    Many[Annotated[str, StringConstraints(min_length=1, max_length=TOOL_NAME_CHARS_MAX)]],
    Field(max_length=TOOL_NAMES_MAX),
]


class ToolFilter(NullableModel):
    """Tools that meet both conditions; `read_only` ones change nothing."""

    tool_names: _ToolNames | None = None
    read_only: bool | None = None


class ApprovalFilters(NullableModel):
    """Tools by the approval that they need; one in neither or both needs approval."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


def _names_alone(value: object) -> object:
    return {"tool_names": value} if isinstance(value, list | tuple) else value


class McpServerTool(NullableModel):
    """Tools of the MCP server that is registered under the label, or of the `server_url`.

    `headers` and `authorization` (an access token) are sent to that server alone, and shown to
    nobody. `defer_loading` has no effect.
    """

    type: Literal["mcp"] = "mcp"
    server_label: Annotated[str, StringConstraints(pattern=f"^{SERVER_LABEL.pattern}$")]
    server_url: Annotated[str, StringConstraints(max_length=URL_CHARS_MAX)] | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    headers: Annotated[dict[str, str], Field(max_length=HEADERS_MAX), FAIL_FAST] | None = Field(
        None, repr=False
    )
    authorization: (
        Annotated[str, StringConstraints(min_length=1, max_length=AUTHORIZATION_CHARS_MAX)] | None
    ) = Field(None, repr=False)
    allowed_tools: Annotated[ToolFilter | None, BeforeValidator(_names_alone)] = None
    require_approval: (
        Annotated[
            Annotated[ApprovalMode, Tag("approval_mode")]
            | Annotated[ApprovalFilters, Tag("approval_filters")],
            by_shape("approval_mode", "approval_filters", dict, ApprovalFilters),
        ]
        | None
    ) = None
    defer_loading: bool | None = None
    allowed_callers: Many[str] | None = None

    @property
    def shown_url(self) -> str | None:
        """Return scheme and host of the URL; its path may be a secret."""
        if self.server_url is None:
            return None
        try:
            parts = urlsplit(self.server_url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return _REDACTED
        place = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{place}{f':{port}' if port else ''}/{_REDACTED}"


RunTool = WebSearchTool | CodeInterpreterTool | McpServerTool


def echoed_tool(tool: RunTool) -> dict[str, Any]:
    """Return the tool as the Response object repeats it, without secrets."""
    match tool:
        case WebSearchTool():
            shown = tool.model_dump(mode="json", exclude_unset=True)
            shown.setdefault("filters", None)
            shown.setdefault("user_location", None)
            return {**shown, "type": tool.type, "search_context_size": tool.context_size}
        case CodeInterpreterTool():
            return tool.model_dump(mode="json", exclude_none=True)
        case _:
            shown = tool.model_dump(
                mode="json", exclude_none=True, exclude={"authorization", "headers", "server_url"}
            )
            return {
                **shown,
                "server_url": tool.shown_url,
                "headers": None,
                "allowed_tools": _shown_filter(tool.allowed_tools),
                "require_approval": shown.get("require_approval", "always"),
                "server_description": tool.server_description,
            }


def _shown_filter(allowed: ToolFilter | None) -> object:
    if allowed is None:
        return None
    if allowed.read_only is None:
        return list(allowed.tool_names or ()) if allowed.tool_names is not None else {}
    return allowed.model_dump(mode="json", exclude_none=True)
