"""`tenants`, `projects` and `keys`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from gateway import ids
from gateway.admin.keys import AccountKeyCreate, account_key_body
from gateway.admin.projects import ProjectCreate, project_body
from gateway.admin.service_accounts import service_account_body
from gateway.api.query import PAGE_ITEMS_MAX
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, TenantName, command, show_key
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import validated
from gateway.store.tenants import tenant_named
from gateway.store.tools import tool_calls
from gateway.tenancy import Dialect
from gateway.tenancy.policy import DAY_S, HOUR_S, POLICY_VALUES

if TYPE_CHECKING:
    from gateway.admin.tenants import TenantDetail
    from gateway.store.tools.tool_calls import AuditedCall
    from gateway.tenancy import KeyKind, Project
    from gateway.tenancy.policy import PolicyValue

tenants = typer.Typer(no_args_is_help=True)
projects = typer.Typer(no_args_is_help=True)
keys = typer.Typer(no_args_is_help=True)

DEFAULT: Final = "default"
_APPROVED_BY: Final = {"user": "user", "never": "nobody asked"}
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")

NewName = Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'.")]
DialectName = Annotated[
    Dialect, typer.Option(help="How its requests are answered wherever their path does not say.")
]
ProjectId = Annotated[str, typer.Argument(help="Its id: proj_…")]


@command(tenants, "create")
async def create_tenant(gateway: Installation, name: NewName) -> None:
    """Create a tenant. Nothing of one tenant is ever visible to another."""
    services = await gateway.tenants()
    await services.create(COMMAND_LINE, name)
    terminal.show(f"tenant {name} created; next: harmony-gateway keys create {name}")


@command(tenants, "list")
async def list_tenants(gateway: Installation, json_: Json = False) -> None:
    """List all tenants: name, day of creation, and whether it is disabled, deleted, or held."""
    services = await gateway.tenants()
    terminal.listing(
        [
            {
                "name": one.name,
                "id": str(one.id),
                **_times(one, "created_at", "disabled_at", "deleted_at", "held_at", "purged_at"),
            }
            for one in await services.list()
        ],
        {"NAME": "name", "CREATED": lambda one: _day(one["created_at"]), "STATE": _tenant_state},
        as_json=json_,
    )


@command(tenants, "disable")
async def disable_tenant(gateway: Installation, name: NewName) -> None:
    """Disable a tenant: its keys stop working within auth.key_cache_ttl_s."""
    services = await gateway.tenants()
    await services.disable(COMMAND_LINE, name)
    terminal.show(f"tenant {name} disabled")


@command(tenants, "show")
async def show_tenant(gateway: Installation, name: TenantName, json_: Json = False) -> None:
    """Show what counts for a tenant, and whether that is its own or the configuration's."""
    services = await gateway.tenants()
    _show_policy(await services.get(name), as_json=json_)


@command(tenants, "calls")
async def show_calls(
    gateway: Installation,
    name: TenantName,
    hours: Annotated[float, typer.Option(min=0.0, max=24 * 366, help="How far to look back.")] = 24,
    rows_max: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 100,
    json_: Json = False,
) -> None:
    """Show what hosted tools did for a tenant, the newest first: never what they were told."""
    begin = datetime.now(UTC) - timedelta(hours=hours)
    database = await gateway.database()
    tenant = await tenant_named(database, name)
    terminal.listing(
        [
            _call_body(one)
            for one in await tool_calls.since(database, tenant.id, begin, rows_max=rows_max)
        ],
        {
            "AT": lambda one: f"{datetime.fromisoformat(one['at']):%Y-%m-%d %H:%M:%S}",
            "RESPONSE": "response",
            "TOOL": "tool",
            "OUTCOME": "outcome",
            "MS": "duration_ms",
            "APPROVED BY": lambda one: _APPROVED_BY.get(one["approval"] or "", ""),
            "HOSTS": lambda one: " ".join(one["hosts"]),
        },
        as_json=json_,
    )


