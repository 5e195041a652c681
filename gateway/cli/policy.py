"""`tenants set` and `tenants show`: what an operator decides for one tenant."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, run
from gateway.cli.provision import tenants_and_keys
from gateway.settings import load_settings
from gateway.tenancy import POLICY_VALUES
from gateway.tenancy.policy import DAY_S, HOUR_S

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.services.access import TenantDetail
    from gateway.settings import Settings
    from gateway.tenancy import PolicyChanges, PolicyValue

DEFAULT: Final = "default"
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")

TenantName = Annotated[str, typer.Argument(help="Which tenant.")]


def show(name: TenantName, config: Config = None, json_: Json = False) -> None:
    """Show what counts for a tenant, and whether that is its own or the configuration's."""
    _print(run(_show(load_settings(config), name)), as_json=json_)


async def _show(settings: Settings, name: str) -> TenantDetail:
    async with tenants_and_keys(settings) as access:
        return await access.show_tenant(name)


def _option(value: PolicyValue) -> Parameter:
    """The option of a policy value, as typer reads it from a signature."""
    words = tuple(dict.fromkeys((*value.words, DEFAULT)))
    kind: Any = Literal[words] if value.words else str
    metavar = None if value.words else f"N|{DEFAULT}"
    option = typer.Option(
        value.option_name, help=value.option_help, metavar=metavar, show_default=False
    )
    annotation = Annotated[kind | None, option]
    return Parameter(value.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def change(name: str, config: Path | None, *, json_: bool, **given: str | None) -> None:
    """Change what counts for a tenant; `default` goes back to the configuration.

    What is not named stays. Every replica follows within auth.key_cache_ttl_s.
    """
    changes = {
        field: _value(POLICY_VALUES[field], text)
        for field, text in given.items()
        if text is not None
    }
    _print(run(_change(load_settings(config), name, changes)), as_json=json_)


# typer makes a command's options from its signature: here from the list of policy values.
change.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        Parameter("name", Parameter.KEYWORD_ONLY, annotation=TenantName),
        *map(_option, POLICY_VALUES.values()),
        Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Config),
        Parameter("json_", Parameter.KEYWORD_ONLY, default=False, annotation=Json),
    ]
)
change.__annotations__ = {one.name: one.annotation for one in signature(change).parameters.values()}


async def _change(settings: Settings, name: str, changes: PolicyChanges) -> TenantDetail:
    async with tenants_and_keys(settings) as access:
        return await access.set_policy(name, changes)


def _value(value: PolicyValue, text: str) -> str | int | None:
    """What an option says, in the policy's unit; None for `default`.

    Raises `typer.BadParameter`, which ends the command with code 2.
    """
    if text == DEFAULT:
        return None
    if value.words:
        return text
    if not _NUMBER.match(text):
        raise typer.BadParameter(
            f"{text!r} is neither a whole number nor {DEFAULT!r}.",
            param_hint=value.option_name,
        )
    return int(text) * value.option_unit


def _print(detail: TenantDetail, *, as_json: bool) -> None:
    own = {value: detail.own.get(value) for value in POLICY_VALUES}
    policy = asdict(detail.policy)
    tenant = detail.tenant
    if as_json:
        disabled_at = tenant.disabled_at.isoformat() if tenant.disabled_at else None
        shown = {
            "name": tenant.name,
            "id": str(tenant.id),
            "created_at": tenant.created_at.isoformat(),
            "disabled_at": disabled_at,
            "policy": policy,
            "own": own,
        }
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("POLICY", "VALUE", "FROM"),
        [
            (name, _spelled(name, value), DEFAULT if own[name] is None else f"tenant {tenant.name}")
            for name, value in policy.items()
        ],
    )


def _spelled(name: str, value: str | int) -> str:
    """Seconds as the hours and days that the options take, where they come out even."""
    if isinstance(value, str) or not name.endswith("_s"):
        return str(value)
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h")):
        if value % unit_s == 0:
            return f"{value} ({value // unit_s} {unit})"
    return str(value)
