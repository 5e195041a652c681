"""`issuers`: whose tokens a tenant trusts, and what they may do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from gateway import ids
from gateway.admin.federation import ProviderRequest, RuleRequest
from gateway.admin.transactions import AdminCaller
from gateway.cli import terminal
from gateway.cli.options import Config, Json  # noqa: TC001 - typer reads them
from gateway.cli.tenancy.operator_issuers import ask_operators, pairs
from gateway.cli.tenancy.projects import PAGE_ROWS, ask
from gateway.protocol.admin_bodies import ProviderCreate, RuleCreate, provider_body, rule_body
from gateway.protocol.request_errors import validated

if TYPE_CHECKING:
    from gateway.admin.issuers import OperatorIssuers
    from gateway.admin.services import AdminServices
    from gateway.tenancy import TenantId
    from gateway.tenancy.federation import FederationRule, IdentityProvider

commands = typer.Typer(no_args_is_help=True)

TenantName = Annotated[str, typer.Argument(help="Who trusts it.")]
IssuerId = Annotated[str, typer.Argument(help="Its id: widp_…")]


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
    asked = ProviderRequest.of(validated(ProviderCreate, body))
    made = ask(
        config,
        tenant,
        lambda services, id_: services.identity_providers.create(AdminCaller(id_), asked),
    )
    _show(provider_body(made), as_json=json_)


@commands.command("list")
def list_issuers(tenant: TenantName, config: Config = None, json_: Json = False) -> None:
    """List whom a tenant trusts."""
    shown = [provider_body(one) for one in ask(config, tenant, _all)]
    if json_:
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("ID", "ISSUER", "AUDIENCE", "BEARER", "TENANT TOLD BY"),
        [
            (
                one["id"],
                one["issuer"],
                one["audience"],
                str(one["harmony"]["bearer"]).lower(),
                one["harmony"]["tenant_told_by"] or "-",
            )
            for one in shown
        ],
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

    async def confirmed(services: OperatorIssuers) -> None:
        await services.confirm(tenant, issuer, is_confirmed=not withdraw)

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
        asked = RuleRequest.of(validated(RuleCreate, body))
        return await services.identity_providers.create_rule(caller, issuer, asked)

    _show(rule_body(ask(config, tenant, allowed)), as_json=json_)


@commands.command("rules")
def rules(tenant: TenantName, issuer: IssuerId, config: Config = None, json_: Json = False) -> None:
    """List what tokens of an issuer may do."""

    async def listed(services: AdminServices, id_: TenantId) -> list[FederationRule]:
        found: list[FederationRule] = []
        while True:
            after = ids.federation_rule_id(found[-1].id) if found else None
            page = await services.identity_providers.rules(
                id_, issuer, limit=PAGE_ROWS, after=after
            )
            found += page.rows
            if not page.has_more:
                return found

    shown = [rule_body(one) for one in ask(config, tenant, listed)]
    if json_:
        terminal.show(json.dumps(shown))
        return
    terminal.table(
        ("ID", "PROJECT", "SERVICE ACCOUNT", "MATCHES"),
        [
            (
                one["id"],
                one["project_id"],
                one["service_account_id"],
                json.dumps(one["attribute_matchers"]),
            )
            for one in shown
        ],
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


async def _all(services: AdminServices, tenant_id: TenantId) -> list[IdentityProvider]:
    found: list[IdentityProvider] = []
    while True:
        after = ids.identity_provider_id(found[-1].id) if found else None
        page = await services.identity_providers.list(tenant_id, limit=PAGE_ROWS, after=after)
        found += page.rows
        if not page.has_more:
            return found


def _show(body: dict[str, object], *, as_json: bool) -> None:
    terminal.show(json.dumps(body) if as_json else str(body["id"]))


def _value(text: str) -> object:
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
