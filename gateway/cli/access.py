"""`tenants` and `keys`: who may call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import policy, terminal
from gateway.cli.options import Config, Json, run
from gateway.cli.provision import tenants_and_keys
from gateway.settings import load_settings
from gateway.tenancy import Dialect  # noqa: TC001 - typer reads the annotation

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.settings import Settings
    from gateway.tenancy import ApiKey, Tenant

tenants = typer.Typer(help="Create, list, set up and disable tenants.", no_args_is_help=True)
tenants.command("show")(policy.show)
tenants.command("set")(policy.change)
keys = typer.Typer(help="Create, list and disable API keys.", no_args_is_help=True)

TenantName = Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'.")]


@tenants.command("create")
def create_tenant(name: TenantName, config: Config = None) -> None:
    """Create a tenant. Nothing of one tenant is ever visible to another."""
    run(_create_tenant(load_settings(config), name))
    terminal.show(f"tenant {name} created; next: harmony-gateway keys create {name}")


async def _create_tenant(settings: Settings, name: str) -> None:
    async with tenants_and_keys(settings) as access:
        await access.create_tenant(name)


@tenants.command("list")
def list_tenants(config: Config = None, json_: Json = False) -> None:
    """List all tenants."""
    found, _ = run(_list(load_settings(config)))
    if json_:
        rows = [
            {"name": one.name, "id": str(one.id), **_times(one.created_at, one.disabled_at)}
            for one in found
        ]
        terminal.show(json.dumps(rows))
        return
    terminal.table(
        ("NAME", "CREATED", "STATE"),
        [(one.name, _day(one.created_at), _state(one.disabled_at)) for one in found],
    )


@tenants.command("disable")
def disable_tenant(name: TenantName, config: Config = None) -> None:
    """Disable a tenant: its keys stop working within auth.key_cache_ttl_s."""
    run(_disable_tenant(load_settings(config), name))
    terminal.show(f"tenant {name} disabled")


async def _disable_tenant(settings: Settings, name: str) -> None:
    async with tenants_and_keys(settings) as access:
        await access.disable_tenant(name)


@keys.command("create")
def create_key(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for, such as laptop or ci.")] = "default",
    dialect: Annotated[
        Dialect,
        typer.Option(help="How its requests are answered wherever their path does not say."),
    ] = "openai",
    config: Config = None,
    json_: Json = False,
) -> None:
    """Create an API key and print it: only its hash is stored, it cannot be shown again."""
    key, secret = run(_create_key(load_settings(config), tenant, name, dialect))
    if json_:
        made = {"id": str(key.id), "name": key.name, "dialect": key.dialect, "key": secret}
        terminal.show(json.dumps(made))
        return
    terminal.show(secret)
    terminal.note(f"key {name} of tenant {tenant}; it will not be shown again")


async def _create_key(
    settings: Settings, tenant: str, name: str, dialect: Dialect
) -> tuple[ApiKey, str]:
    async with tenants_and_keys(settings) as access:
        return await access.create_key(tenant, name, dialect=dialect)


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant's.")] = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """List API keys by their last characters; the keys themselves are not stored."""
    known, found = run(_list(load_settings(config), tenant))
    names = {one.id: one.name for one in known}
    if json_:
        rows = [
            {
                "id": str(one.id),
                "tenant": names[one.tenant_id],
                "name": one.name,
                "hint": one.hint,
                "dialect": one.dialect,
                **_times(one.created_at, one.disabled_at),
            }
            for one in found
        ]
        terminal.show(json.dumps(rows))
        return
    terminal.table(
        ("TENANT", "NAME", "KEY", "ID", "DIALECT", "CREATED", "STATE"),
        [
            (
                names[one.tenant_id],
                one.name,
                f"…{one.hint}",
                str(one.id),
                one.dialect,
                _day(one.created_at),
                _state(one.disabled_at),
            )
            for one in found
        ],
    )


async def _list(settings: Settings, tenant: str | None = None) -> tuple[list[Tenant], list[ApiKey]]:
    async with tenants_and_keys(settings) as access:
        return await access.list_tenants(), await access.list_keys(tenant)


@keys.command("disable")
def disable_key(
    key: Annotated[
        str, typer.Argument(help="Its id, the id's beginning, or its last four characters.")
    ],
    config: Config = None,
) -> None:
    """Disable an API key: it stops working within auth.key_cache_ttl_s."""
    disabled = run(_disable_key(load_settings(config), key))
    terminal.show(f"key {disabled.name} (…{disabled.hint}) disabled")


async def _disable_key(settings: Settings, key: str) -> ApiKey:
    async with tenants_and_keys(settings) as access:
        return await access.disable_key(key)


def _times(created_at: datetime, disabled_at: datetime | None) -> dict[str, Any]:
    disabled = disabled_at.isoformat() if disabled_at else None
    return {"created_at": created_at.isoformat(), "disabled_at": disabled}


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d")


def _state(disabled_at: datetime | None) -> str:
    return f"disabled {_day(disabled_at)}" if disabled_at else "active"
