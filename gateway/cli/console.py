from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command, user_name
from gateway.console.login_sessions import LINK_S, LOGIN, Sessions, login_url
from gateway.errors import StartupError
from gateway.protocol.admin_bodies import DisplayName
from gateway.protocol.base import WireModel
from gateway.protocol.request_errors import validated
from gateway.settings.console import PrivateUrl, is_loopback
from gateway.settings.http_urls import listener_url
from gateway.tenancy.permissions import OPERATOR_ROLES, OperatorRole

if TYPE_CHECKING:
    from gateway.settings import Settings

commands = typer.Typer(no_args_is_help=True)


class LoginLink(WireModel):
    name: DisplayName
    role: OperatorRole


@command(commands, "login-link")
async def login_link(
    gateway: Installation,
    name: Annotated[
        str | None,
        typer.Option(help="Who signs in; the audit log has it. Default: the user's name here."),
    ] = None,
    role: Annotated[
        OperatorRole,
        typer.Option(help=f"One of {len(OPERATOR_ROLES)}: see docs/admin-api.md."),
    ] = "owner",
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
    wanted = validated(LoginLink, {"name": name or user_name(), "role": role})
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
