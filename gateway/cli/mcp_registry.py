"""`mcp`: servers that requests may name by a label."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import httpx2
import typer

from gateway import ids
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command
from gateway.errors import InvalidRequest, ResourceNotFound, StoreConflict
from gateway.sealing import Sealer, SealingSecret
from gateway.store import tenants
from gateway.store.tools import mcp_servers
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow
from gateway.tools.mcp.failures import McpError
from gateway.tools.mcp.servers import (
    LABEL,
    Registry,
    check_url,
    checked_purposes,
    outgoing_headers,
    sealed_headers,
    server_json,
)
from gateway.wiring.mcp_room import new_room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.mcp.servers import McpServer
    from gateway.tools.mcp.session_pool import SessionPool
    from gateway.wiring.mcp_room import McpRoom

commands = typer.Typer(no_args_is_help=True)

STDIN: Final = "-"
HEADERS_CHARS_MAX: Final = 65_536
_HINT: Final = "; a network of yours has to be in tools.mcp.networks"

Label = Annotated[str, typer.Argument(help="Letters, digits, '_' and '-': its server_label.")]
OfTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this tenant's. Default: every tenant's.")
]


async def _tenant_id(database: Database, tenant: str | None) -> TenantId:
    return OPERATOR if tenant is None else (await tenants.tenant_named(database, tenant)).id


def _sealer(settings: Settings) -> Sealer:
    return Sealer([SealingSecret(*key) for key in settings.sealing_secrets])


async def registered(
    settings: Settings, database: Database, tenant_id: TenantId = OPERATOR
) -> Mapping[str, McpServer]:
    async def of_one(tenant_id: TenantId) -> dict[str, McpServerRow]:
        rows = await mcp_servers.of_tenant(database, tenant_id)
        return {row.label: row for row in rows}

    return await Registry(of_one, _sealer(settings)).servers(tenant_id)


@command(commands, "add")
async def add(  # noqa: PLR0913 - each is an option
    gateway: Installation,
    label: Label,
    url: Annotated[str, typer.Argument(help="Such as https://mcp.example.com/mcp.")],
    tenant: OfTenant = None,
    headers_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="A file with the headers that it is sent, one 'Name: value' a line, or - for "
            "standard input. They are stored sealed, and never shown.",
        ),
    ] = None,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted",
            help="Believe what it says of its tools: those that only read, or are idempotent, are "
            "called again when a call was lost.",
        ),
    ] = False,
    always_ask: Annotated[
        bool, typer.Option("--always-ask", help="Every call needs approval, whatever requests say.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="Only these of its tools.")
    ] = None,
    purpose: Annotated[
        list[str] | None,
        typer.Option(
            help="mcp: its tools are offered under its label (default). browser, python: it does "
            "the work of that tool of the model. search: it finds pages for the gateway's browser."
        ),
    ] = None,
    call_timeout_s: Annotated[
        int | None, typer.Option(min=1, max=600, help="Seconds of a call.")
    ] = None,
) -> None:
    """Register an MCP server."""
    purposes = _checked(label, url, purpose or ["mcp"])
    headers = _read_headers(headers_from)
    database = await gateway.database()
    tenant_id, server_id = await _tenant_id(database, tenant), ids.new_uuid()
    row = McpServerRow(
        tenant_id,
        server_id,
        label,
        url,
        sealed_headers(_sealer(gateway.settings), tenant_id, server_id, headers),
        trusted,
        always_ask,
        None if allow is None else json.dumps(sorted(set(allow))).encode(),
        purposes,
        call_timeout_s,
    )
    try:
        await mcp_servers.insert(database, row)
    except StoreConflict as conflict:
        message = f"There is an MCP server {label!r} already: remove it first."
        raise InvalidRequest(message, param="label") from conflict
    terminal.show(f"MCP server {label} registered; next: harmony-gateway mcp check {label}")


def _checked(label: str, url: str, purposes: list[str]) -> str:
    # Returns the purposes as they are stored.
    if not LABEL.fullmatch(label):
        message = "expected 1 to 64 letters, digits, '_' and '-'"
        raise typer.BadParameter(message, param_hint="LABEL")
    try:
        check_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
    try:
        return checked_purposes(purposes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--purpose") from None


def _read_headers(source: str | None) -> dict[str, str]:
    # Raises `typer.BadParameter` and `InvalidRequest`, whose messages contain no values.
    if source is None:
        return {}
    try:
        if source == STDIN:
            text = sys.stdin.read(HEADERS_CHARS_MAX + 1)
        else:
            with open(source, encoding="utf-8") as file:
                text = file.read(HEADERS_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        message = f"the headers cannot be read: {type(error).__name__}"
        raise typer.BadParameter(message, param_hint="--headers-from") from None
    if len(text) > HEADERS_CHARS_MAX:
        message = f"expected {HEADERS_CHARS_MAX} characters or fewer"
        raise typer.BadParameter(message, param_hint="--headers-from")
    headers: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = line.partition(":")
        if not colon:
            message = "expected one 'Name: value' a line"
            raise typer.BadParameter(message, param_hint="--headers-from")
        headers[name.strip()] = value.strip()
    return outgoing_headers(headers, None, "server")


@command(commands, "list")
async def list_servers(gateway: Installation, tenant: OfTenant = None, json_: Json = False) -> None:
    """List registered servers. Of their headers only the names are shown."""
    database = await gateway.database()
    servers = await registered(gateway.settings, database, await _tenant_id(database, tenant))
    terminal.listing(
        [{**server_json(one), "url": _without_query(one.url)} for one in servers.values()],
        {
            "LABEL": "label",
            "URL": "url",
            "HEADERS": lambda one: ", ".join(one["headers"]) or "none",
            "TRUSTED": lambda one: "yes" if one["trusted"] else "no",
            "ASKS": lambda one: "always" if one["always_asks"] else "as requests say",
            "TOOLS": lambda one: (
                "all" if one["allowed_tools"] is None else ", ".join(one["allowed_tools"])
            ),
            "FOR": lambda one: ", ".join(one["purposes"]),
        },
        as_json=json_,
    )


def _without_query(url: str) -> str:
    # A query may contain a key.
    return urlsplit(url)._replace(query="", fragment="").geturl()


@command(commands, "remove")
async def remove(gateway: Installation, label: Label, tenant: OfTenant = None) -> None:
    """Remove a server. Responses that run with it lose it within five seconds."""
    database = await gateway.database()
    if not await mcp_servers.remove(database, await _tenant_id(database, tenant), label):
        raise _unknown(label)
    terminal.show(f"MCP server {label} removed")


@command(commands, "check")
async def check(
    gateway: Installation,
    label: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    tenant: OfTenant = None,
) -> None:
    """Ask registered servers for their tools. Exit code 0: all have answered."""
    database = await gateway.database()
    servers = await registered(gateway.settings, database, await _tenant_id(database, tenant))
    if label is not None and label not in servers:
        raise _unknown(label)
    wanted = [one for one in servers.values() if label in {None, one.label}]
    results = await answers(gateway.settings, database, wanted)
    for name, (ok, detail) in results.items():
        terminal.step(terminal.OK if ok else terminal.BAD, name, detail)
    if not results:
        terminal.show("no MCP server is registered: harmony-gateway mcp add LABEL URL")
    if not all(ok for ok, _ in results.values()):
        raise typer.Exit(terminal.FAILED)


def _unknown(label: str) -> ResourceNotFound:
    return ResourceNotFound(f"There is no MCP server {label!r}.", param="label")


async def answers(
    settings: Settings, database: Database, wanted: list[McpServer]
) -> dict[str, tuple[bool, str]]:
    """Return by label whether a server answers, and what it offers or why not."""
    if not wanted:
        return {}
    async with _sessions(settings, database) as room:
        results = await asyncio.gather(*(_answer(room.sessions, one) for one in wanted))
    return {server.label: one for server, one in zip(wanted, results, strict=True)}


@asynccontextmanager
async def _sessions(settings: Settings, database: Database) -> AsyncIterator[McpRoom]:
    room = new_room(settings, database, _sealer(settings))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(room.sessions.run())
        try:
            yield room
        finally:
            running.cancel()


async def _answer(sessions: SessionPool, server: McpServer) -> tuple[bool, str]:
    try:
        pages = await sessions.list_tools(server.peer(OPERATOR, {}))
    except McpError as error:
        # Where it was not sent, the gateway did not connect at all, because of where the URL leads.
        is_refused_here = error.code == httpx2.codes.FORBIDDEN and not error.sent
        return False, f"{error}{_HINT if is_refused_here else ''}"
    names = {tool.name for tool in pages.tools}
    lacking = sorted((server.allowed_tools or set()) - names)
    if lacking:
        return False, f"it has no tool {', '.join(lacking)}"
    return True, f"{len(names)} tools"
