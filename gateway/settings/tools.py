"""The settings of the tools that the gateway runs itself.

A tool without what it needs is off: requests that offer it are answered without it, and told so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from gateway.settings.sections import (
    ID_RANGE_PATTERN,
    Network,
    Secret,
    Section,
    http_url,
    tenant_default,
)
from gateway.settings.web import Web
from gateway.tenancy import McpApprovals, McpServersAllowed, ToolAccess, are_domains

CALL_MAX_S = 600.0
"""The longest that one call may take: a response has to end, too."""


def _ascending(ids: str) -> str:
    first, _, last = ids.partition("-")
    if first.isdecimal() and last.isdecimal() and int(first) > int(last):
        raise ValueError("expected the lesser number first")
    return ids


class Python(Section):
    """The code interpreter: `python`, its containers and its files."""

    enabled: bool = Field(
        default=False,
        description="Whether requests may run Python. The engine is tried at the start, and "
        "refused where code in it may do one thing that it must not.",
    )
    tenants: ToolAccess = tenant_default("code_interpreter")
    engine: Literal["auto", "linux", "monty", "remote"] = Field(
        "auto",
        description="What runs it: `linux` (bubblewrap or gVisor, on this machine), `remote` "
        "(`containers serve`, elsewhere) or `monty` (a part of Python, for demos). `auto`: remote "
        "where remote_url is set, else linux, else monty.",
    )
    interpreter: Path | None = Field(
        None,
        description="The Python of the engine `linux`. Default: /opt/sandbox/bin/python, which the "
        "image has with numpy, pandas and matplotlib, else /usr/bin/python3.",
    )
    runsc: str | None = Field(
        None,
        description="gVisor's runsc: the engine `linux` runs containers under it, with a kernel of "
        "their own, instead of bubblewrap.",
    )
    user_ids: Annotated[str, AfterValidator(_ascending)] = Field(
        "61184-61439",
        pattern=ID_RANGE_PATTERN,
        description="Of a gateway that is root each container of the engine `linux` has a user id "
        "of its own: one of these, which nobody else may have.",
    )
    remote_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="Where the containers of the engine `remote` are."
    )
    remote_token: Secret | None = Field(None, description="What that server is shown.")
    timeout_s: float = Field(60.0, gt=0, le=120, description="Seconds that code may run.")
    memory_bytes_max: int = Field(
        1024**3,
        ge=1024**3,
        description="The largest memory_limit that requests may have: 1g, 4g, 16g or 64g.",
    )
    data_bytes_max: PositiveInt = Field(
        536_870_912, description="Room of a running container for files; it is memory, too."
    )
    processes_max: PositiveInt = Field(64, description="Processes of a container.")
    open_max: PositiveInt = Field(
        32,
        description="Containers of this process that run or could go on; for one more the one that "
        "was not used for longest loses its variables.",
    )
    tenant_open_max: PositiveInt = Field(4, description="The same of one tenant.")
    tenant_containers_max: int = tenant_default("containers_max")
    warm_max: NonNegativeInt = Field(
        0, description="Containers that are started ahead, with packages imported."
    )
    idle_s: int = Field(
        1200, ge=60, description="Seconds after its last use that a container expires."
    )
    life_s: int = Field(
        28_800, ge=60, description="Seconds after its creation that it expires at the latest."
    )
    file_bytes_max: PositiveInt = Field(67_108_864, description="Of one file.")
    container_bytes_max: PositiveInt = Field(
        536_870_912, description="Of the files of a container that are kept."
    )
    container_files_max: PositiveInt = Field(200, description="Files of a container.")
    tenant_file_bytes_max: PositiveInt = Field(
        8_589_934_592, description="Of all files of a tenant; one more is answered 429."
    )


Port = Annotated[int, Field(ge=1, le=65_535)]


class Mcp(Section):
    """Tools of MCP servers."""

    enabled: bool = Field(
        default=False, description="Whether requests may call tools of MCP servers."
    )
    tenants: ToolAccess = tenant_default("mcp")
    servers: McpServersAllowed = tenant_default("mcp_servers")
    approvals: McpApprovals = tenant_default("mcp_approvals")
    strict: bool = Field(
        default=False,
        description="Whether a request is answered 424, as OpenAI does, where a server does not "
        "list its tools. Otherwise its mcp_list_tools item says why, and the response goes on "
        "without them.",
    )
    hosts: tuple[str, ...] = Field(
        (), description="Hosts that requests may name where servers is listed; and those below."
    )
    ports: tuple[Port, ...] = Field((443,), description="Ports of servers on the public internet.")
    url_networks: tuple[Network, ...] = Field(
        (),
        description="Networks beside the public internet in which servers that requests name may "
        "be, such as 10.1.2.0/24; at any port.",
    )
    url_plain_http: bool = Field(
        default=False, description="Requests may name servers by http, not only by https."
    )
    networks: tuple[Network, ...] = Field(
        (),
        description="Networks beside the public internet in which registered servers may be; at "
        "any port.",
    )
    approval_ttl_s: PositiveInt = Field(
        86_400, description="Seconds within which a call that was asked about can be approved."
    )
    connect_timeout_s: PositiveFloat = Field(10.0, description="Seconds to connect to a server.")
    list_timeout_s: PositiveFloat = Field(10.0, description="Seconds for all tools of a server.")
    call_timeout_s: PositiveFloat = Field(
        60.0, le=600, description="Seconds of a call; a registered server may have its own."
    )
    sessions_max: PositiveInt = Field(256, description="Connections to servers at once.")
    tenant_sessions_max: PositiveInt = Field(
        64,
        description="Those of one tenant. Where all are taken one that nobody uses is closed, else "
        "a call waits 5 s; the tenant that has the fewest is served first.",
    )
    registry_ttl_s: PositiveFloat = Field(
        5.0, description="Seconds until every replica knows of a change in the registry."
    )


def _domains(given: str) -> str:
    listed = " ".join(given.lower().split())
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
    running_max: PositiveInt = Field(64, description="Calls that this process runs at once.")
    tenant_running_max: PositiveInt = Field(
        16,
        description="Calls of one tenant that this process runs at once. More than the "
        "8 of one MCP server, or an MCP server that hangs stops the tenant's other tools.",
    )
    drain_wait_s: float = Field(
        30.0,
        ge=0,
        description="Seconds that a process which ends waits for calls that must not be run twice.",
    )
    web: Web = Web()
    python: Python = Python()
    mcp: Mcp = Mcp()
