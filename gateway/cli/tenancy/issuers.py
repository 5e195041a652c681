"""`issuers`: the issuers of tokens that a tenant trusts, and what their tokens may do.

`operator-issuers`: issuers whose tokens name the tenant that they are for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
import typer

from gateway import ids
from gateway.admin.issuers import (
    PROVIDERS_MAX,
    RULES_MAX,
    OperatorIssuerCreate,
    OperatorIssuers,
    ProviderCreate,
    RuleCreate,
    provider_body,
    rule_body,
)
from gateway.admin.pages import PageParams
from gateway.admin.transactions import AdminCaller
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.cli.tenancy.projects import ask
from gateway.errors import InvalidRequest
from gateway.protocol.request_errors import validated
from gateway.tenancy.issuers import END_USER, PROJECT, ROLE, SCOPES_GRANTED, TENANT
from gateway.wiring.databases import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from gateway.admin.services import AdminServices
    from gateway.tenancy import TenantId
    from gateway.tenancy.issuers import FederationRule, IdentityProvider

commands = typer.Typer(no_args_is_help=True)
operator_commands = typer.Typer(no_args_is_help=True)
T = TypeVar("T")

TenantName = Annotated[str, typer.Argument(help="Who trusts it.")]
IssuerId = Annotated[str, typer.Argument(help="Its id: widp_…")]


def ask_operators(config: Path | None, question: Callable[[OperatorIssuers], Awaitable[T]]) -> T:
    """Run `question` with the service of the operators' issuers, and return its result."""
    return with_database(
        config,
        lambda settings, database: question(
            OperatorIssuers(database, access(settings, database).forget)
        ),
    )


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
    tenant: TenantName,
    issuer: Annotated[str, typer.Argument(help="The claim iss of its tokens, a URL.")],
    audience: Annotated[str, typer.Argument(help="The claim aud that they have for this tenant.")],
    name: Annotated[str, typer.Option(help="What it is called.")] = "issuer",
    bearer: Annotated[
        bool,
        typer.Option(
            "--bearer", help="Its tokens are credentials themselves, not only to be exchanged."
        ),
    ] = False,
    discovery_url: Annotated[
        str | None, typer.Option(help="Its OpenID configuration, where it is not below its URL.")
    ] = None,
    jwks_url: Annotated[
        str | None, typer.Option(help="Its keys, where it has no such configuration.")
    ] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Repeatable; default: RS256, ES256, EdDSA.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="NAME=EXPRESSION, such as team=assertion.org.team; repeatable."),
    ] = None,
    lifetime_max_s: Annotated[
        int | None, typer.Option(help="Seconds that a token may live. Default: 3600.")
    ] = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Trust an issuer. Until a rule says so (`issuers allow`), its tokens may do nothing."""
    transformations = [
        {"attribute": one, "expression": expression} for one, expression in pairs(attribute)
    ]
    extras = {
        "bearer": bearer,
        "jwks_url": jwks_url,
        "algorithms": algorithm,
        "lifetime_max_seconds": lifetime_max_s,
    }
    verification = {"type": "discovery", "discovery_url": discovery_url}
    body = {
        "name": name,
        "type": "oidc",
        "issuer": issuer,
        "audience": audience,
        "attribute_transformations": transformations,
        "verification": None if discovery_url is None else verification,
        "harmony": {one: value for one, value in extras.items() if value is not None},
    }
    asked = validated(ProviderCreate, body)
    made = ask(
        config,
        tenant,
        lambda services, id_: services.identity_providers.create(AdminCaller(id_), asked),
    )
    _show(provider_body(made), as_json=json_)


@commands.command("list")
def list_issuers(tenant: TenantName, config: Config = None, json_: Json = False) -> None:
    """List whom a tenant trusts."""

    async def listed(services: AdminServices, id_: TenantId) -> Sequence[IdentityProvider]:
        page = await services.identity_providers.list(id_, PageParams(PROVIDERS_MAX))
        return page.rows

    _show_all(
        ("ID", "ISSUER", "AUDIENCE", "BEARER", "TENANT TOLD BY"),
        [provider_body(one) for one in ask(config, tenant, listed)],
        lambda one: (
            one["id"],
            one["issuer"],
            one["audience"],
            str(one["harmony"]["bearer"]).lower(),
            one["harmony"]["tenant_told_by"] or "-",
        ),
        as_json=json_,
    )


@commands.command("delete")
def delete(tenant: TenantName, issuer: IssuerId, config: Config = None) -> None:
    """Trust an issuer no more: its tokens, and what they were exchanged for, stop working within
    auth.key_cache_ttl_s.
    """
    ask(
        config,
        tenant,
        lambda services, id_: services.identity_providers.delete(AdminCaller(id_), issuer),
    )
    terminal.show(f"issuer {issuer} deleted")


@commands.command("confirm")
def confirm(
    tenant: TenantName,
    issuer: IssuerId,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="They have to name the tenant again.")
    ] = False,
    config: Config = None,
) -> None:
    """Say that bearer tokens of this issuer and audience are this tenant's where neither the
    audience nor the header OpenAI-Organization names one. One tenant alone can have them.
    """

    async def confirmed(issuers: OperatorIssuers) -> None:
        act = issuers.withdraw if withdraw else issuers.confirm
        await act(COMMAND_LINE, tenant, issuer)

    ask_operators(config, confirmed)
    terminal.show(f"issuer {issuer} {'withdrawn' if withdraw else 'confirmed'}")


@commands.command("allow")
def allow(  # noqa: PLR0913 - each is an option
    tenant: TenantName,
    issuer: IssuerId,
    project: Annotated[str, typer.Argument(help="Where they act: proj_…")],
    match: Annotated[
        list[str], typer.Option(help="ATTRIBUTE=VALUE that a token must have; repeatable.")
    ],
    account: Annotated[
        str | None,
        typer.Option(help="The service account that they act for. Default: a new one."),
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="Repeatable; default: all.")] = None,
    name: Annotated[str, typer.Option(help="Of the rule, and a new account.")] = "federated",
    config: Config = None,
    json_: Json = False,
) -> None:
    """Let tokens of an issuer act in a project. A value that is JSON is taken as such:
    `--match email_verified=true`.
    """
    permissions = {"type": "restricted", "scopes": scope}

    async def allowed(services: AdminServices, id_: TenantId) -> FederationRule:
        caller, acting = AdminCaller(id_), account
        body = {
            "attribute_matchers": {one: _value(value) for one, value in pairs(match)},
            "project_id": project,
            "service_account_id": acting or "",
            "name": name,
            "permissions": permissions if scope else None,
        }
        validated(RuleCreate, body)
        if acting is None:
            made, _ = await services.keys.create_account(caller, project, name, None)
            body["service_account_id"] = ids.service_account_id(made.id)
        asked = validated(RuleCreate, body)
        return await services.identity_providers.create_rule(caller, issuer, asked)

    _show(rule_body(ask(config, tenant, allowed)), as_json=json_)


@commands.command("rules")
def rules(tenant: TenantName, issuer: IssuerId, config: Config = None, json_: Json = False) -> None:
    """List what tokens of an issuer may do."""

    async def listed(services: AdminServices, id_: TenantId) -> Sequence[FederationRule]:
        page = await services.identity_providers.rules(id_, issuer, PageParams(RULES_MAX))
        return page.rows

    _show_all(
        ("ID", "PROJECT", "SERVICE ACCOUNT", "MATCHES"),
        [rule_body(one) for one in ask(config, tenant, listed)],
        lambda one: (
            one["id"],
            one["project_id"],
            one["service_account_id"],
            json.dumps(one["attribute_matchers"]),
        ),
        as_json=json_,
    )


@commands.command("disallow")
def disallow(
    tenant: TenantName,
    issuer: IssuerId,
    rule: Annotated[str, typer.Argument(help="Its id: wifr_…")],
    config: Config = None,
) -> None:
    """Take a rule back: what was exchanged by it stops working, too."""
    ask(
        config,
        tenant,
        lambda services, id_: services.identity_providers.delete_rule(
            AdminCaller(id_), issuer, rule
        ),
    )
    terminal.show(f"rule {rule} deleted")


def _show(body: dict[str, object], *, as_json: bool) -> None:
    terminal.show(json.dumps(body) if as_json else str(body["id"]))


def _show_all(
    titles: Sequence[str],
    bodies: Sequence[dict[str, Any]],
    row_of: Callable[[dict[str, Any]], Sequence[str]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        terminal.show(json.dumps(bodies))
    else:
        terminal.table(titles, list(map(row_of, bodies)))


def _value(text: str) -> object:
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


@operator_commands.command("create")
def trust(  # noqa: PLR0913 - each is an option
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
    made = ask_operators(config, lambda issuers: issuers.create(COMMAND_LINE, asked))
    _show(provider_body(made), as_json=json_)


@operator_commands.command("list")
def list_trusted(config: Config = None, json_: Json = False) -> None:
    """List whom operators trust, and for which tenants."""
    found = ask_operators(config, lambda issuers: issuers.list())
    _show_all(
        ("ID", "ISSUER", "AUDIENCE", "TENANTS"),
        [provider_body(one) for one in found],
        lambda one: (one["id"], one["issuer"], one["audience"], ", ".join(one["tenants"])),
        as_json=json_,
    )


@operator_commands.command("delete")
def distrust(
    issuer: Annotated[str, typer.Argument(help="Its id: issuer_…")], config: Config = None
) -> None:
    """Trust an issuer no more: its tokens stop working within auth.key_cache_ttl_s."""
    ask_operators(config, lambda issuers: issuers.delete(COMMAND_LINE, issuer))
    terminal.show(f"issuer {issuer} deleted")