def _policy_option(value: PolicyValue) -> Parameter:
    words = tuple(dict.fromkeys((*value.words, DEFAULT)))
    kind: Any = Literal[words] if value.words else str
    metavar = None if value.words else f"{value.option_form}|{DEFAULT}"
    option = typer.Option(
        value.option_name, help=value.option_text, metavar=metavar, show_default=False
    )
    annotation = Annotated[kind | None, option]
    return Parameter(value.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@command(tenants, "set", more=map(_policy_option, POLICY_VALUES.values()))
async def set_policy(
    gateway: Installation, /, name: TenantName, json_: Json = False, **options: str | None
) -> None:
    """Change what counts for a tenant; `default` goes back to the configuration.

    What is not named stays. Every replica follows within auth.key_cache_ttl_s.
    """
    changes = {
        field: _policy_value(POLICY_VALUES[field], text)
        for field, text in options.items()
        if text is not None
    }
    services = await gateway.tenants()
    _show_policy(await services.set_policy(COMMAND_LINE, name, changes), as_json=json_)


@command(projects, "create")
async def create_project(
    gateway: Installation,
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="What it is called; names may repeat.")],
    json_: Json = False,
) -> None:
    """Create a project of a tenant. It sees nothing of the tenant's other projects."""
    body = validated(ProjectCreate, {"name": name})
    services, caller = await gateway.admin(tenant)
    shown = project_body(await services.projects.create(caller, body))
    terminal.show(json.dumps(shown) if json_ else shown["id"])


@command(projects, "list")
async def list_projects(gateway: Installation, tenant: TenantName, json_: Json = False) -> None:
    """List the projects of a tenant, archived ones included."""
    services, caller = await gateway.admin(tenant)
    projects: list[Project] = []
    after, has_more = None, True
    while has_more:
        rows, has_more = await services.projects.list(
            caller.tenant_id, PageParams(PAGE_ITEMS_MAX, after), include_archived=True
        )
        projects += rows
        after = ids.project_id(projects[-1].id)
    terminal.listing(
        list(map(project_body, projects)),
        {"ID": "id", "NAME": "name", "STATE": "status"},
        as_json=json_,
    )


@command(projects, "archive")
async def archive_project(gateway: Installation, tenant: TenantName, project: ProjectId) -> None:
    """Archive a project: its keys stop working within auth.key_cache_ttl_s, for good."""
    services, caller = await gateway.admin(tenant)
    await services.projects.archive(caller, project)
    terminal.show(f"project {project} archived")


@command(projects, "key")
async def create_project_key(  # noqa: PLR0913 - each is an option
    gateway: Installation,
    tenant: TenantName,
    project: ProjectId,
    name: Annotated[
        str, typer.Option(help="The service account that is made for it.")
    ] = "service account",
    scope: Annotated[list[str] | None, typer.Option(help="Repeatable; default: all.")] = None,
    cidr: Annotated[
        list[str] | None, typer.Option(help="A network it may be used from; repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may ask for; repeatable.")
    ] = None,
    expires_in_s: Annotated[
        int | None, typer.Option(min=1, help="Seconds that it works. Default: until it is ended.")
    ] = None,
    json_: Json = False,
) -> None:
    """Create a service account of a project with a key, and print the key: it is shown once."""
    key = {
        "name": name,
        "scopes": scope or [],
        "expires_in_seconds": expires_in_s,
        "harmony": {"allowed_cidrs": cidr or [], "allowed_models": model or []},
    }
    body = validated(AccountKeyCreate, key)
    services, caller = await gateway.admin(tenant)
    account, made = await services.keys.create_account(caller, project, name, body)
    assert made is not None, "a key was asked for"
    shown = service_account_body(account) | {"api_key": account_key_body(made)}
    await show_key(
        json.dumps(shown) if json_ else str(made.secret),
        lambda: services.service_accounts.delete(caller, project, shown["id"]),
    )
    if not json_:
        terminal.note(f"key of project {project}; it will not be shown again")


