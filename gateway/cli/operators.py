"""`operators`: keys for `/admin/v1` on the admin listener; `console`: sign-in to its pages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gateway.admin.operator_keys import OperatorCreate, Operators, operator_key_body
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command, show_key, user_name
from gateway.console.login_sessions import LINK_S, LOGIN, Sessions, login_url
from gateway.errors import StartupError
from gateway.protocol.request_errors import validated
from gateway.settings.console import PrivateUrl, is_loopback
from gateway.settings.http_urls import listener_url
from gateway.tenancy.permissions import OPERATOR_ROLES, OperatorRole

if TYPE_CHECKING:
    from gateway.settings import Settings

commands = typer.Typer(no_args_is_help=True)
console = typer.Typer(no_args_is_help=True)

Role = Annotated[
    OperatorRole, typer.Option(help=f"One of {len(OPERATOR_ROLES)}: see docs/admin-api.md.")
]


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
    role: Role = "owner",
    json_: Json = False,
) -> None:
    """Create a key for /admin/v1 and print it: it is shown once."""
    body = {"name": name, "role": role, "expires_in_seconds": expires_in_s}
    wanted = validated(OperatorCreate, body)
    operators = await _operators(gateway)
    key, secret = await operators.create(COMMAND_LINE, wanted)
    shown = json.dumps({**operator_key_body(key), "key": secret}) if json_ else secret
    await show_key(shown, lambda: operators.disable(COMMAND_LINE, str(key.id)))
    if not json_:
        terminal.note(f"operator's key {name}; it will not be shown again")


@command(commands, "list")
async def list_keys(gateway: Installation, json_: Json = False) -> None:
    """List keys of operators by their last characters."""
    operators = await _operators(gateway)
    terminal.listing(
        list(map(operator_key_body, await operators.list())),
        {
            "ID": "id",
            "NAME": "name",
            "ROLE": "role",
            "KEY": "redacted_value",
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
    operators = await _operators(gateway)
    await operators.disable(COMMAND_LINE, key)
    terminal.show(f"operator's key {key} disabled")


@command(console, "login-link")
async def login_link(
    gateway: Installation,
    name: Annotated[
        str | None,
        typer.Option(help="Who signs in; the audit log has it. Default: the user's name here."),
    ] = None,
    role: Role = "owner",
    url: Annotated[
        PrivateUrl | None,
        typer.Option(
            metavar="URL",
            help="Origin of the console. Default: console.public_url, else admin.port.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Print a link that signs in to the console once, within ten minutes.

    It needs no sign-in of its own: whoever may run this with the gateway's configuration, may
    operate the gateway.
    """
    origin = url or _origin(gateway.settings)
    wanted = validated(OperatorCreate, {"name": name or user_name(), "role": role})
    access = await gateway.access()
    sessions = Sessions(await gateway.database(), access.peppers)
    link = login_url(origin, await sessions.create_link(wanted.name, wanted.role))
    if json_:
        terminal.show_once(json.dumps({"url": link, "expires_in_s": LINK_S}))
        return
    terminal.show_once(link)
    terminal.note(f"for {wanted.name}, as {wanted.role}: once, within {LINK_S // 60} minutes")


def _origin(settings: Settings) -> str:
    # A port that the system picks is only in the log of the gateway.
    if not settings.console.enabled:
        raise StartupError(
            "the console is off",
            remedy="Set console.enabled to true, and admin.port; or give its address by --url.",
        )
    if settings.console.public_url is not None:
        return settings.console.public_url
    if not settings.admin.port:
        raise StartupError(
            f"admin.port is 0, so the address before {LOGIN} is not known here",
            remedy="Give the address that the gateway's log names by --url.",
        )
    origin = listener_url(settings.admin.host, settings.admin.port)
    if not is_loopback(urlsplit(origin).hostname or ""):
        raise StartupError(
            f"the console answers at addresses of this machine only, not at {origin}",
            remedy="Set console.public_url to the origin that browsers see, with https.",
        )
    return origin
