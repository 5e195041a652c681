"""`tenants` and `keys`: who may call, and what an operator decides for one tenant."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from gateway import ids
from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.tenancy import DAY_S, HOUR_S, POLICY_VALUES, Dialect
from gateway.wiring.databases import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.services.access import Access, TenantDetail
    from gateway.store.tools.tool_calls import AuditedCall
    from gateway.tenancy import ApiKey, KeyKind, PolicyValue, Tenant

tenants = typer.Typer(no_args_is_help=True)
keys = typer.Typer(no_args_is_help=True)

DEFAULT: Final = "default"
_APPROVED_BY: Final = {"user": "user", "never": "nobody asked"}
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")

NewName = Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'.")]
TenantName = Annotated[str, typer.Argument(help="Which tenant.")]

T = TypeVar("T")


def _ask(config: Path | None, question: Callable[[Access], Awaitable[T]]) -> T:
    return with_database(config, lambda settings, database: question(access(settings, database)))


@tenants.command("create")
def create_tenant(name: NewName, config: Config = None) -> None:
    """Create a tenant. Nothing of one tenant is ever visible to another."""
    _ask(config, lambda access: access.create_tenant(name))
    terminal.show(f"tenant {name} created; next: harmony-gateway keys create {name}")


@tenants.command("list")
def list_tenants(config: Config = None, json_: Json = False) -> None:
    """List all tenants: name, day of creation, and whether it is disabled, deleted, or held."""
    found = _ask(config, lambda access: access.list_tenants())
    if json_:
        rows = [
            {"name": one.name, "id": str(one.id), **_times(one), **_marks(one)} for one in found
        ]
        terminal.show(json.dumps(rows))
        return
    terminal.table(
        ("NAME", "CREATED", "STATE"),
        [(one.name, _day(one.created_at), _state_of_tenant(one)) for one in found],
    )


@tenants.command("disable")
def disable_tenant(name: NewName, config: Config = None) -> None:
    """Disable a tenant: its keys stop working within auth.key_cache_ttl_s."""
    _ask(config, lambda access: access.disable_tenant(name))
    terminal.show(f"tenant {name} disabled")


@keys.command("create")
def create_key(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for, such as laptop or ci.")] = "default",
    dialect: Annotated[
        Dialect,
        typer.Option(help="How its requests are answered wherever their path does not say."),
    ] = "openai",
    admin: Annotated[
        bool, typer.Option("--admin", help="For the admin API (/v1/organization), and that alone.")
    ] = False,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Create an API key and print it: only its hash is stored, it cannot be shown again.

    It is of the tenant's default project; `projects key` makes one of another.
    """
    kind: KeyKind = "admin" if admin else "project"
    key, secret = _ask(
        config, lambda access: access.create_key(tenant, name, dialect=dialect, kind=kind)
    )
    if json_:
        made = {"id": str(key.id), "name": key.name, "dialect": key.dialect, "key": secret}
        terminal.show(json.dumps(made))
        return
    terminal.show(secret)
    terminal.note(f"key {name} of tenant {tenant}; it will not be shown again")


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant's.")] = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """List API keys by their last characters; the keys themselves are not stored."""
    known, found = _ask(config, partial(_keys_and_tenants, tenant))
    names = {one.id: one.name for one in known}
    if json_:
        rows = [
            {
                "id": str(one.id),
                "tenant": names[one.tenant_id],
                "name": one.name,
                "hint": one.hint,
                "dialect": one.dialect,
                **_times(one),
                "expires_at": one.terms.expires_at.isoformat() if one.terms.expires_at else None,
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
                _state_of_key(one),
            )
            for one in found
        ],
    )


async def _keys_and_tenants(
    tenant: str | None, access: Access
) -> tuple[list[Tenant], list[ApiKey]]:
    return await access.list_tenants(), await access.list_keys(tenant)


@keys.command("disable")
def disable_key(
    key: Annotated[
        str, typer.Argument(help="Its id, the id's beginning, or its last four characters.")
    ],
    config: Config = None,
) -> None:
    """Disable an API key: it stops working within auth.key_cache_ttl_s."""
    disabled = _ask(config, lambda access: access.disable_key(key))
    terminal.show(f"key {disabled.name} (…{disabled.hint}) disabled")


def _times(one: Tenant | ApiKey) -> dict[str, Any]:
    disabled_at = one.disabled_at.isoformat() if one.disabled_at else None
    return {"created_at": one.created_at.isoformat(), "disabled_at": disabled_at}


def _marks(one: Tenant) -> dict[str, str | None]:
    marks = {"deleted_at": one.deleted_at, "held_at": one.held_at, "purged_at": one.purged_at}
    return {name: at.isoformat() if at else None for name, at in marks.items()}


