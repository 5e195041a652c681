"""`operator-issuers`: issuers whose tokens say which tenant they are for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, run
from gateway.cli.provision import connected, provisioned
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import OperatorIssuerCreate, operator_issuer_body
from gateway.protocol.request_errors import validated
from gateway.settings import load_settings
from gateway.tenancy.federation import END_USER, PROJECT, ROLE, SCOPES_GRANTED, TENANT
from gateway.wiring.admin import operator_issuers
from gateway.wiring.foundation import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.admin.issuers import OperatorIssuers

commands = typer.Typer(no_args_is_help=True)
T = TypeVar("T")


def ask_operators(config: Path | None, question: Callable[[OperatorIssuers], Awaitable[T]]) -> T:
    """Run `question` with the service of the operators' issuers, and return its result."""

    async def answer() -> T:
        async with (
            provisioned(load_settings(config)) as settings,
            connected(settings) as database,
        ):
            known = access(settings, database)
            return await question(operator_issuers(database, known))

    return run(answer())


def pairs(given: list[str] | None) -> list[tuple[str, str]]:
    """Split `NAME=VALUE` arguments. Raises `InvalidRequest` for one without `=`."""
    found = []
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals:
            raise InvalidRequest(f"{one!r} is no NAME=VALUE.")
        found.append((name, value))
    return found


@commands.command("create")
def create(  # noqa: PLR0913 - each is an option
    issuer: Annotated[str, typer.Argument(help="The claim iss of its tokens, a URL.")],
    audience: Annotated[str, typer.Argument(help="The claim aud of its tokens.")],
    tenant_claim: Annotated[
        str, typer.Option(help="Which claim is the id or name of the tenant: assertion.org")
    ],
    tenant: Annotated[
        list[str],
        typer.Option(help="Whom its tokens may name; '*': any. Repeatable."),
    ],
    name: Annotated[str, typer.Option(help="What it is called.")] = "issuer",
    project_claim: Annotated[
        str | None, typer.Option(help="Which claim is the id of the project.")
    ] = None,
    role_claim: Annotated[
        str | None, typer.Option(help="Which claim has the roles that --role explains.")
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="ROLE=SCOPE,SCOPE that a role may do; repeatable.")
    ] = None,
    scopes_claim: Annotated[
        str | None, typer.Option(help="Which claim narrows the scopes.")
    ] = None,
    end_user_claim: Annotated[
        str | None, typer.Option(help="Whom requests are for. Default: assertion.sub.")
    ] = None,
    jwks_url: Annotated[
        str | None, typer.Option(help="Its keys, where it has no OpenID configuration.")
    ] = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Trust an issuer for the tenants that are listed."""
    claims = {
        TENANT: tenant_claim,
        PROJECT: project_claim,
        ROLE: role_claim,
        SCOPES_GRANTED: scopes_claim,
        END_USER: end_user_claim,
    }
    body: dict[str, Any] = {
        "name": name,
        "issuer": issuer,
        "audience": audience,
        "tenants": tenant,
        "roles": {one: scopes.split(",") for one, scopes in pairs(role)},
        "attribute_transformations": [
            {"attribute": attribute, "expression": expression}
            for attribute, expression in claims.items()
            if expression is not None
        ],
        "harmony": {} if jwks_url is None else {"jwks_url": jwks_url},
    }
    asked = validated(OperatorIssuerCreate, body)
    made = operator_issuer_body(ask_operators(config, lambda issuers: issuers.create(asked)))
    terminal.show(json.dumps(made) if json_ else str(made["id"]))


@commands.command("list")
def list_issuers(config: Config = None, json_: Json = False) -> None:
    """List whom operators trust, and for which tenants."""
    found = ask_operators(config, lambda issuers: issuers.list())
    shown = [operator_issuer_body(one) for one in found]
    if json_:
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("ID", "ISSUER", "AUDIENCE", "TENANTS"),
        [
            (
                one["id"],
                one["issuer"],
                one["audience"],
                ", ".join(one["tenants"]),
            )
            for one in shown
        ],
    )


@commands.command("delete")
def delete(
    issuer: Annotated[str, typer.Argument(help="Its id: issuer_…")], config: Config = None
) -> None:
    """Trust an issuer no more: its tokens stop working within auth.key_cache_ttl_s."""
    ask_operators(config, lambda issuers: issuers.delete(issuer))
    terminal.show(f"issuer {issuer} deleted")