@command(keys, "create")
async def create_key(
    gateway: Installation,
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for, such as laptop or ci.")] = "default",
    dialect: DialectName = "openai",
    admin: Annotated[
        bool, typer.Option("--admin", help="For the admin API (/v1/organization), and that alone.")
    ] = False,
    json_: Json = False,
) -> None:
    """Create an API key and print it: only its hash is stored, it cannot be shown again.

    It is of the tenant's default project; `projects key` makes one of another.
    """
    kind: KeyKind = "admin" if admin else "project"
    services = await gateway.tenants()
    key, secret = await services.create_key(COMMAND_LINE, tenant, name, dialect=dialect, kind=kind)
    made = {"id": str(key.id), "name": key.name, "dialect": key.dialect, "key": secret}
    await show_key(
        json.dumps(made) if json_ else secret,
        lambda: services.disable_key(COMMAND_LINE, str(key.id)),
    )
    if not json_:
        terminal.note(f"key {name} of tenant {tenant}; it will not be shown again")


@command(keys, "list")
async def list_keys(
    gateway: Installation,
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant's.")] = None,
    json_: Json = False,
) -> None:
    """List API keys by their last characters; the keys themselves are not stored."""
    services = await gateway.tenants()
    # In this order, so that each key has a tenant that is listed.
    listed = await services.keys(tenant)
    names = {one.id: one.name for one in await services.list()}
    terminal.listing(
        [
            {
                "id": str(one.id),
                "tenant": names[one.tenant_id],
                "name": one.name,
                "hint": one.hint,
                "dialect": one.dialect,
                **_times(one, "created_at", "disabled_at"),
                **_times(one.terms, "expires_at"),
            }
            for one in listed
        ],
        {
            "TENANT": "tenant",
            "NAME": "name",
            "KEY": lambda one: f"…{one['hint']}",
            "ID": "id",
            "DIALECT": "dialect",
            "CREATED": lambda one: _day(one["created_at"]),
            "STATE": _key_state,
        },
        as_json=json_,
    )


@command(keys, "disable")
async def disable_key(
    gateway: Installation,
    key: Annotated[
        str, typer.Argument(help="Its id, the id's beginning, or its last four characters.")
    ],
) -> None:
    """Disable an API key: it stops working within auth.key_cache_ttl_s."""
    services = await gateway.tenants()
    disabled = await services.disable_key(COMMAND_LINE, key)
    terminal.show(f"key {disabled.name} (…{disabled.hint}) disabled")


def _times(record: object, *names: str) -> dict[str, str | None]:
    times: dict[str, datetime | None] = {name: getattr(record, name) for name in names}
    return {name: None if at is None else at.isoformat() for name, at in times.items()}


def _day(moment: str) -> str:
    return moment[: len("2026-11-29")]


def _state(row: dict[str, Any], *names: str) -> str | None:
    return next((f"{name} {_day(at)}" for name in names if (at := row[f"{name}_at"])), None)


def _tenant_state(row: dict[str, Any]) -> str:
    state = _state(row, "purged", "deleted", "disabled") or "active"
    held = _state(row, "held")
    return state if held is None else f"{state}, {held}"


def _key_state(row: dict[str, Any]) -> str:
    if state := _state(row, "disabled"):
        return state
    ends = row["expires_at"]
    if ends is None or datetime.fromisoformat(ends) > datetime.now(UTC):
        return "active"
    return f"expired {_day(ends)}"


def _call_body(call: AuditedCall) -> dict[str, Any]:
    return {
        **asdict(call),
        "response": ids.response_id(call.response),
        "arguments_hash": call.arguments_hash.hex(),
        "at": call.at.isoformat(),
    }


def _policy_value(value: PolicyValue, text: str) -> str | int | None:
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


def _show_policy(detail: TenantDetail, *, as_json: bool) -> None:
    own = {value: detail.own.get(value) for value in POLICY_VALUES}
    policy, tenant = detail.policy.shown(), detail.tenant
    if as_json:
        shown = {
            "name": tenant.name,
            "id": str(tenant.id),
            **_times(tenant, "created_at", "disabled_at"),
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
