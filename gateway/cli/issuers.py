"""`issuers` of a tenant, and `operator-issuers`, whose tokens name the tenant."""

from __future__ import annotations

import json
from typing import Annotated, Any

import orjson
import typer

from gateway import ids
from gateway.admin.federation_rules import RULES_MAX, RuleCreate, rule_body
from gateway.admin.identity_providers import PROVIDERS_MAX, ProviderCreate, provider_body
from gateway.admin.issuers import OperatorIssuerCreate, OperatorIssuers
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, TenantName, command
from gateway.errors import InvalidRequest
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import validated
from gateway.tenancy.issuers import END_USER, PROJECT, ROLE, SCOPES_GRANTED, TENANT

commands = typer.Typer(no_args_is_help=True)
operator_commands = typer.Typer(no_args_is_help=True)

IssuerId = Annotated[str, typer.Argument(help="Its id: widp_…")]


async def _of_operators(gateway: Installation) -> OperatorIssuers:
    access = await gateway.access()
    return OperatorIssuers(await gateway.database(), access.forget)


def _pairs(arguments: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for one in arguments or ():
        name, equals, value = one.partition("=")
        if not equals:
            raise InvalidRequest(f"{one!r} is no NAME=VALUE.")
        pairs.append((name, value))
    return pairs


@command(commands, "create")
async def create(  # noqa: PLR0913 - each is an option
    gateway: Installation,
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
    json_: Json = False,
) -> None:
    """Trust an issuer. Until a rule says so (`issuers allow`), its tokens may do nothing."""
    transformations = [
        {"attribute": one, "expression": expression} for one, expression in _pairs(attribute)
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
    request = validated(ProviderCreate, body)
    services, caller = await gateway.admin(tenant)
    made = await services.identity_providers.create(caller, request)
    _show(provider_body(made), as_json=json_)


@command(commands, "list")
async def list_issuers(gateway: Installation, tenant: TenantName, json_: Json = False) -> None:
    """List the issuers that a tenant trusts."""
    services, caller = await gateway.admin(tenant)
    page = await services.identity_providers.list(caller.tenant_id, PageParams(PROVIDERS_MAX))
    terminal.listing(
        list(map(provider_body, page.rows)),
        {
            "ID": "id",
            "ISSUER": "issuer",
            "AUDIENCE": "audience",
            "BEARER": lambda one: str(one["harmony"]["bearer"]).lower(),
            "TENANT TOLD BY": lambda one: one["harmony"]["tenant_told_by"] or "-",
        },
        as_json=json_,
    )


@command(commands, "delete")
async def delete(gateway: Installation, tenant: TenantName, issuer: IssuerId) -> None:
    """Trust an issuer no more: its tokens, and what they were exchanged for, stop working within
    auth.key_cache_ttl_s.
    """
    services, caller = await gateway.admin(tenant)
    await services.identity_providers.delete(caller, issuer)
    terminal.show(f"issuer {issuer} deleted")


@command(commands, "confirm")
async def confirm(
    gateway: Installation,
    tenant: TenantName,
    issuer: IssuerId,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="They have to name the tenant again.")
    ] = False,
) -> None:
    """Say that bearer tokens of this issuer and audience are this tenant's where neither the
    audience nor the header OpenAI-Organization names one. One tenant alone can have them.
    """
    issuers = await _of_operators(gateway)
    await (issuers.withdraw if withdraw else issuers.confirm)(COMMAND_LINE, tenant, issuer)
    terminal.show(f"issuer {issuer} {'withdrawn' if withdraw else 'confirmed'}")


