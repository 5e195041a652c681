"""Settings of the tools that the gateway runs itself.

A tool that lacks a requirement is off: requests are answered without it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from gateway.settings.http_urls import HttpUrl, WholeUrl
from gateway.settings.sections import (
    ID_RANGE_PATTERN,
    BearerKey,
    Destinations,
    Network,
    Port,
    Section,
    tenant_default,
)
from gateway.tenancy.policy import McpApprovals, McpServersAllowed, ToolAccess, are_domains

HEADER_CHARS_MAX: Final = 200
_LANGUAGE: Final = re.compile(r"[a-z_]{1,63}\Z")
_KEYED: Final = ("brave", "exa", "tavily", "you")


def _printable(text: str) -> str:
    if not 0 < len(text) <= HEADER_CHARS_MAX or not text.isascii() or not text.isprintable():
        raise ValueError(f"expected 1 to {HEADER_CHARS_MAX} printable characters of ASCII")
    return text


def _ascii_host(host: str) -> str:
    return host.lower().encode("idna").decode()


def _language(text: str) -> str:
    if not _LANGUAGE.match(text):
        raise ValueError("expected a text search configuration such as english or simple")
    return text


class SearchProvider(Section):
    """A provider of search results."""

    kind: Literal["index", "searxng", "brave", "exa", "tavily", "you", "mcp"] = Field(
        description="index: pages of `harmony-gateway pages`; mcp: an MCP server that is "
        "registered for it."
    )
    url: Annotated[WholeUrl, AfterValidator(lambda url: url.rstrip("/"))] | None = Field(
        None,
        description="Where it is. Set it for one's own SearXNG, and where the provider is not at "
        "its usual place.",
    )
    api_key: BearerKey | None = Field(
        None,
        description="That of the provider. Needed but for an own SearXNG, which it is a bearer "
        "token for, index and mcp.",
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.kind == "searxng" and self.url is None:
            raise ValueError("searxng needs a url such as http://searxng:8080")
        if self.kind in _KEYED and self.api_key is None:
            raise ValueError(f"{self.kind} needs an api_key")
        return self


class Web(Destinations):
    """Web search: `browser.search`, `browser.open`, `browser.find`, and where pages may be."""

    enabled: bool = Field(
        default=False,
        description="Let requests search the web. Set it where a model should read pages.",
    )
    tenants: ToolAccess = tenant_default("web_search")
    providers: tuple[SearchProvider, ...] = Field(
        (),
        description="Who is asked to search, in this order until one answers. Set those that you "
        "have, each with kind, url, api_key. Empty: the local index (`harmony-gateway pages`).",
    )
    user_agent: Annotated[str, AfterValidator(_printable)] = Field(
        "HarmonyGateway/1.0",
        description="How it introduces itself to sites. Set the name that sites may allow: "
        "robots.txt is read for what is before `/`.",
    )
    contact: Annotated[str, AfterValidator(_printable)] | None = Field(
        None,
        description="A URL or an address that sites are shown. Set it so that they can complain.",
    )
    obeys_robots: bool = Field(
        default=True, description="Obey robots.txt. Set false only where all pages are one's own."
    )
    visit_interval_s: NonNegativeFloat = Field(
        1.0,
        description="Seconds between the beginnings of two visits of one host. Set 0 where all "
        "pages are one's own.",
    )
    documents_max: PositiveInt = Field(
        2,
        description="Processes that read pages and PDFs. Size it by the CPUs: each takes one while "
        "it reads, and up to 512 MiB.",
    )
    index_language: Annotated[str, AfterValidator(_language)] = Field(
        "english",
        description="Language of the local index, a text search configuration of PostgreSQL. Set "
        "that of the pages; after a change they have to be added again.",
    )

    @property
    def agent(self) -> str:
        return f"{self.user_agent} (+{self.contact})" if self.contact else self.user_agent


def _ascending(ids: str) -> str:
    first, _, last = ids.partition("-")
    if first.isdecimal() and last.isdecimal() and int(first) > int(last):
        raise ValueError("expected the lesser number first")
    return ids


class Python(Section):
    """The code interpreter: `python`, its containers and its files."""

    enabled: bool = Field(
        default=False,
        description="Let requests run Python. Set it where the engine can be trusted: it is tried "
        "at the start, and refused where code in it may do one thing that it must not.",
    )
    tenants: ToolAccess = tenant_default("code_interpreter")
    engine: Literal["auto", "linux", "monty", "remote"] = Field(
        "auto",
        description="What runs it: auto, linux, remote or monty. Set it so that no other is taken. "
        "linux: bubblewrap or gVisor on this machine; remote: `containers serve`, elsewhere; "
        "monty: a part of Python, for demos; auto: remote where remote_url is set, else linux, "
        "else monty.",
    )
    interpreter: Path | None = Field(
        None,
        description="The Python of the engine linux. Set one with the packages that code needs; "
        "default: /opt/sandbox/bin/python, which the image has with numpy, pandas and matplotlib, "
        "else /usr/bin/python3.",
    )
    runsc: str | None = Field(
        None,
        description="gVisor's runsc. Set it to have the engine linux run containers under a kernel "
        "of their own, instead of bubblewrap.",
    )
    user_ids: Annotated[str, AfterValidator(_ascending)] = Field(
        "61184-61439",
        pattern=ID_RANGE_PATTERN,
        description="User ids of the containers of a gateway that is root, one each. Set others "
        "where these have owners on this machine.",
    )
    remote_url: HttpUrl | None = Field(
        None,
        description="Where the containers of the engine remote are. Set it to keep code off this "
        "machine.",
    )
    remote_token: BearerKey | None = Field(
        None, description="Bearer token for that server. Needed with remote_url."
    )
    timeout_s: float = Field(
        60.0,
        gt=0,
        le=120,
        description="Seconds that code may run. Raise it where one call has much to compute.",
    )
    memory_bytes_max: int = Field(
        1024**3,
        ge=1024**3,
        description="The largest memory_limit that requests may have: 1g, 4g, 16g or 64g. Raise it "
        "with the machine's memory.",
    )
    open_max: PositiveInt = Field(
        32,
        description="Containers of this process that run or could go on. Size it by the machine's "
        "memory: for one more the one that was not used for longest loses its variables.",
    )
    tenant_open_max: PositiveInt = Field(
        4, description="The same of one tenant. Raise it where there are few tenants."
    )
    tenant_containers_max: int = tenant_default("containers_max")
    warm_max: NonNegativeInt = Field(
        0,
        description="Containers that are started ahead, with packages imported. Raise it where the "
        "first call should not wait for a start.",
    )
    file_bytes_max: PositiveInt = Field(
        67_108_864, description="Bytes of one file. Raise it where users bring larger data."
    )
    tenant_file_bytes_max: PositiveInt = Field(
        8_589_934_592,
        description="Bytes of all files of a tenant; one more is answered 429. Size it by the "
        "disk of the database.",
    )


class Mcp(Section):
    """Tools of MCP servers."""

    enabled: bool = Field(
        default=False,
        description="Let requests call tools of MCP servers. Set it where these can be trusted "
        "with what models write.",
    )
    tenants: ToolAccess = tenant_default("mcp")
    servers: McpServersAllowed = tenant_default("mcp_servers")
    approvals: McpApprovals = tenant_default("mcp_approvals")
    strict: bool = Field(
        default=False,
        description="Answer 424 where a server does not list its tools, as OpenAI does. Set it for "
        "clients that rely on that; otherwise the item mcp_list_tools says why, and the response "
        "goes on without them.",
    )
    hosts: tuple[Annotated[str, AfterValidator(_ascii_host)], ...] = Field(
        (),
        description="Hosts that requests may name where servers is listed, and those below them. "
        "Set those that you trust.",
    )
    ports: tuple[Port, ...] = Field(
        (443,),
        description="Ports of servers on the public internet. Add those of servers that you know.",
    )
    url_networks: tuple[Network, ...] = Field(
        (),
        description="Private networks in which servers that requests name may be, at any port. Set "
        "it where users run servers there, such as 10.1.2.0/24.",
    )
    url_plain_http: bool = Field(
        default=False,
        description="Let requests name servers by http. Set it for servers in one's own network "
        "without certificates.",
    )
    networks: tuple[Network, ...] = Field(
        (),
        description="Private networks in which registered servers may be, at any port. Set it "
        "where the operator runs servers there.",
    )
    connect_timeout_s: PositiveFloat = Field(
        10.0,
        description="Seconds to connect to a server. Raise it for servers that are started when "
        "somebody connects.",
    )
    list_timeout_s: PositiveFloat = Field(
        10.0,
        description="Seconds for all tools of a server. Raise it for servers that list many, or "
        "that are slow to.",
    )
    call_timeout_s: PositiveFloat = Field(
        60.0,
        le=600,
        description="Seconds of a call; a registered server may have its own. Raise it for tools "
        "that work long.",
    )


def _domains(text: str) -> str:
    listed = " ".join(text.lower().split())
    if not are_domains(listed):
        raise ValueError("expected domains with spaces between them, such as example.com")
    return listed


Domains = Annotated[str, AfterValidator(_domains)]


class Tools(Section):
    """Bounds of all tools of one response, and of those of all responses."""

    calls_max: int = tenant_default("tool_calls_max")
    time_max_s: int = tenant_default("tool_time_max_s")
    result_ids_max: int = tenant_default("tool_result_ids_max")
    result_bytes_max: int = tenant_default("tool_result_bytes_max")
    egress: ToolAccess = tenant_default("egress")
    egress_domains: Domains = tenant_default("egress_domains")
    egress_denied_domains: Domains = tenant_default("egress_denied_domains")
    running_max: PositiveInt = Field(
        64, description="Calls that this process runs at once. Size it by its CPU and memory."
    )
    web: Web = Web()
    python: Python = Python()
    mcp: Mcp = Mcp()
