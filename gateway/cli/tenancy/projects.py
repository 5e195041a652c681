"""`projects`: the projects of a tenant and the keys of their service accounts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.admin.keys import AccountKeyCreate, account_key_body
from gateway.admin.pages import PageParams
from gateway.admin.projects import ProjectCreate, project_body
from gateway.admin.service_accounts import service_account_body
from gateway.admin.transactions import AdminCaller
from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.protocol.request_errors import validated
from gateway.store import tenants
from gateway.wiring.admin import admin_services
from gateway.wiring.databases import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.admin.services import AdminServices
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Project, TenantId

commands = typer.Typer(no_args_is_help=True)

PAGE_ROWS: int = 100
TenantName = Annotated[str, typer.Argument(help="Whose project.")]
ProjectId = Annotated[str, typer.Argument(help="Its id: proj_…")]

T = TypeVar("T")


def ask(
    config: Path | None, tenant: str, question: Callable[[AdminServices, TenantId], Awaitable[T]]
) -> T:
    """Run `question` with the services of the admin API for a tenant, and return its result.

    Raises `ResourceNotFound`.
    """

    async def answer(settings: Settings, database: Database) -> T:
        found = await tenants.tenant_named(database, tenant)
        services = admin_services(settings, database, access(settings, database))
        return await question(services, found.id)

    return with_database(config, answer)


@commands.command("create")
def create(
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="What it is called; names may repeat.")],
    config: Config = None,
    json_: Json = False,
) -> None:
    """Create a project of a tenant. It sees nothing of the tenant's other projects."""
    body = validated(ProjectCreate, {"name": name})
    made = ask(
        config, tenant, lambda services, id_: services.projects.create(AdminCaller(id_), body)
    )
    shown = project_body(made)
    terminal.show(json.dumps(shown) if json_ else shown["id"])


@commands.command("list")
def list_projects(tenant: TenantName, config: Config = None, json_: Json = False) -> None:
    """List the projects of a tenant, archived ones included."""
    shown = [project_body(one) for one in ask(config, tenant, _all_projects)]
    if json_:
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("ID", "NAME", "STATE"), [(one["id"], one["name"], one["status"]) for one in shown]
    )


async def _all_projects(services: AdminServices, tenant_id: TenantId) -> list[Project]:
    found: list[Project] = []
    after = None
    while True:
        page = await services.projects.list(
            tenant_id, PageParams(PAGE_ROWS, after), include_archived=True
        )
        found += page.rows
        if not page.has_more:
            return found
        after = project_body(found[-1])["id"]


@commands.command("archive")
def archive(tenant: TenantName, project: ProjectId, config: Config = None) -> None:
    """Archive a project: its keys stop working within auth.key_cache_ttl_s, for good."""
    ask(config, tenant, lambda services, id_: services.projects.archive(AdminCaller(id_), project))
    terminal.show(f"project {project} archived")


@commands.command("key")
def create_key(  # noqa: PLR0913 - each is an option
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
    config: Config = None,
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
    account, made = ask(
        config,
        tenant,
        lambda services, id_: services.keys.create_account(AdminCaller(id_), project, name, body),
    )
    assert made is not None, "a key was asked for"
    if json_:
        shown = service_account_body(account) | {"api_key": account_key_body(made)}
        terminal.show(json.dumps(shown))
        return
    terminal.show(str(made.secret))
    terminal.note(f"key of project {project}; it will not be shown again")
