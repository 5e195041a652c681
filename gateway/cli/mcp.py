"""`mcp`: the MCP servers that requests may name by a label, and whether they answer."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import urlsplit

import httpx2
import typer

from gateway import ids
from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.errors import InvalidRequest, ResourceNotFound, StoreConflict
from gateway.sealing import Sealer, SealingSecret
from gateway.store import tenants
from gateway.store.tools import mcp_servers
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.mcp.failures import McpError
    from gateway.tools.mcp.servers import McpServer
    from gateway.tools.mcp.session_pool import SessionPool
    from gateway.wiring.mcp_room import McpRoom

commands = typer.Typer(no_args_is_help=True)

STDIN: Final = "-"
HEADERS_BYTES_MAX: Final = 65_536
_HINT: Final = "; a network of yours has to be in tools.mcp.networks"

Label = Annotated[str, typer.Argument(help="Letters, digits, '_' and '-': its server_label.")]
OfTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this tenant's. Default: every tenant's.")
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    """Store of registered servers: in the database, sealed, of one tenant or of all."""

    settings: Settings
    database: Database
    sealer: Sealer
    tenant_id: TenantId

    async def servers(self) -> Mapping[str, McpServer]:
        """Return the servers of this tenant, or those of all tenants, by label."""
        from gateway.tools.mcp.servers import Registry

        async def of_one(tenant_id: TenantId) -> dict[str, McpServerRow]:
            rows = await mcp_servers.of_tenant(self.database, tenant_id)
            return {row.label: row for row in rows}

        return await Registry(of_one, self.sealer).servers(self.tenant_id)


def _ask(config: Path | None, tenant: str | None, question: Callable[[_Place], Awaitable[T]]) -> T:
    async def answer(settings: Settings, database: Database) -> T:
        tenant_id = OPERATOR
        if tenant is not None:
            tenant_id = (await tenants.tenant_named(database, tenant)).id
        return await question(_Place(settings, database, _sealer(settings), tenant_id))

    return with_database(config, answer)


def _sealer(settings: Settings) -> Sealer:
    return Sealer([SealingSecret(*key) for key in settings.sealing_secrets])


@commands.command()
def add(  # noqa: PLR0913 - each is an option
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
    config: Config = None,
) -> None:
    """Register an MCP server."""
    given = _read_headers(headers_from)
    row = _row(label, url, purpose or ["mcp"])

    from gateway.tools.mcp.servers import sealed_headers

    async def insert(place: _Place) -> None:
        sealed = sealed_headers(place.sealer, place.tenant_id, row.id, given)
        allowed = None if allow is None else json.dumps(sorted(set(allow))).encode()
        made = McpServerRow(
            place.tenant_id,
            row.id,
            label,
            url,
            sealed,
            trusted,
            always_ask,
            allowed,
            row.purposes,
            call_timeout_s,
        )
        try:
            await mcp_servers.insert(place.database, made)
        except StoreConflict as conflict:
            message = f"There is an MCP server {label!r} already: remove it first."
            raise InvalidRequest(message, param="label") from conflict

    _ask(config, tenant, insert)
    terminal.show(f"MCP server {label} registered; next: harmony-gateway mcp check {label}")


def _row(label: str, url: str, purposes: list[str]) -> McpServerRow:
    # Checks everything that needs no database. Raises `typer.BadParameter`.
    from gateway.tools.mcp.servers import LABEL, checked_purposes, checked_url

    if not LABEL.fullmatch(label):
        message = "expected 1 to 64 letters, digits, '_' and '-'"
        raise typer.BadParameter(message, param_hint="LABEL")
    try:
        checked = checked_url(url, plain_http=True)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
    try:
        stored = checked_purposes(purposes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--purpose") from None
    return McpServerRow(OPERATOR, ids.new_uuid(), label, checked, purposes=stored)


def _read_headers(source: str | None) -> dict[str, str]:
    # Raises `typer.BadParameter` and `InvalidRequest`, whose messages contain no values.
    from gateway.tools.mcp.servers import outgoing_headers

    if source is None:
        return {}
    try:
        if source == STDIN:
            text = sys.stdin.read(HEADERS_BYTES_MAX)
        else:
            with open(source, encoding="utf-8") as file:
                text = file.read(HEADERS_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        message = f"the headers cannot be read: {type(error).__name__}"
        raise typer.BadParameter(message, param_hint="--headers-from") from None
    given: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = line.partition(":")
        if not colon:
            message = "expected one 'Name: value' a line"
            raise typer.BadParameter(message, param_hint="--headers-from")
        given[name.strip()] = value.strip()
    return outgoing_headers(given, None, "server")


@commands.command("list")
def list_servers(tenant: OfTenant = None, config: Config = None, json_: Json = False) -> None:
    """List registered servers. Of their headers only the names are shown."""
    from gateway.tools.mcp.servers import server_json

    known = _ask(config, tenant, lambda place: place.servers())
    shown = [{**server_json(one), "url": _without_query(one.url)} for one in known.values()]
    if json_:
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("LABEL", "URL", "HEADERS", "TRUSTED", "ASKS", "TOOLS", "FOR"),
        [
            (
                one["label"],
                one["url"],
                ", ".join(one["headers"]) or "none",
                "yes" if one["trusted"] else "no",
                "always" if one["always_asks"] else "as requests say",
                "all" if one["allowed_tools"] is None else ", ".join(one["allowed_tools"]),
                ", ".join(one["purposes"]),
            )
            for one in shown
        ],
    )


def _without_query(url: str) -> str:
    # A query may contain a key.
    return urlsplit(url)._replace(query="", fragment="").geturl()


@commands.command()
def remove(label: Label, tenant: OfTenant = None, config: Config = None) -> None:
    """Remove a server. Responses that run with it lose it within five seconds."""

    async def remove(place: _Place) -> bool:
        return await mcp_servers.remove(place.database, place.tenant_id, label)

    if not _ask(config, tenant, remove):
        raise ResourceNotFound(f"There is no MCP server {label!r}.", param="label")
    terminal.show(f"MCP server {label} removed")


@commands.command()
def check(
    label: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    tenant: OfTenant = None,
    config: Config = None,
) -> None:
    """Ask registered servers for their tools. Exit code 0: all have answered."""

    async def ask(place: _Place) -> dict[str, tuple[bool, str]]:
        known = await place.servers()
        if label is not None and label not in known:
            raise ResourceNotFound(f"There is no MCP server {label!r}.", param="label")
        wanted = [one for one in known.values() if label in {None, one.label}]
        return await answers(place.settings, place.database, wanted)

    found = _ask(config, tenant, ask)
    for name, (ok, detail) in found.items():
        terminal.step(terminal.OK if ok else terminal.BAD, name, detail)
    if not found:
        terminal.show("no MCP server is registered: harmony-gateway mcp add LABEL URL")
    if not all(ok for ok, _ in found.values()):
        raise typer.Exit(terminal.FAILED)


async def registered(settings: Settings, database: Database) -> list[McpServer]:
    """Return the servers of all tenants, for `doctor`."""
    known = await _Place(settings, database, _sealer(settings), OPERATOR).servers()
    return list(known.values())


async def answers(
    settings: Settings, database: Database, wanted: list[McpServer]
) -> dict[str, tuple[bool, str]]:
    """Return by label whether each server answers, and what it offers or why it does not."""
    if not wanted:
        return {}
    async with _sessions(settings, database) as room:
        told = await asyncio.gather(*(_answer(room.sessions, one) for one in wanted))
    return {server.label: one for server, one in zip(wanted, told, strict=True)}


@asynccontextmanager
async def _sessions(settings: Settings, database: Database) -> AsyncIterator[McpRoom]:
    from gateway.wiring.mcp_room import new_room

    room = new_room(settings, database, _sealer(settings))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(room.sessions.run())
        try:
            yield room
        finally:
            running.cancel()


def _is_refused_here(error: McpError) -> bool:
    # The gateway did not connect at all, because of where the URL leads.
    return error.code == httpx2.codes.FORBIDDEN and not error.sent


async def _answer(sessions: SessionPool, server: McpServer) -> tuple[bool, str]:
    from gateway.tools.mcp.failures import McpError

    try:
        pages = await sessions.list_tools(server.peer(OPERATOR, {}))
    except McpError as error:
        return False, f"{error}{_HINT if _is_refused_here(error) else ''}"
    names = {tool.name for tool in pages.tools}
    lacking = sorted((server.allowed_tools or set()) - names)
    if lacking:
        return False, f"it has no tool {', '.join(lacking)}"
    return True, f"{len(names)} tools"
