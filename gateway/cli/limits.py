"""`limits`, `budgets` and `prices`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from gateway import ids
from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.prices import PriceCreate, PriceEnd, Prices, price_body
from gateway.admin.spend_limits import CAP_MAX, SpendLimits
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, TenantName, command
from gateway.errors import ResourceNotFound
from gateway.limits.money import NANO, dollars
from gateway.limits.rules import ALL_MODELS, DAY_S, MINUTE_S, Interval, Unit, What
from gateway.protocol.request_errors import validated

if TYPE_CHECKING:
    from gateway.admin.spend_limits import BudgetState
    from gateway.limits.rules import Budget, Limit, Mode
    from gateway.store.limits.alerts import SpendAlert
    from gateway.tenancy import TenantId

limits = typer.Typer(no_args_is_help=True)
budgets = typer.Typer(no_args_is_help=True)
prices = typer.Typer(no_args_is_help=True)

NONE: Final = "none"
PER_MILLION: Final = 10**6
_DIGITS: Final = re.compile(r"[0-9]{1,20}")
_PERCENT: Final = re.compile(r"[0-9]{1,4}")
_TIMES: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
_WINDOWS: Final = {MINUTE_S: "minute", DAY_S: "day", 0: "at once"}
_OPTIONS: Final[dict[str, tuple[What, int]]] = {
    "requests_per_minute": ("requests", MINUTE_S),
    "requests_per_day": ("requests", DAY_S),
    "tokens_per_minute": ("tokens", MINUTE_S),
    "tokens_per_day": ("tokens", DAY_S),
    "input_tokens_per_minute": ("input_tokens", MINUTE_S),
    "output_tokens_per_minute": ("output_tokens", MINUTE_S),
    "concurrent_responses": ("responses", 0),
    "websockets": ("websockets", 0),
    "stored_bytes": ("stored_bytes", 0),
    "background_running": ("background_running", 0),
    "background_queued": ("background_queued", 0),
}
"""Quantities, and windows in seconds."""

Project = Annotated[str | None, typer.Option(help="One of its projects, by its id.")]
KeyId = Annotated[str | None, typer.Option("--key", help="One of its keys, by its id.")]
Number = Annotated[str | None, typer.Option(metavar="N|none", help="A number, or none: no limit.")]
Observe = Annotated[
    bool | None,
    typer.Option(
        "--observe/--enforce",
        help="Count what it would refuse (metrics), and refuse nothing. Default: as it is.",
    ),
]


async def _limits_of(gateway: Installation) -> Limits:
    database = await gateway.database()
    return Limits(database, gateway.settings.model_aliases)


async def _prices_of(gateway: Installation) -> Prices:
    database = await gateway.database()
    return Prices(database, gateway.settings.model_aliases)


async def _owner_of(
    service: Limits, tenant: str, project: str | None, key: str | None
) -> LimitOwner:
    tenant_id = await service.tenant(tenant)
    if key is not None:
        return await service.key(tenant_id, ids.parse_api_key_id(key) or _uuid(key, "--key"))
    if project is not None:
        project_id = ids.parse_project_id(project) or _uuid(project, "--project")
        return await service.of_project(tenant_id, ids.project_id(project_id))
    return LimitOwner.of_tenant(tenant_id)


def _uuid(text: str, option: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no id.", param_hint=option) from None


@command(
    limits,
    "set",
    more=[
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Number)
        for name in _OPTIONS
    ],
)
async def set_limits(  # noqa: PLR0913 - its options
    gateway: Installation,
    /,
    tenant: TenantName,
    project: Project = None,
    key: KeyId = None,
    model: Annotated[str, typer.Option(help="Only requests for this model.")] = ALL_MODELS,
    observe: Observe = None,
    json_: Json = False,
    **options: str | None,
) -> None:
    """Set limits of a tenant, a project or a key. What is not named stays as it is; --observe or
    --enforce alone is for all of the model.
    """
    values = {_OPTIONS[name]: _number(text) for name, text in options.items() if text is not None}
    service = await _limits_of(gateway)
    owner = await _owner_of(service, tenant, project, key)
    limits = await service.set_limits(owner, values, model=model, mode=_mode(observe))
    _show_limits(limits, as_json=json_)


@command(limits, "list")
async def list_limits(gateway: Installation, tenant: TenantName, json_: Json = False) -> None:
    """List all limits of a tenant, its projects and its keys."""
    service = await _limits_of(gateway)
    _show_limits(await service.limits(await service.tenant(tenant)), as_json=json_)


@command(limits, "storage")
async def list_storage(gateway: Installation, json_: Json = False) -> None:
    """List the limits of stored bytes of all tenants with what is stored, the fullest first."""
    service = await _limits_of(gateway)
    terminal.listing(
        [
            {
                "tenant": one.tenant,
                "scope": one.limit.scope,
                "id": str(one.limit.scope_id),
                "stored": one.stored_bytes,
                "limit": one.limit.value,
            }
            for one in await service.storage()
        ],
        _columns("tenant", "scope", "id", "stored", "limit"),
        as_json=json_,
    )


@command(budgets, "set")
async def set_budget(  # noqa: PLR0913 - its options
    gateway: Installation,
    tenant: TenantName,
    usd: Annotated[str | None, typer.Option(help="Dollars, as in 250 or 0.05.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="Tokens instead.")] = None,
    interval: Annotated[
        Interval, typer.Option(help="day, month (UTC), or none: it never begins anew.")
    ] = "month",
    project: Project = None,
    key: KeyId = None,
    observe: Observe = None,
    alert_at: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT,…|none",
            help="Where somebody is told, as in 50,80,100, in place of what was set before.",
        ),
    ] = None,
) -> None:
    """Set a budget. Once it is spent new requests are answered 429; those under way end.

    Without --alert-at alerts stay at the amounts that they have.
    """
    if (usd is None) == (tokens is None):
        raise typer.BadParameter("Give either --usd or --tokens.")
    unit: Unit = "tokens" if usd is None else "usd"
    cap = tokens if usd is None else _nano(usd)
    assert cap is not None, "one of the two was given"
    shares = None if alert_at is None else _percentages(alert_at)
    owner = await _owner_of(await _limits_of(gateway), tenant, project, key)
    await SpendLimits(await gateway.database()).set_budget(
        owner, cap, unit=unit, interval=interval, mode=_mode(observe), alert_at=shares
    )
    terminal.show(f"budget of tenant {tenant} set")


@command(budgets, "remove")
async def remove_budget(
    gateway: Installation,
    tenant: TenantName,
    unit: Annotated[Unit, typer.Option(help="usd or tokens.")] = "usd",
    interval: Annotated[Interval, typer.Option(help="day, month or none.")] = "month",
    project: Project = None,
    key: KeyId = None,
) -> None:
    """Remove the budget of a tenant, a project or a key, and its alerts: nothing of it is refused
    any more.
    """
    owner = await _owner_of(await _limits_of(gateway), tenant, project, key)
    service = SpendLimits(await gateway.database())
    if not await service.remove_budget(owner, unit, interval, with_alerts=True):
        raise ResourceNotFound(
            f"It has no budget of {unit} with interval {interval}.", param="budget"
        )
    terminal.show(f"budget of tenant {tenant} removed")


@command(budgets, "list")
async def list_budgets(gateway: Installation, tenant: TenantName, json_: Json = False) -> None:
    """List budgets, the spending of each, and the thresholds of its alerts (--alert-at)."""
    service = SpendLimits(await gateway.database())
    tenant_id = await (await _limits_of(gateway)).tenant(tenant)
    terminal.listing(
        [
            _budget(one, await _alerts(service, tenant_id, one.budget))
            for one in await service.budgets(tenant_id)
        ],
        {
            **_columns("scope", "id", "interval", "cap", "spent", "unit", "mode"),
            "ALERTS": lambda row: ", ".join(alert["threshold"] for alert in row["alerts"]),
        },
        as_json=json_,
    )


Usd = Annotated[str | None, typer.Option(metavar="USD", help="Dollars for a million tokens.")]
UsdEach = Annotated[str | None, typer.Option(metavar="USD", help="Dollars for a call.")]
OfTenant = Annotated[str | None, typer.Option(help="Only for this tenant.")]
Tier = Annotated[str, typer.Option(help="Only for this service tier.")]


@command(prices, "set")
async def set_price(  # noqa: PLR0913 - its options
    gateway: Installation,
    model: Annotated[str, typer.Argument(help="Which model.")],
    input_: Annotated[
        str | None, typer.Option("--input", metavar="USD", help="For a million tokens of input.")
    ] = None,
    cached: Usd = None,
    output: Usd = None,
    tool_call: UsdEach = None,
    web_search: UsdEach = None,
    tenant: OfTenant = None,
    tier: Tier = "*",
    begin: Annotated[
        datetime | None, typer.Option("--from", formats=_TIMES, help="In UTC. Default: now.")
    ] = None,
) -> None:
    """Set what a model costs from now on. What has been used keeps what it cost."""
    tokens = {"input": input_, "input_cached": cached, "output": output}
    calls = {"tool_call": tool_call, "web_search": web_search}
    nano = {name: _nano(text, PER_MILLION) for name, text in tokens.items() if text is not None}
    nano |= {name: _nano(text) for name, text in calls.items() if text is not None}
    valid_from = None if begin is None else int(begin.replace(tzinfo=UTC).timestamp())
    body = validated(
        PriceCreate,
        {
            "model": model,
            "tier": tier,
            "tenant": tenant,
            "nano_per_unit": nano,
            "valid_from": valid_from,
        },
    )
    service = await _prices_of(gateway)
    price = await service.set(COMMAND_LINE, body)
    terminal.show(f"price {price.id} of {model} set")


@command(prices, "end")
async def end_price(
    gateway: Installation,
    model: Annotated[str, typer.Argument(help="Which model.")],
    tenant: OfTenant = None,
    tier: Tier = "*",
) -> None:
    """End the price of a model: from now on another one counts, or none."""
    body = validated(PriceEnd, {"model": model, "tier": tier, "tenant": tenant})
    service = await _prices_of(gateway)
    await service.end(COMMAND_LINE, body)
    terminal.show(f"price of {model} ended")


@command(prices, "list")
async def list_prices(gateway: Installation, json_: Json = False) -> None:
    """List all prices, those that are over included."""
    service = await _prices_of(gateway)
    terminal.listing(
        list(map(price_body, await service.list())),
        {
            **_columns("model", "tier"),
            "TENANT": lambda row: row["tenant_id"] or "all",
            "NANO-DOLLARS FOR EACH": lambda row: ", ".join(
                f"{name} {nano}" for name, nano in row["nano_per_unit"].items()
            ),
            "FROM": lambda row: _time(row["valid_from"]),
            "UNTIL": lambda row: _time(row["valid_until"]),
        },
        as_json=json_,
    )


def _show_limits(limits: list[Limit], *, as_json: bool) -> None:
    fields = ("model", "what", "window_s", "value", "mode")
    terminal.listing(
        [
            {
                "scope": one.scope,
                "id": str(one.scope_id),
                **{name: getattr(one, name) for name in fields},
            }
            for one in limits
        ],
        {
            **_columns("scope", "id", "model"),
            "LIMIT": "what",
            "PER": lambda row: _WINDOWS[row["window_s"]],
            **_columns("value", "mode"),
        },
        as_json=as_json,
    )


def _time(second: int | None) -> str:
    return "" if second is None else datetime.fromtimestamp(second, UTC).isoformat()


def _columns(*names: str) -> dict[str, str]:
    return {name.upper(): name for name in names}


def _number(text: str) -> int | None:
    if text == NONE:
        return None
    if not _DIGITS.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is neither a number nor '{NONE}'.")
    return int(text)


def _nano(text: str, units: int = 1) -> int:
    # Dollars for `units` units, as nano-dollars for one. Refuses fractions, which would be rounded.
    try:
        nano = Decimal(text) * NANO / units
        is_amount = 0 <= nano <= CAP_MAX  # an `int` of a million digits takes minutes
    except ArithmeticError:
        raise typer.BadParameter(f"{text!r} is no amount of dollars.") from None
    if not is_amount or nano != int(nano):
        raise typer.BadParameter(
            f"{text} is not a whole number of nano-dollars for each, from 0 to {CAP_MAX}."
        )
    return int(nano)


def _percentages(text: str) -> list[int]:
    return [] if text == NONE else [_percent(one) for one in text.split(",")]


def _percent(text: str) -> int:
    if not _PERCENT.fullmatch(text.strip()) or not 0 < int(text) <= 1_000:
        raise typer.BadParameter(f"{text!r} is no percentage.", param_hint="--alert-at")
    return int(text)


async def _alerts(service: SpendLimits, tenant_id: TenantId, budget: Budget) -> list[SpendAlert]:
    # Only alerts that were set with the budget, the lowest threshold first.
    alerts = await service.alerts(LimitOwner(tenant_id, budget.scope, budget.scope_id))
    own = [one for one in alerts if one.percent is not None and one.meter == budget.meter]
    return sorted(own, key=lambda one: one.threshold)


def _mode(observe: bool | None) -> Mode | None:
    if observe is None:
        return None
    return "observe" if observe else "enforce"


def _amount(amount: int, unit: str) -> str:
    return dollars(amount) if unit == "usd" else str(amount)


def _budget(one: BudgetState, alerts: list[SpendAlert]) -> dict[str, Any]:
    budget = one.budget
    return {
        "scope": budget.scope,
        "id": str(budget.scope_id),
        "unit": budget.unit,
        "interval": budget.interval,
        "cap": _amount(budget.cap, budget.unit),
        "spent": _amount(one.spent, budget.unit),
        "mode": budget.mode,
        "alerts": [
            {"percent": alert.percent, "threshold": _amount(alert.threshold, alert.unit)}
            for alert in alerts
        ],
    }
