"""`operators`: keys of those who run the gateway, for `/admin/v1` on the admin listener."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from gateway.admin.operator_keys import OperatorCreate, Operators
from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.protocol.request_errors import validated
from gateway.tenancy.permissions import OPERATOR_ROLES, OperatorRole
from gateway.wiring.databases import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.admin.operator_keys import OperatorKey

commands = typer.Typer(no_args_is_help=True)
T = TypeVar("T")


def _ask(config: Path | None, question: Callable[[Operators], Awaitable[T]]) -> T:
    return with_database(
        config,
        lambda settings, database: question(
            Operators(database, access(settings, database).peppers)
        ),
    )


@commands.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    expires_in_s: Annotated[
        int | None, typer.Option(min=1, help="Seconds that it works. Default: until disabled.")
    ] = None,
    role: Annotated[
        OperatorRole,
        typer.Option(help=f"One of {len(OPERATOR_ROLES)}: see docs/admin-api.md."),
    ] = "owner",
    config: Config = None,
    json_: Json = False,
) -> None:
    """Create a key for /admin/v1 and print it: it is shown once."""
    body = {"name": name, "role": role, "expires_in_seconds": expires_in_s}
    wanted = validated(OperatorCreate, body)
    key, secret = _ask(config, lambda operators: operators.create(wanted))
    if json_:
        terminal.show(json.dumps({**_body(key), "key": secret}))
        return
    terminal.show(secret)
    terminal.note(f"operator's key {name}; it will not be shown again")


@commands.command("list")
def list_keys(config: Config = None, json_: Json = False) -> None:
    """List keys of operators by their last characters."""
    shown = [_body(one) for one in _ask(config, lambda operators: operators.list())]
    if json_:
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("ID", "NAME", "ROLE", "KEY", "STATE"),
        [
            (
                one["id"],
                one["name"],
                one["role"],
                f"…{one['hint']}",
                "disabled" if one["disabled_at"] else "active",
            )
            for one in shown
        ],
    )


@commands.command("disable")
def disable(
    key: Annotated[str, typer.Argument(help="Its id, as `operators list` shows it.")],
    config: Config = None,
) -> None:
    """Disable a key of an operator at once."""
    try:
        key_id = UUID(key)
    except ValueError:
        raise typer.BadParameter(
            f"{key!r} is no id; see: operators list", param_hint="KEY"
        ) from None
    _ask(config, lambda operators: operators.disable(key_id))
    terminal.show(f"operator's key {key} disabled")


def _body(key: OperatorKey) -> dict[str, Any]:
    return {
        "id": str(key.id),
        "name": key.name,
        "role": key.role,
        "hint": key.hint,
        "created_at": key.created_at.isoformat(),
        "disabled_at": key.disabled_at.isoformat() if key.disabled_at else None,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
    }
