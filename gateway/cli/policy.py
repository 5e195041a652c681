"""`tenants set` and `tenants show`: what an operator decides for one tenant."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, run
from gateway.cli.provision import tenants_and_keys
from gateway.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.services.access import TenantDetail
    from gateway.settings import Settings
    from gateway.store.tenants import PolicyChanges

DEFAULT: Final = "default"
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")
_NUMBERS: Final = {
    "log_retention_s": ("--log-retention-h", HOUR_S),
    "response_retention_s": ("--response-retention-d", DAY_S),
    "background_running_max": ("--background-running-max", 1),
    "background_queued_max": ("--background-queued-max", 1),
    "reasoning_budget_tokens": ("--reasoning-budget-tokens", 1),
}
"""The option of each number in a policy, and how many of the policy's units are one of its own."""

TenantName = Annotated[str, typer.Argument(help="Which tenant.")]
OnDisconnect = Literal["cancel", "continue", "default"]
ReasoningSummary = Literal["analysis", "off", "default"]
ServiceTierMax = Literal["default", "priority"]
ResponseMessages = Literal["refused", "allowed", "default"]


def show(name: TenantName, config: Config = None, json_: Json = False) -> None:
    """Show what counts for a tenant, and whether that is its own or the configuration's."""
    _print(run(_show(load_settings(config), name)), as_json=json_)


async def _show(settings: Settings, name: str) -> TenantDetail:
    async with tenants_and_keys(settings) as access:
        return await access.show_tenant(name)


def change(  # noqa: PLR0913 - each is an option
    name: TenantName,
    on_disconnect: Annotated[
        OnDisconnect | None,
        typer.Option(help="What becomes of a stored response whose client hangs up."),
    ] = None,
    log_retention_h: Annotated[
        str | None,
        typer.Option(
            metavar="N|default", help="Hours after its end that a response can be streamed again."
        ),
    ] = None,
    response_retention_d: Annotated[
        str | None, typer.Option(metavar="N|default", help="Days that a stored response is kept.")
    ] = None,
    background_running_max: Annotated[
        str | None,
        typer.Option(
            metavar="N|default", help="Background responses generated at once by all replicas."
        ),
    ] = None,
    background_queued_max: Annotated[
        str | None, typer.Option(metavar="N|default", help="Background responses that may wait.")
    ] = None,
    reasoning_summary: Annotated[
        ReasoningSummary | None,
        typer.Option(help="What summaries of reasoning are made from, or that there are none."),
    ] = None,
    reasoning_budget_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N|default",
            help="Tokens of reasoning of requests that name no bound; 0: any number.",
        ),
    ] = None,
    service_tier_max: Annotated[
        ServiceTierMax | None,
        typer.Option(help="The best tier of its requests; without a policy it is `default`, too."),
    ] = None,
    response_messages: Annotated[
        ResponseMessages | None,
        typer.Option(help="Whether its requests may ask for their Harmony messages and token ids."),
    ] = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Change what counts for a tenant; `default` goes back to the configuration.

    What is not named stays. Every replica follows within auth.key_cache_ttl_s.
    """
    given = {
        "on_disconnect": on_disconnect,
        "log_retention_s": log_retention_h,
        "response_retention_s": response_retention_d,
        "background_running_max": background_running_max,
        "background_queued_max": background_queued_max,
        "reasoning_summary": reasoning_summary,
        "reasoning_budget_tokens": reasoning_budget_tokens,
        "service_tier_max": service_tier_max,
        "response_messages": response_messages,
    }
    changes = _changes({field: text for field, text in given.items() if text is not None})
    _print(run(_change(load_settings(config), name, changes)), as_json=json_)


async def _change(settings: Settings, name: str, changes: PolicyChanges) -> TenantDetail:
    async with tenants_and_keys(settings) as access:
        return await access.set_policy(name, changes)


def _changes(given: Mapping[str, str]) -> PolicyChanges:
    """What the options say, by the names of the policy; None for `default`."""
    changes = {
        field: None if text == DEFAULT else _number(field, text) if field in _NUMBERS else text
        for field, text in given.items()
    }
    return cast("PolicyChanges", changes)


def _number(field: str, text: str) -> int:
    """Raises `typer.BadParameter`, which ends the command with code 2."""
    option, unit = _NUMBERS[field]
    if not _NUMBER.match(text):
        raise typer.BadParameter(
            f"{text!r} is neither a whole number nor {DEFAULT!r}.", param_hint=option
        )
    return int(text) * unit


def _print(detail: TenantDetail, *, as_json: bool) -> None:
    own, policy = asdict(detail.own), asdict(detail.policy)
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
