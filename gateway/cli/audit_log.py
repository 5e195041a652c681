from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter, ValidationError

from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command
from gateway.errors import InvalidRequest
from gateway.services.audit_logs import AuditLogs, AuditQuery, ChainState
from gateway.store import tenants
from gateway.store.schema import EVERYONE

commands = typer.Typer(no_args_is_help=True)

OfTenant = Annotated[
    str | None, typer.Option("--tenant", help="Of this tenant. Default: what concerns none.")
]
Heads = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="What --json printed before: it must be there still. May be given several times.",
    ),
]


@command(commands, "list")
async def list_entries(
    gateway: Installation,
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The newest so many.")] = 20,
    json_: Json = False,
) -> None:
    """List entries, the newest first."""
    database = await gateway.database()
    chain: UUID = EVERYONE
    if tenant is not None:
        chain = (await tenants.tenant_named(database, tenant, is_purged=True)).id
    logs = AuditLogs(database)
    page = await logs.list_entries(chain, AuditQuery(limit=limit), names_operators=True)
    terminal.listing(
        page["data"], {"AT": _at, "TYPE": "type", "TARGET": _target, "BY": _by}, as_json=json_
    )


def _at(entry: dict[str, Any]) -> str:
    return datetime.fromtimestamp(entry["effective_at"], UTC).isoformat()


def _target(entry: dict[str, Any]) -> str:
    event = entry[entry["type"]]
    return str(event["id"]) if isinstance(event, dict) else ""


def _by(entry: dict[str, Any]) -> str:
    # An operator by name; an actor of a tenant as the tenant's log shows it.
    ours = entry.get("harmony")
    return str(ours["operator"]) if isinstance(ours, dict) else json.dumps(entry["actor"])


class _Head(BaseModel):
    """Element of an earlier output of `verify --json`; `at` was not always printed."""

    tenant_id: UUID
    entries: int
    number: int
    head: Annotated[str, Field(pattern="^(?:[0-9a-f]{2})*$")]
    at: AwareDatetime | None = None


_HEADS: Final = TypeAdapter(list[_Head])


def _kept(file: Path) -> list[ChainState]:
    try:
        heads = _HEADS.validate_json(file.read_bytes())
    except ValidationError as error:
        raise InvalidRequest(
            f"{file} is not what 'audit verify --json' printed.", param="heads"
        ) from error
    return [
        ChainState(one.tenant_id, one.entries, one.number, one.head, (), one.at) for one in heads
    ]


@command(commands, "verify")
async def verify(gateway: Installation, heads: Heads = None, json_: Json = False) -> None:
    """Check all chains from their oldest entries on. Exit code 0: nothing was changed or removed.

    Keep what --json prints elsewhere, for --heads: only that tells whether the newest entries were
    cut off, old ones removed before their time, or a chain made anew.
    """
    kept = [state for file in heads or () for state in _kept(file)]
    states = await AuditLogs(await gateway.database()).verify(kept=kept)
    if json_:
        rows = [
            {
                "tenant_id": str(one.tenant_id),
                "entries": one.count,
                "number": one.number,
                "head": one.head,
                "at": None if one.at is None else one.at.isoformat(),
                "faults": list(one.faults),
            }
            for one in states
        ]
        terminal.show(json.dumps(rows))
    for one in [] if json_ else states:
        who = "operator" if one.tenant_id == EVERYONE else str(one.tenant_id)
        detail = f"{one.count} entries, head {one.number} {one.head}"
        terminal.step(terminal.BAD if one.faults else terminal.OK, who, detail)
        for fault in one.faults:
            terminal.show(f"    {fault}")
    if any(one.faults for one in states):
        raise typer.Exit(terminal.FAILED)
