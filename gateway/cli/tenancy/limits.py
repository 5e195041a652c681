"""`limits`, `budgets` and `prices`: what tenants, projects and keys may use, and what it costs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args
from uuid import UUID

import typer

from gateway import ids
from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.prices import PriceCreate, PriceEnd, Prices
from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.limits.money import NANO, dollars
from gateway.limits.rules import ALL_MODELS, DAY_S, MINUTE_S, Interval, Unit
from gateway.protocol.request_errors import validated

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from gateway.admin.limits import BudgetState
    from gateway.limits.money import Price
    from gateway.limits.rules import Budget, Limit, Mode, What
    from gateway.store.limits.alerts import SpendAlert
    from gateway.tenancy import TenantId

limits = typer.Typer(no_args_is_help=True)
budgets = typer.Typer(no_args_is_help=True)
prices = typer.Typer(no_args_is_help=True)

NONE: Final = "none"
PER_MILLION: Final = 10**6
_PERCENT: Final = re.compile(r"[0-9]{1,4}")
_TIMES: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
_WINDOWS: Final = {MINUTE_S: "minute", DAY_S: "day", 0: "at once"}
_OPTIONS: Final[tuple[tuple[What, int], ...]] = (
    ("requests", MINUTE_S),
    ("requests", DAY_S),
    ("tokens", MINUTE_S),
    ("tokens", DAY_S),
    ("input_tokens", MINUTE_S),
    ("output_tokens", MINUTE_S),
    ("responses", 0),
    ("websockets", 0),
    ("stored_bytes", 0),
    ("background_running", 0),
    ("background_queued", 0),
)

T = TypeVar("T")
TenantName = Annotated[str, typer.Argument(help="Which tenant.")]
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


Service = TypeVar("Service", Limits, Prices)


def _ask(
    config: Path | None, kind: type[Service], question: Callable[[Service], Awaitable[T]]
) -> T:
    return with_database(
        config, lambda settings, database: question(kind(database, settings.model_aliases))
    )


async def _owner_of(
    service: Limits, tenant: str, project: str | None, key: str | None
) -> LimitOwner:
    tenant_id = await service.tenant(tenant)
    if key is not None:
        return await service.key(tenant_id, ids.parse_api_key_id(key) or _uuid(key, "--key"))
    if project is not None:
        found = ids.parse_project_id(project) or _uuid(project, "--project")
        return await service.of_project(tenant_id, ids.project_id(found))
    return LimitOwner.of_tenant(tenant_id)


def _uuid(text: str, option: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no id.", param_hint=option) from None


@limits.command("set")
def set_limits(  # noqa: PLR0913 - its options
    tenant: TenantName,
    project: Project = None,
    key: KeyId = None,
    model: Annotated[str, typer.Option(help="Only requests for this model.")] = ALL_MODELS,
    requests_per_minute: Number = None,
    requests_per_day: Number = None,
    tokens_per_minute: Number = None,
    tokens_per_day: Number = None,
    input_tokens_per_minute: Number = None,
    output_tokens_per_minute: Number = None,
    concurrent_responses: Number = None,
    websockets: Number = None,
    stored_bytes: Number = None,
    background_running: Number = None,
    background_queued: Number = None,
    observe: Observe = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Set limits of a tenant, a project or a key. What is not named stays as it is; --observe or
    --enforce alone is for all of the model.
    """
    given = (
        requests_per_minute, requests_per_day, tokens_per_minute, tokens_per_day,
        input_tokens_per_minute, output_tokens_per_minute, concurrent_responses,
        websockets, stored_bytes, background_running, background_queued,
    )  # fmt: skip
    values = {
        one: _number(text) for one, text in zip(_OPTIONS, given, strict=True) if text is not None
    }

    async def question(service: Limits) -> list[Limit]:
        owner = await _owner_of(service, tenant, project, key)
        return await service.set_limits(owner, values, model=model, mode=_mode(observe))

    _show_limits(_ask(config, Limits, question), as_json=json_)


@limits.command("list")
def list_limits(tenant: TenantName, config: Config = None, json_: Json = False) -> None:
    """List all limits of a tenant, its projects and its keys."""

    async def question(service: Limits) -> list[Limit]:
        return await service.limits(await service.tenant(tenant))

    _show_limits(_ask(config, Limits, question), as_json=json_)


