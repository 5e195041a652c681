"""`operators`: keys for `/admin/v1` on the admin listener."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from gateway.admin.operator_keys import OperatorCreate, Operators, role_of_row
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command, show_key
from gateway.protocol.request_errors import validated
from gateway.tenancy.permissions import OPERATOR_ROLES, OperatorRole

if TYPE_CHECKING:
    from gateway.store.postgres.database import Row

commands = typer.Typer(no_args_is_help=True)


async def _operators(gateway: Installation) -> Operators:
    access = await gateway.access()
    return Operators(await gateway.database(), access.peppers)


@command(commands, "create")
async def create(
    gateway: Installation,
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    expires_in_s: Annotated[
        int | None, typer.Option(min=1, help="Seconds that it works. Default: until disabled.")
    ] = None,
    role: Annotated[
        OperatorRole,
        typer.Option(help=f"One of {len(OPERATOR_ROLES)}: see docs/admin-api.md."),
    ] = "owner",
    json_: Json = False,
) -> None:
    """Create a key for /admin/v1 and print it: it is shown once."""
    body = {"name": name, "role": role, "expires_in_seconds": expires_in_s}
    wanted = validated(OperatorCreate, body)
    operators = await _operators(gateway)
    key, secret = await operators.create(COMMAND_LINE, wanted)
    shown = json.dumps({**_body(key), "key": secret}) if json_ else secret
    await show_key(shown, lambda: operators.disable(COMMAND_LINE, str(key.id)))
    if not json_:
        terminal.note(f"operator's key {name}; it will not be shown again")


@command(commands, "list")
async def list_keys(gateway: Installation, json_: Json = False) -> None:
    """List keys of operators by their last characters."""
    operators = await _operators(gateway)
    terminal.listing(
        list(map(_body, await operators.list())),
        {
            "ID": "id",
            "NAME": "name",
            "ROLE": "role",
            "KEY": lambda one: f"…{one['hint']}",
            "STATE": lambda one: "disabled" if one["disabled_at"] else "active",
        },
        as_json=json_,
    )


@command(commands, "disable")
async def disable(
    gateway: Installation,
    key: Annotated[str, typer.Argument(help="Its id, as `operators list` shows it.")],
) -> None:
    """Disable a key of an operator at once."""
    try:
        UUID(key)
    except ValueError:
        raise typer.BadParameter(
            f"{key!r} is no id; see: operators list", param_hint="KEY"
        ) from None
    operators = await _operators(gateway)
    await operators.disable(COMMAND_LINE, key)
    terminal.show(f"operator's key {key} disabled")


def _body(key: Row) -> dict[str, Any]:
    return {
        "id": str(key.id),
        "name": key.name,
        "role": role_of_row(key),
        "hint": key.hint,
        "created_at": key.created_at.isoformat(),
        "disabled_at": key.disabled_at.isoformat() if key.disabled_at else None,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
    }