@command(commands, "allow")
async def allow(  # noqa: PLR0913 - each is an option
    gateway: Installation,
    tenant: TenantName,
    issuer: IssuerId,
    project: Annotated[str, typer.Argument(help="Where they act: proj_…")],
    match: Annotated[
        list[str], typer.Option(help="ATTRIBUTE=VALUE that a token must have; repeatable.")
    ],
    account: Annotated[
        str | None, typer.Option(help="The service account that they act for. Default: a new one.")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="Repeatable; default: all.")] = None,
    name: Annotated[str, typer.Option(help="Of the rule, and a new account.")] = "federated",
    json_: Json = False,
) -> None:
    """Let tokens of an issuer act in a project. A value that is JSON is taken as such:
    `--match email_verified=true`.
    """
    body = {
        "attribute_matchers": {one: _value(value) for one, value in _pairs(match)},
        "project_id": project,
        "service_account_id": account or "",
        "name": name,
        "permissions": {"type": "restricted", "scopes": scope} if scope else None,
    }
    validated(RuleCreate, body)
    services, caller = await gateway.admin(tenant)
    if account is None:
        # A mistyped issuer must not leave an account behind.
        await services.identity_providers.get(caller.tenant_id, issuer)
        made, _ = await services.keys.create_account(caller, project, name, None)
        body["service_account_id"] = ids.service_account_id(made.id)
    request = validated(RuleCreate, body)
    rule = await services.federation_rules.create(caller, issuer, request)
    _show(rule_body(rule), as_json=json_)


@command(commands, "rules")
async def rules(
    gateway: Installation, tenant: TenantName, issuer: IssuerId, json_: Json = False
) -> None:
    """List what tokens of an issuer may do."""
    services, caller = await gateway.admin(tenant)
    page = await services.federation_rules.list(caller.tenant_id, issuer, PageParams(RULES_MAX))
    terminal.listing(
        list(map(rule_body, page.rows)),
        {
            "ID": "id",
            "PROJECT": "project_id",
            "SERVICE ACCOUNT": "service_account_id",
            "MATCHES": lambda one: json.dumps(one["attribute_matchers"]),
        },
        as_json=json_,
    )


@command(commands, "disallow")
async def disallow(
    gateway: Installation,
    tenant: TenantName,
    issuer: IssuerId,
    rule: Annotated[str, typer.Argument(help="Its id: wifr_…")],
) -> None:
    """Take a rule back: what was exchanged by it stops working, too."""
    services, caller = await gateway.admin(tenant)
    await services.federation_rules.delete(caller, issuer, rule)
    terminal.show(f"rule {rule} deleted")


def _show(body: dict[str, object], *, as_json: bool) -> None:
    terminal.show(json.dumps(body) if as_json else str(body["id"]))


def _value(text: str) -> object:
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


@command(operator_commands, "create")
async def trust(  # noqa: PLR0913 - each is an option
    gateway: Installation,
    issuer: Annotated[str, typer.Argument(help="The claim iss of its tokens, a URL.")],
    audience: Annotated[str, typer.Argument(help="The claim aud of its tokens.")],
    tenant_claim: Annotated[
        str, typer.Option(help="Which claim is the id or name of the tenant: assertion.org")
    ],
    tenant: Annotated[
        list[str], typer.Option(help="Whom its tokens may name; '*': any. Repeatable.")
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
        "roles": {one: scopes.split(",") for one, scopes in _pairs(role)},
        "attribute_transformations": [
            {"attribute": attribute, "expression": expression}
            for attribute, expression in claims.items()
            if expression is not None
        ],
        "harmony": {} if jwks_url is None else {"jwks_url": jwks_url},
    }
    request = validated(OperatorIssuerCreate, body)
    issuers = await _of_operators(gateway)
    made = await issuers.create(COMMAND_LINE, request)
    _show(provider_body(made), as_json=json_)


@command(operator_commands, "list")
async def list_trusted(gateway: Installation, json_: Json = False) -> None:
    """List the issuers that operators trust, and for which tenants."""
    issuers = await _of_operators(gateway)
    terminal.listing(
        list(map(provider_body, await issuers.list())),
        {
            "ID": "id",
            "ISSUER": "issuer",
            "AUDIENCE": "audience",
            "TENANTS": lambda one: ", ".join(one["tenants"]),
        },
        as_json=json_,
    )


@command(operator_commands, "delete")
async def distrust(
    gateway: Installation, issuer: Annotated[str, typer.Argument(help="Its id: issuer_…")]
) -> None:
    """Trust an issuer no more: its tokens stop working within auth.key_cache_ttl_s."""
    issuers = await _of_operators(gateway)
    await issuers.delete(COMMAND_LINE, issuer)
    terminal.show(f"issuer {issuer} deleted")
