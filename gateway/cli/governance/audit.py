"""`audit`: who changed what, and whether the record of it holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.errors import InvalidRequest
from gateway.store import tenants
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.services.audit_logs import AuditLogs, ChainState
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

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
T = TypeVar("T")


def _ask(
    config: Path | None, tenant: str | None, question: Callable[[AuditLogs, UUID], Awaitable[T]]
) -> T:
    async def answer(_: Settings, database: Database) -> T:
        from gateway.services.audit_logs import AuditLogs

        chain: UUID = EVERYONE
        if tenant is not None:
            chain = (await tenants.tenant_named(database, tenant)).id
        return await question(AuditLogs(database), chain)

    return with_database(config, answer)


@commands.command("list")
def list_entries(
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The newest so many.")] = 20,
    config: Config = None,
    json_: Json = False,
) -> None:
    """List entries, the newest first."""
    from gateway.services.audit_logs import AuditQuery

    async def ask(logs: AuditLogs, chain: UUID) -> list[dict[str, object]]:
        page = await logs.list_entries(chain, AuditQuery(limit=limit), names_operators=True)
        found: list[dict[str, object]] = page["data"]
        return found

    found = _ask(config, tenant, ask)
    if json_:
        terminal.show(json.dumps(found))
        return
    terminal.table(
        ("AT", "TYPE", "TARGET", "BY"),
        [(_at(one), str(one["type"]), _target(one), _by(one)) for one in found],
    )


def _at(entry: dict[str, object]) -> str:
    return datetime.fromtimestamp(int(str(entry["effective_at"])), UTC).isoformat()


def _target(entry: dict[str, object]) -> str:
    told = entry[str(entry["type"])]
    return str(told["id"]) if isinstance(told, dict) else ""


def _by(entry: dict[str, object]) -> str:
    # An operator by name; an actor of a tenant as the tenant's log shows it.
    ours = entry.get("harmony")
    return str(ours["operator"]) if isinstance(ours, dict) else json.dumps(entry["actor"])


def _time(at: str | None) -> datetime | None:
    # None: earlier releases did not print it.
    return None if at is None else datetime.fromisoformat(at).astimezone(UTC)


def _kept(file: Path) -> list[ChainState]:
    # Reads an earlier output of `verify --json`. Raises `InvalidRequest`.
    from gateway.services.audit_logs import ChainState

    try:
        return [
            ChainState(
                UUID(one["tenant_id"]),
                int(one["entries"]),
                int(one["number"]),
                bytes.fromhex(one["head"]).hex(),
                (),
                _time(one.get("at")),
            )
            for one in json.loads(file.read_bytes())
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidRequest(
            f"{file} is not what 'audit verify --json' printed.", param="heads"
        ) from error


@commands.command()
def verify(heads: Heads = None, config: Config = None, json_: Json = False) -> None:
    """Check all chains from their oldest entries on. Exit code 0: nothing was changed or removed.

    Keep what --json prints elsewhere, for --heads: only that tells whether the newest entries were
    cut off, old ones removed before their time, or a chain made anew.
    """
    kept = [state for file in heads or () for state in _kept(file)]
    states = _ask(config, None, lambda logs, _: logs.verify(kept=kept))
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