@budgets.command("set")
def set_budget(  # noqa: PLR0913 - its options
    tenant: TenantName,
    usd: Annotated[str | None, typer.Option(help="Dollars, as in 250 or 0.05.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="Tokens instead.")] = None,
    interval: Annotated[
        str, typer.Option(help="day, month (UTC), or none: it never begins anew.")
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
    config: Config = None,
) -> None:
    """Set a budget. Once it is spent new requests are answered 429; those under way end.

    Without --alert-at alerts stay at the amounts that they have.
    """
    if (usd is None) == (tokens is None):
        raise typer.BadParameter("Give either --usd or --tokens.")
    unit: Unit = "tokens" if usd is None else "usd"
    cap = tokens if usd is None else _nano(usd)
    assert cap is not None, "one of the two was given"
    span = _interval(interval)
    shares = None if alert_at is None else _percentages(alert_at)

    async def question(service: Limits) -> None:
        owner = await _owner_of(service, tenant, project, key)
        await service.set_budget(
            owner, cap, unit=unit, interval=span, mode=_mode(observe), alert_at=shares
        )

    _ask(config, Limits, question)
    terminal.show(f"budget of tenant {tenant} set")


@budgets.command("remove")
def remove_budget(
    tenant: TenantName,
    unit: Annotated[str, typer.Option(help="usd or tokens.")] = "usd",
    interval: Annotated[str, typer.Option(help="day, month or none.")] = "month",
    project: Project = None,
    key: KeyId = None,
    config: Config = None,
) -> None:
    """Remove the budget of a tenant, a project or a key, and its alerts: nothing of it is refused
    any more.
    """
    chosen, span = _unit(unit), _interval(interval)

    async def question(service: Limits) -> bool:
        owner = await _owner_of(service, tenant, project, key)
        return await service.remove_budget(owner, chosen, span, with_alerts=True)

    terminal.show("removed" if _ask(config, Limits, question) else "there was none")


@budgets.command("list")
def list_budgets(tenant: TenantName, config: Config = None, json_: Json = False) -> None:
    """List budgets, what is spent of each, and where somebody is told (--alert-at)."""

    async def question(service: Limits) -> list[tuple[BudgetState, list[SpendAlert]]]:
        tenant_id = await service.tenant(tenant)
        found = await service.budgets(tenant_id)
        return [(one, await _alerts(service, tenant_id, one.budget)) for one in found]

    _show(
        [_budget(*one) for one in _ask(config, Limits, question)],
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


@prices.command("set")
def set_price(  # noqa: PLR0913 - its options
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
    config: Config = None,
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
    price = _ask(config, Prices, lambda service: service.set(body))
    terminal.show(f"price {price.id} of {model} set")


@prices.command("end")
def end_price(
    model: Annotated[str, typer.Argument(help="Which model.")],
    tenant: OfTenant = None,
    tier: Tier = "*",
    config: Config = None,
) -> None:
    """End the price of a model: from now on another one counts, or none."""
    body = validated(PriceEnd, {"model": model, "tier": tier, "tenant": tenant})
    is_over = _ask(config, Prices, lambda service: service.end(body))
    terminal.show("ended" if is_over else "it has no such price")


@prices.command("list")
def list_prices(config: Config = None, json_: Json = False) -> None:
    """List all prices, those that are over included."""
    _show(
        [_price(one) for one in _ask(config, Prices, lambda service: service.list())],
        {
            **_columns("model", "tier"),
            "TENANT": lambda row: row["tenant"] or "all",
            "NANO-DOLLARS FOR EACH": lambda row: ", ".join(
                f"{name} {nano}" for name, nano in row["nano_per_unit"].items()
            ),
            "FROM": lambda row: row["valid_from"],
            "UNTIL": lambda row: row["valid_until"] or "",
        },
        as_json=json_,
    )


def _show_limits(found: list[Limit], *, as_json: bool) -> None:
    fields = ("model", "what", "window_s", "value", "mode")
    _show(
        [
            {
                "scope": one.scope,
                "id": str(one.scope_id),
                **{name: getattr(one, name) for name in fields},
            }
            for one in found
        ],
        {
            **_columns("scope", "id", "model"),
            "LIMIT": lambda row: row["what"],
            "PER": lambda row: _WINDOWS[row["window_s"]],
            **_columns("value", "mode"),
        },
        as_json=as_json,
    )


Columns = Mapping[str, Callable[[dict[str, Any]], str]]
"""Headings, and what is below them of each row."""


def _show(rows: list[dict[str, Any]], columns: Columns, *, as_json: bool) -> None:
    if as_json:
        terminal.show(json.dumps(rows))
        return
    cells = [tuple(cell(row) for cell in columns.values()) for row in rows]
    terminal.table(tuple(columns), cells)


def _columns(*names: str) -> Columns:
    def column(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: str(row[name])

    return {name.upper(): column(name) for name in names}


def _number(text: str) -> int | None:
    if text == NONE:
        return None
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(f"{text!r} is neither a number nor '{NONE}'.")
    return int(text)


def _nano(text: str, units: int = 1) -> int:
    # Dollars for `units` units, as nano-dollars for one. Refuses fractions, which would be rounded.
    try:
        nano = Decimal(text) * NANO / units
        whole = int(nano)
    except (ArithmeticError, ValueError):
        raise typer.BadParameter(f"{text!r} is no amount of dollars.") from None
    if nano < 0 or nano != whole:
        raise typer.BadParameter(f"{text} is not a whole number of nano-dollars for each.")
    return whole


def _percentages(text: str) -> list[int]:
    return [] if text == NONE else [_percent(one) for one in text.split(",")]


def _percent(text: str) -> int:
    if not _PERCENT.fullmatch(text.strip()) or not 0 < int(text) <= 1_000:
        raise typer.BadParameter(f"{text!r} is no percentage.", param_hint="--alert-at")
    return int(text)


async def _alerts(service: Limits, tenant_id: TenantId, budget: Budget) -> list[SpendAlert]:
    # Only alerts that were set with the budget, the lowest threshold first.
    known = await service.alerts(LimitOwner(tenant_id, budget.scope, budget.scope_id))
    found = [one for one in known if one.percent is not None and one.meter == budget.meter]
    return sorted(found, key=lambda one: one.threshold)


def _mode(observe: bool | None) -> Mode | None:
    if observe is None:
        return None
    return "observe" if observe else "enforce"


def _unit(text: str) -> Unit:
    found: Unit = _one_of(get_args(Unit), text, "--unit")
    return found


def _interval(text: str) -> Interval:
    found: Interval = _one_of(get_args(Interval), text, "--interval")
    return found


def _one_of(values: tuple[Any, ...], text: str, option: str) -> Any:
    if text not in values:
        raise typer.BadParameter(f"{text!r} is none of: {', '.join(values)}.", param_hint=option)
    return text


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


def _price(one: Price) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "model": one.model,
        "tier": one.tier,
        "tenant": None if not one.tenant_id.int else str(one.tenant_id),
        "nano_per_unit": dict(one.nano),
        "valid_from": one.valid_from.isoformat(),
        "valid_until": one.valid_until.isoformat() if one.valid_until else None,
    }