def _state_of_tenant(one: Tenant) -> str:
    marks = {"purged": one.purged_at, "deleted": one.deleted_at}
    state = next((f"{name} {_day(at)}" for name, at in marks.items() if at), None)
    held = f", held {_day(one.held_at)}" if one.held_at else ""
    return (state or _state(one.disabled_at)) + held


def _state_of_key(one: ApiKey) -> str:
    ends = one.terms.expires_at
    if one.disabled_at is not None or ends is None or ends > datetime.now(UTC):
        return _state(one.disabled_at)
    return f"expired {_day(ends)}"


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d")


def _state(disabled_at: datetime | None) -> str:
    return f"disabled {_day(disabled_at)}" if disabled_at else "active"


@tenants.command("show")
def show_tenant(name: TenantName, config: Config = None, json_: Json = False) -> None:
    """Show what counts for a tenant, and whether that is its own or the configuration's."""
    _print(_ask(config, lambda access: access.show_tenant(name)), as_json=json_)


@tenants.command("calls")
def show_calls(
    name: TenantName,
    hours: Annotated[float, typer.Option(min=0.0, max=24 * 366, help="How far to look back.")] = 24,
    rows_max: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 100,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Show what hosted tools did for a tenant, the newest first: never what they were told."""
    begin = datetime.now(UTC) - timedelta(hours=hours)
    calls = _ask(config, lambda access: access.tool_calls(name, begin, rows_max=rows_max))
    if json_:
        terminal.show(json.dumps([_audited(one) for one in calls]))
        return
    terminal.table(
        ("AT", "RESPONSE", "TOOL", "OUTCOME", "MS", "APPROVED BY", "HOSTS"),
        [
            (
                one.at.strftime("%Y-%m-%d %H:%M:%S"),
                ids.response_id(one.response),
                one.tool,
                one.outcome,
                str(one.duration_ms),
                _APPROVED_BY.get(one.approval or "", ""),
                " ".join(one.hosts),
            )
            for one in calls
        ],
    )


def _audited(call: AuditedCall) -> dict[str, Any]:
    return {
        **asdict(call),
        "response": ids.response_id(call.response),
        "arguments_hash": call.arguments_hash.hex(),
        "at": call.at.isoformat(),
    }


def _option(value: PolicyValue) -> Parameter:
    # As typer reads it from a signature.
    words = tuple(dict.fromkeys((*value.words, DEFAULT)))
    kind: Any = Literal[words] if value.words else str
    metavar = None if value.words else f"{value.option_form}|{DEFAULT}"
    option = typer.Option(
        value.option_name, help=value.option_help, metavar=metavar, show_default=False
    )
    annotation = Annotated[kind | None, option]
    return Parameter(value.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def set_policy(name: str, config: Path | None, *, json_: bool, **given: str | None) -> None:
    """Change what counts for a tenant; `default` goes back to the configuration.

    What is not named stays. Every replica follows within auth.key_cache_ttl_s.
    """
    changes = {
        field: _value(POLICY_VALUES[field], text)
        for field, text in given.items()
        if text is not None
    }
    _print(_ask(config, lambda access: access.set_policy(name, changes)), as_json=json_)


# typer makes a command's options from its signature: here from the list of policy values.
set_policy.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        Parameter("name", Parameter.KEYWORD_ONLY, annotation=TenantName),
        *map(_option, POLICY_VALUES.values()),
        Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Config),
        Parameter("json_", Parameter.KEYWORD_ONLY, default=False, annotation=Json),
    ]
)
set_policy.__annotations__ = {
    one.name: one.annotation for one in signature(set_policy).parameters.values()
}
tenants.command("set")(set_policy)


def _value(value: PolicyValue, text: str) -> str | int | None:
    # In the unit of the policy; None for `default`. Raises `typer.BadParameter`, which ends the
    # command with code 2.
    if text == DEFAULT:
        return None
    if value.is_domains:
        return " ".join(text.lower().replace(",", " ").split())
    if value.column_type == "text":
        return text
    if not _NUMBER.match(text):
        raise typer.BadParameter(
            f"{text!r} is neither a whole number of up to nine digits nor {DEFAULT!r}.",
            param_hint=value.option_name,
        )
    return int(text) * value.option_unit


def _print(detail: TenantDetail, *, as_json: bool) -> None:
    own = {value: detail.own.get(value) for value in POLICY_VALUES}
    policy = asdict(detail.policy)
    tenant = detail.tenant
    if as_json:
        shown = {
            "name": tenant.name,
            "id": str(tenant.id),
            **_times(tenant),
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
    # Seconds also as the hours or days that the options take, if they are whole.
    if isinstance(value, str) or not name.endswith("_s"):
        return str(value)
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h")):
        if value % unit_s == 0:
            return f"{value} ({value // unit_s} {unit})"
    return str(value)
