"""The settings of web search: who is asked, what may be fetched, and how much of it."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from gateway.settings.sections import MIB, Secret, Section, tenant_default
from gateway.tenancy import ToolAccess

PORT_MAX: Final = 65_535
HEADER_CHARS_MAX: Final = 200
_LANGUAGE: Final = re.compile(r"[a-z_]{1,63}\Z")
_KEYED: Final = ("brave", "exa", "tavily", "you")


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("expected a URL such as http://searxng:8080")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("a provider's URL has no query, fragment or user; use api_key")
    return text.rstrip("/")


def network(text: str) -> str:
    """Return the network as it was written. Raises `ValueError` if it is none."""
    try:
        ip_network(text)
    except ValueError:
        raise ValueError("expected a network such as 10.20.0.0/16") from None
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Split `name:port`. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError("expected a host and a port such as wiki.internal:8080")
    return host.strip("[]").lower(), int(port)


def printable(text: str) -> str:
    """Return text that may stand in a header. Raises `ValueError` for other text."""
    if not 0 < len(text) <= HEADER_CHARS_MAX or not text.isascii() or not text.isprintable():
        raise ValueError(f"expected 1 to {HEADER_CHARS_MAX} printable characters of ASCII")
    return text


def _language(text: str) -> str:
    if not _LANGUAGE.match(text):
        raise ValueError("expected a text search configuration such as english or simple")
    return text


def known_host(text: str) -> str:
    """Return `name:port` as it was written. Raises `ValueError` if it is none."""
    host_and_port(text)
    return text


class SearchProvider(Section):
    """A provider of search results."""

    kind: Literal["index", "searxng", "brave", "exa", "tavily", "you", "mcp"] = Field(
        description="index: pages of `harmony-gateway pages`; mcp: an MCP server that is "
        "registered for it."
    )
    url: Annotated[str, AfterValidator(_url)] | None = Field(
        None, description="Of one's own SearXNG, or where the provider is not at its usual place."
    )
    api_key: Secret | None = Field(
        None, description="That of the provider; a bearer token for SearXNG."
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.kind == "searxng" and self.url is None:
            raise ValueError("searxng needs a url such as http://searxng:8080")
        if self.kind in _KEYED and self.api_key is None:
            raise ValueError(f"{self.kind} needs an api_key")
        return self


class Web(Section):
    """Web search: `browser.search`, `browser.open`, `browser.find`."""

    enabled: bool = Field(default=False, description="Whether requests may search the web.")
    tenants: ToolAccess = tenant_default("web_search")
    providers: tuple[SearchProvider, ...] = Field(
        (),
        description="Who is asked to search, in this order until one answers, each with kind, url, "
        "api_key. Empty: the local index (`harmony-gateway pages`).",
    )
    public: bool = Field(
        default=True, description="Whether pages of the public internet may be opened."
    )
    allowed_networks: tuple[Annotated[str, AfterValidator(network)], ...] = Field(
        (), description="Networks of one's own that pages may be opened in, such as 10.20.0.0/16."
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(known_host)], ...] = Field(
        (), description="Hosts of one's own that pages may be opened at, such as wiki.internal:80."
    )
    user_agent: Annotated[str, AfterValidator(printable)] = Field(
        "HarmonyGateway/1.0",
        description="How it introduces itself to sites; robots.txt is read for what is before `/`.",
    )
    contact: Annotated[str, AfterValidator(printable)] | None = Field(
        None,
        description="A URL or an address that sites are told, for complaints.",
    )
    obeys_robots: bool = Field(default=True, description="Whether robots.txt is obeyed.")
    page_timeout_s: PositiveFloat = Field(
        15.0, description="Seconds to fetch a page, its redirects and robots.txt included."
    )
    visit_interval_s: NonNegativeFloat = Field(
        1.0, description="Seconds between the beginnings of two visits of one host."
    )
    documents_max: PositiveInt = Field(
        2, description="Processes that read pages and PDFs; each takes a CPU while it reads."
    )
    document_memory_bytes_max: PositiveInt = Field(
        512 * MIB, description="Bytes of memory for a process that reads a page or a PDF."
    )
    index_language: Annotated[str, AfterValidator(_language)] = Field(
        "english",
        description="Language of the local index, a text search configuration of PostgreSQL. After "
        "a change, pages have to be added again.",
    )

    @property
    def agent(self) -> str:
        # Name and contact, as sites see them.
        return f"{self.user_agent} (+{self.contact})" if self.contact else self.user_agent
