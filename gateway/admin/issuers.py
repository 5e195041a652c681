"""Issuers of tokens: those that tenants trust, with rules, and those that operators trust.

`/v1/organization/workload_identity_providers` has bodies and objects as openai-python 3.52; our own
fields stand under `harmony`. `/admin/v1/issuers` is for operators, and so is
`/admin/v1/tenants/{name}/issuers`, the providers of a tenant. Both kinds are rows of one table:
`tenancy.issuers.IdentityProvider`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, Discriminator, Field, StringConstraints
from sqlalchemy import Text, Uuid, any_, bindparam, func, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from typing_extensions import override

from gateway import ids
from gateway.admin.core import (
    CoreStatement,
    ResourceRows,
    insert_row,
    mark_by_id,
    of_tenant,
    update_by_id,
)
from gateway.admin.projects import required_project
from gateway.admin.routes import changed, deleted, listed, read, whole_page
from gateway.admin.service_accounts import required_account, unknown_account
from gateway.admin.tenants import ONE as TENANT_PATH
from gateway.admin.tenants import check_name
from gateway.admin.transactions import owned
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, StoreConflict, shown
from gateway.protocol.admin_bodies import (
    DisplayName,
    Json,
    NoBody,
    ShortText,
    scopes_of,
    seconds_of,
)
from gateway.protocol.base import AS_INTEGER, Many, NullableModel, WireModel, without_nulls
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import invalid
from gateway.store import audit_log, tenants
from gateway.store.callers import FIND_OF_OPERATORS, provider_of_row, rule_of_row
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.database import check_owner
from gateway.store.schema import EVERYONE
from gateway.store.tables import TABLES
from gateway.tenancy import TenantId
from gateway.tenancy.issuers import (
    ALGORITHMS,
    ANY_TENANT,
    EXPRESSION_CHARS_MAX,
    OF_OPERATORS,
    TENANT,
    Algorithm,
    IdentityProvider,
    KeySource,
    Transformation,
    discovered,
    organizations_named,
    path_of,
)
from gateway.tenancy.permissions import SCOPES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.audit import Author
    from gateway.protocol.pages import Page
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy.issuers import FederationRule

PROVIDERS: Final = TABLES["identity_providers"]
RULES: Final = TABLES["federation_rules"]
TENANTS: Final = TABLES["tenants"]

ALL = "/organization/workload_identity_providers"
ONE = f"{ALL}/{{workload_identity_provider_id}}"
ALL_RULES = f"{ONE}/federation_rules"
ONE_RULE = f"{ALL_RULES}/{{workload_identity_federation_rule_id}}"
KIND = "organization.workload_identity_provider"
RULE_KIND = "organization.workload_identity_federation_rule"
OF_OPERATOR = "/issuers"
OF_OPERATOR_ONE = f"{OF_OPERATOR}/{{issuer_id}}"
OF_TENANT = f"{TENANT_PATH}/issuers"
OF_TENANT_ONE = f"{OF_TENANT}/{{workload_identity_provider_id}}"

PROVIDER_EVENT: Final = "workload_identity_provider"
RULE_EVENT: Final = "workload_identity_provider_mapping"
ISSUER_EVENT: Final = "harmony.issuer"

PROVIDERS_MAX: Final = 50
"""Identity providers of one tenant, and issuers of operators."""
RULES_MAX: Final = 50
"""Federation rules of one identity provider."""
URL_CHARS_MAX: Final = 512
"""Characters of an issuer and of an audience, at most: both are in one index entry."""
ATTRIBUTES_MAX: Final = 32
JWKS_BYTES_MAX: Final = 64 * 1024
CLOCK_SKEW_MAX_S: Final = 300
LIFETIME_MAX_S: Final = 86_400


def _url(url: str) -> str:
    # A URL with user info is refused: it would be shown with its password.
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        is_one = is_one and "@" not in parts.netloc
    except ValueError:
        is_one = False
    if not is_one or not url.isascii() or not url.isprintable() or " " in url or "#" in url:
        raise ValueError("must be a URL such as https://issuer.example.com, without user info")
    return url


def _expression(expression: str) -> str:
    path_of(expression)
    return expression


Url = Annotated[
    str, StringConstraints(min_length=1, max_length=URL_CHARS_MAX), AfterValidator(_url)
]
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Audience = Annotated[
    str, StringConstraints(min_length=1, max_length=URL_CHARS_MAX, pattern=r"^[!-~ ]+$")
]
MatcherValue = (
    Annotated[str, StringConstraints(max_length=1024)]
    | bool
    | Annotated[int, Field(ge=-(2**53), le=2**53)]
    | Annotated[float, Field(allow_inf_nan=False)]
)
Matchers = Annotated[
    dict[AttributeName, MatcherValue], Field(min_length=1, max_length=ATTRIBUTES_MAX)
]


class AttributeTransformation(WireModel):
    """An attribute that is made of claims."""

    attribute: AttributeName
    expression: Annotated[
        str, StringConstraints(max_length=EXPRESSION_CHARS_MAX), AfterValidator(_expression)
    ]


class Discovery(NullableModel):
    """Keys located by the issuer's OpenID configuration. `discovery_url` None: the usual place."""

    type: Literal["discovery"]
    discovery_url: Url | None = None


class UploadedJwks(WireModel):
    """The keys themselves, for an issuer that cannot be reached from here."""

    type: Literal["uploaded_jwks"]
    jwks: dict[str, Any]


Verification = Annotated[Discovery | UploadedJwks, Discriminator("type")]


class TokenExtras(NullableModel):
    """`harmony` of a provider. `bearer`: its tokens are taken as API keys. `jwks_url` locates its
    keys, where it has no configuration that does.
    """

    bearer: bool | None = None
    jwks_url: Url | None = None
    algorithms: (
        Annotated[Many[Algorithm], Field(min_length=1, max_length=len(ALGORITHMS))] | None
    ) = None
    clock_skew_seconds: Annotated[int, Field(ge=0, le=CLOCK_SKEW_MAX_S), AS_INTEGER] | None = None
    lifetime_max_seconds: Annotated[int, Field(ge=1, le=LIFETIME_MAX_S), AS_INTEGER] | None = None

    def columns(self) -> Json:
        return without_nulls(
            {
                "bearer": self.bearer,
                "algorithms": self.algorithms and tuple(dict.fromkeys(self.algorithms)),
                "clock_skew_s": self.clock_skew_seconds,
                "lifetime_max_s": self.lifetime_max_seconds,
            }
        )


_NAMED: Final = ("name", "issuer", "audience")
_DEFAULTS: Final = {
    field.name: field.default for field in fields(IdentityProvider) if field.default is not MISSING
}


class _ProviderFields(NullableModel):
    attribute_transformations: (
        Annotated[Many[AttributeTransformation], Field(max_length=ATTRIBUTES_MAX)] | None
    ) = None
    description: ShortText | None = None
    enabled: bool | None = None
    verification: Verification | None = None
    harmony: TokenExtras = TokenExtras()

    def columns(self, before: IdentityProvider | None = None) -> Json:
        """Return the values of the provider; those that the request leaves out are `before`'s.

        Raises `InvalidRequest`.
        """
        columns = dict(_DEFAULTS)
        if before is not None:
            columns = {name: getattr(before, name) for name in (*_NAMED, *_DEFAULTS)}
        columns |= self.model_dump(include={*_NAMED, *_DEFAULTS}, exclude_none=True)
        columns |= self.harmony.columns()
        if self.attribute_transformations is not None:
            columns["transformations"] = tuple(
                Transformation(one.attribute, one.expression)
                for one in self.attribute_transformations
            )
        issuer, audience = columns["issuer"], columns["audience"]
        keys = self.keys(issuer)
        if keys is None and (before is None or before.keys == discovered(before.issuer)):
            # By default the issuer's own configuration names its keys.
            keys = discovered(issuer)
        columns |= {} if keys is None else keys._asdict()
        # It was this issuer and audience that the operator confirmed.
        is_same = before is not None and (before.issuer, before.audience) == (issuer, audience)
        is_unnamed = (is_same and columns["unnamed_bearer"]) or bool(organizations_named(audience))
        columns["unnamed_bearer"] = columns["bearer"] and is_unnamed
        return columns

    def keys(self, issuer: str) -> KeySource | None:
        """Return the source of the issuer's keys; None if the request has none.

        Raises `InvalidRequest`.
        """
        verification = self.verification
        if self.harmony.jwks_url is not None:
            if verification is not None:
                raise invalid(
                    "harmony.jwks_url", "'verification' says whence the keys come already"
                )
            return KeySource(jwks_url=self.harmony.jwks_url)
        if isinstance(verification, UploadedJwks):
            jwks = orjson.dumps(verification.jwks)
            if len(jwks) > JWKS_BYTES_MAX or not isinstance(verification.jwks.get("keys"), list):
                raise invalid(
                    "verification.jwks",
                    f"it has to be a JSON Web Key Set of {JWKS_BYTES_MAX} bytes at most",
                )
            return KeySource(jwks=jwks)
        if verification is None:
            return None
        return discovered(issuer, verification.discovery_url)


class ProviderCreate(_ProviderFields):
    """`POST /organization/workload_identity_providers`: an issuer whose tokens are to be taken."""

    name: DisplayName
    type: Literal["oidc"]
    issuer: Url
    audience: Audience


class ProviderUpdate(_ProviderFields):
    """`POST …/{id}`: omitted fields stay."""

    name: DisplayName | None = None
    issuer: Url | None = None
    audience: Audience | None = None


TenantNames = Annotated[Many[ShortText], Field(min_length=1, max_length=1000)]
Roles = Annotated[
    dict[AttributeName, Annotated[Many[str], Field(min_length=1, max_length=len(SCOPES))]],
    Field(max_length=ATTRIBUTES_MAX),
]


class _OperatorIssuerFields(_ProviderFields):
    roles: Roles | None = None

    @override
    def columns(self, before: IdentityProvider | None = None) -> Json:
        columns = super().columns(before) | {"bearer": True, "unnamed_bearer": False}
        columns["tenants"] = tuple(dict.fromkeys(columns["tenants"]))
        if self.roles is not None:
            columns["roles"] = {name: sorted(scopes_of(one)) for name, one in self.roles.items()}
        columns["roles"] = columns["roles"] or {}
        return columns


class OperatorIssuerCreate(_OperatorIssuerFields):
    """`POST /admin/v1/issuers`. `tenants`: names of those that its tokens may name; `*`: any."""

    name: DisplayName
    issuer: Url
    audience: Audience
    tenants: TenantNames


class OperatorIssuerUpdate(_OperatorIssuerFields):
    """`POST /admin/v1/issuers/{id}`: omitted fields stay."""

    name: DisplayName | None = None
    issuer: Url | None = None
    audience: Audience | None = None
    tenants: TenantNames | None = None


class DefaultPermissions(WireModel):
    """Permissions of a token equal to those of a service account of the project."""

    type: Literal["service_account_default"]


class RestrictedPermissions(WireModel):
    """Permissions of a token limited to these scopes, such as `responses.read`."""

    type: Literal["restricted"]
    scopes: Annotated[Many[str], Field(min_length=1, max_length=len(SCOPES))]


Permissions = Annotated[DefaultPermissions | RestrictedPermissions, Discriminator("type")]


class _RuleFields(NullableModel):
    name: DisplayName | None = None
    description: ShortText | None = None
    enabled: bool | None = None
    permissions: Permissions | None = None
    attribute_matchers: Matchers | None = None

    def columns(self) -> Json:
        """Return the values that the request sets. Raises `InvalidRequest` for an unknown scope."""
        columns = self.model_dump(include={"name", "description", "enabled"}, exclude_none=True)
        if self.attribute_matchers is not None:
            columns["matchers"] = self.attribute_matchers
        if self.permissions is not None:
            permissions = self.permissions
            scopes = permissions.scopes if isinstance(permissions, RestrictedPermissions) else ()
            columns["scopes"] = scopes_of(scopes)
        return columns


class RuleCreate(_RuleFields):
    """`POST …/federation_rules`: which tokens of a provider stand for a service account."""

    attribute_matchers: Matchers
    project_id: ShortText
    service_account_id: ShortText


class RuleUpdate(_RuleFields):
    """`POST …/federation_rules/{id}`: omitted fields stay."""


def routes(providers: IdentityProviders) -> list[AdminRoute]:
    may_read: Final = "workload_identity.read"
    may_write: Final = "workload_identity.write"
    return [
        listed(ALL, may_read, providers.list, provider_body, is_ordered=True),
        changed(ALL, may_write, providers.create, provider_body, ProviderCreate),
        read(ONE, may_read, providers.get, provider_body),
        changed(ONE, may_write, providers.change, provider_body, ProviderUpdate),
        deleted(ONE, may_write, providers.delete, KIND),
        listed(
            ALL_RULES,
            may_read,
            providers.rules,
            rule_body,
            filters=("service_account_id",),
            is_ordered=True,
        ),
        changed(ALL_RULES, may_write, providers.create_rule, rule_body, RuleCreate),
        read(ONE_RULE, may_read, providers.rule, rule_body),
        changed(ONE_RULE, may_write, providers.change_rule, rule_body, RuleUpdate),
        deleted(ONE_RULE, may_write, providers.delete_rule, RULE_KIND),
    ]


def operator_routes(issuers: OperatorIssuers) -> list[AdminRoute]:
    def shown_all(providers: Sequence[IdentityProvider]) -> Json:
        return whole_page(list(map(provider_body, providers)))

    may_read: Final = "issuers.read"
    may_write: Final = "issuers.write"
    confirm, withdraw = f"{OF_TENANT_ONE}/confirm", f"{OF_TENANT_ONE}/withdraw"
    return [
        read(OF_OPERATOR, may_read, issuers.list, shown_all),
        changed(OF_OPERATOR, may_write, issuers.create, provider_body, OperatorIssuerCreate),
        read(OF_OPERATOR_ONE, may_read, issuers.get, provider_body),
        changed(OF_OPERATOR_ONE, may_write, issuers.change, provider_body, OperatorIssuerUpdate),
        deleted(OF_OPERATOR_ONE, may_write, issuers.delete, "issuer"),
        read(OF_TENANT, may_read, issuers.of_tenant, shown_all),
        changed(confirm, may_write, issuers.confirm, provider_body, NoBody),
        changed(withdraw, may_write, issuers.withdraw, provider_body, NoBody),
    ]


def provider_body(provider: IdentityProvider) -> Json:
    # Uploaded keys are public keys, so they are shown. An operator's tokens are always bearer
    # tokens.
    keys: Json = {"type": "discovery", "discovery_url": provider.discovery_url}
    if provider.jwks is not None:
        keys = {"type": "uploaded_jwks", "jwks": orjson.loads(provider.jwks)}
    body: Json = {
        "id": ids.identity_provider_id(provider.id),
        "object": KIND,
        "type": "oidc",
        "name": provider.name,
        "description": provider.description,
        "issuer": provider.issuer,
        "audience": provider.audience,
        "attribute_transformations": [one._asdict() for one in provider.transformations],
        "verification": keys,
        "enabled": provider.enabled,
        "created_at": seconds_of(provider.created_at),
        "updated_at": seconds_of(provider.updated_at),
    }
    extras = {
        "jwks_url": provider.jwks_url,
        "algorithms": list(provider.algorithms),
        "clock_skew_seconds": provider.clock_skew_s,
        "lifetime_max_seconds": provider.lifetime_max_s,
    }
    if provider.tenants is None:
        binding = provider.tenant_binding
        return body | {"harmony": {"bearer": provider.bearer, "tenant_told_by": binding, **extras}}
    return body | {
        "id": ids.operator_issuer_id(provider.id),
        "object": "issuer",
        "tenants": list(provider.tenants),
        "roles": {name: list(scopes) for name, scopes in (provider.roles or {}).items()},
        "harmony": {**extras, "api_key_id": ids.api_key_id(provider.id)},
    }


def rule_body(rule: FederationRule) -> Json:
    # Usage has the rule's id as `api_key_id`.
    return {
        "id": ids.federation_rule_id(rule.id),
        "object": RULE_KIND,
        "workload_identity_provider_id": ids.identity_provider_id(rule.provider_id),
        "project_id": ids.project_id(rule.project_id),
        "service_account_id": ids.service_account_id(rule.service_account_id),
        "name": rule.name,
        "description": rule.description,
        "attribute_matchers": dict(rule.matchers),
        "permissions": {"type": "restricted", "scopes": sorted(rule.scopes)}
        if rule.scopes
        else {"type": "service_account_default"},
        "enabled": rule.enabled,
        "created_at": seconds_of(rule.created_at),
        "updated_at": seconds_of(rule.updated_at),
        "harmony": {"api_key_id": ids.api_key_id(rule.id)},
    }


def _audited_provider(provider: IdentityProvider) -> Json:
    body = provider_body(provider)
    fields = ("issuer", "audience", "enabled", "tenants", "roles")
    extras = ("bearer", "tenant_told_by", "algorithms")
    return {name: body[name] for name in fields if name in body} | {
        name: body["harmony"][name] for name in extras if name in body["harmony"]
    }


def _audited_rule(rule: FederationRule) -> Json:
    fields = ("service_account_id", "attribute_matchers", "enabled")
    body = rule_body(rule)
    return {name: body[name] for name in fields} | {"scopes": sorted(rule.scopes)}


_PROVIDER_IS_THERE: Final = PROVIDERS.c.deleted_at.is_(None)
_RULE_IS_THERE: Final = (
    RULES.c.provider_id == bindparam("provider"),
    RULES.c.deleted_at.is_(None),
)
# A deleted provider keeps its issuer and audience for its tenant (`uq_identity_providers_unnamed`),
# who may use them again, until an operator gives them to another tenant: only operators see rows of
# several tenants here.
_GIVE_WAY: Final = CoreStatement(
    update(PROVIDERS)
    .where(
        PROVIDERS.c.issuer == bindparam("its_issuer"),
        PROVIDERS.c.audience == bindparam("its_audience"),
        PROVIDERS.c.deleted_at.is_not(None),
        PROVIDERS.c.unnamed_bearer,
    )
    .values(unnamed_bearer=False)
)
_DELETE_RULES: Final = CoreStatement(
    update(RULES).where(*of_tenant(RULES), *_RULE_IS_THERE).values(deleted_at=func.now())
)
_SELECT_TENANTS: Final = CoreStatement(
    select(TENANTS.c.name).where(TENANTS.c.name == any_(bindparam("names", type_=ARRAY(Text))))
)


def _unknown(provider_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"No workload identity provider with id '{shown(provider_id)}' was found.",
        code="workload_identity_provider_not_found",
        param="workload_identity_provider_id",
    )


def _unknown_issuer(issuer_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"There is no issuer '{shown(issuer_id)}'. GET /admin/v1/issuers lists them.",
        code="issuer_not_found",
        param="issuer_id",
    )


def _unknown_rule(rule_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"No federation rule with id '{shown(rule_id)}' was found at this identity provider.",
        code="federation_rule_not_found",
        param="workload_identity_federation_rule_id",
    )


_PROVIDERS: Final = ResourceRows(
    PROVIDERS, provider_of_row, ids.parse_identity_provider_id, _unknown, _PROVIDER_IS_THERE
)
_ISSUERS: Final = ResourceRows(
    PROVIDERS, provider_of_row, ids.parse_operator_issuer_id, _unknown_issuer, _PROVIDER_IS_THERE
)
_ACCOUNT: Final = bindparam("account", type_=Uuid)
_RULES: Final = ResourceRows(
    RULES,
    rule_of_row,
    ids.parse_federation_rule_id,
    _unknown_rule,
    *_RULE_IS_THERE,
    or_(_ACCOUNT.is_(None), RULES.c.service_account_id == _ACCOUNT),
)


async def _required_rule(
    connection: Connection, tenant_id: TenantId, provider_id: str, rule_id: str
) -> FederationRule:
    provider = await _PROVIDERS.get(connection, provider_id, tenant=tenant_id)
    return await _RULES.get(
        connection, rule_id, tenant=tenant_id, provider=provider.id, account=None
    )


async def _insert(connection: Connection, tenant_id: TenantId, columns: Json) -> IdentityProvider:
    """Insert a provider.

    Raises `StoreConflict` when a provider that takes bearer tokens has the same issuer and
    audience: another of this tenant (uq_identity_providers_bearer), or of any tenant if tokens need
    not name theirs (uq_identity_providers_unnamed).
    """
    if columns["unnamed_bearer"]:
        await _give_way(connection, columns["issuer"], columns["audience"])
    new = {"tenant_id": tenant_id, "id": ids.new_uuid(), **columns}
    return provider_of_row(await _written(connection, insert_row(PROVIDERS, *new), new))


async def _update(
    connection: Connection, provider: IdentityProvider, columns: Json
) -> IdentityProvider:
    # Raises as `_insert` does.
    if columns.get("unnamed_bearer"):
        wanted = (columns.get(name, getattr(provider, name)) for name in ("issuer", "audience"))
        await _give_way(connection, *wanted)
    parameters = {"tenant": provider.tenant_id, "id": provider.id, **columns}
    statement = update_by_id(PROVIDERS, *columns)
    return provider_of_row(await _written(connection, statement, parameters))


async def _written(connection: Connection, statement: CoreStatement, values: Json) -> Row:
    encoded = {
        name: orjson.dumps(values[name], default=tuple)
        for name in ("transformations", "roles", "matchers")
        if values.get(name) is not None
    }
    return (await connection.execute(statement, {**values, **encoded})).one()


async def _give_way(connection: Connection, issuer: str, audience: str) -> None:
    await connection.execute(_GIVE_WAY, {"its_issuer": issuer, "its_audience": audience})


def _too_many(most: int, what: str) -> RateLimited:
    return RateLimited(
        f"There are {most} {what}, which is as many as may be. Delete some that are not needed any "
        "more.",
        code="too_many_identity_providers",
    )


def _audience_taken(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Bearer tokens of this issuer for this audience are accepted already. {why} Have your "
        "issuer make tokens for another audience.",
        code="audience_taken",
        param="audience",
    )


class IdentityProviders:
    """Identity providers of tenants, and their rules. All methods raise `ResourceNotFound` for an
    unknown provider, rule, project or account.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def create(self, caller: AdminCaller, body: ProviderCreate) -> IdentityProvider:
        """Trust an issuer.

        Raises `RateLimited` for too many, and `InvalidRequest` if bearer tokens of this issuer and
        audience belong to another provider of the tenant or to the operator, or if the audience
        names another tenant.
        """
        tenant_id = caller.tenant_id
        columns = body.columns()
        async with self._changing(caller) as connection:
            if await _PROVIDERS.count(connection, tenant=tenant_id) >= PROVIDERS_MAX:
                raise _too_many(PROVIDERS_MAX, "workload identity providers")
            await _check(connection, tenant_id, columns)
            made = await _insert(connection, tenant_id, columns)
            target = ids.identity_provider_id(made.id)
            await caller.note(
                connection, f"{PROVIDER_EVENT}.created", target, data=_audited_provider(made)
            )
            return made

    async def get(self, tenant_id: TenantId, provider_id: str) -> IdentityProvider:
        async with self._transactions.reading(tenant_id) as connection:
            return await _PROVIDERS.get(connection, provider_id, tenant=tenant_id)

    async def list(self, tenant_id: TenantId, page: PageParams) -> Page[IdentityProvider]:
        async with self._transactions.reading(tenant_id) as connection:
            return await _PROVIDERS.page(connection, page, tenant=tenant_id)

    async def change(
        self, caller: AdminCaller, provider_id: str, body: ProviderUpdate
    ) -> IdentityProvider:
        # Fields that are left out stay. Raises as `create` does.
        async with self._changing(caller) as connection:
            provider = await _PROVIDERS.get(connection, provider_id, tenant=caller.tenant_id)
            columns = body.columns(provider)
            await _check(connection, caller.tenant_id, columns)
            updated = await _update(connection, provider, columns)
            await caller.note(
                connection,
                f"{PROVIDER_EVENT}.updated",
                provider_id,
                changes_requested=_audited_provider(updated),
            )
            return updated

    async def delete(self, caller: AdminCaller, provider_id: str) -> None:
        # Its rules go with it: its tokens and those they were exchanged for stop working.
        async with self._changing(caller) as connection:
            provider = await _PROVIDERS.get(connection, provider_id, tenant=caller.tenant_id)
            row = {"tenant": caller.tenant_id, "id": provider.id, "provider": provider.id}
            await connection.execute(_DELETE_RULES, row)
            await connection.execute(mark_by_id(PROVIDERS, "deleted_at"), row)
            await caller.note(
                connection, f"{PROVIDER_EVENT}.deleted", provider_id, name=provider.name
            )

    async def create_rule(
        self, caller: AdminCaller, provider_id: str, body: RuleCreate
    ) -> FederationRule:
        """Add a rule to a provider.

        Raises `RateLimited` for too many, `InvalidRequest` for an archived project.
        """
        tenant_id = caller.tenant_id
        columns = body.columns()
        async with self._changing(caller) as connection:
            provider = await _PROVIDERS.get(connection, provider_id, tenant=tenant_id)
            count = await _RULES.count(
                connection, tenant=tenant_id, provider=provider.id, account=None
            )
            if count >= RULES_MAX:
                raise _too_many(RULES_MAX, "federation rules of this identity provider")
            project = await required_project(connection, tenant_id, body.project_id, is_active=True)
            account = await required_account(connection, project, body.service_account_id)
            new = {
                "tenant_id": tenant_id,
                "id": ids.new_uuid(),
                "provider_id": provider.id,
                "project_id": project.id,
                "service_account_id": account.id,
                "enabled": True,
                "scopes": frozenset(),
                **columns,
            }
            made = rule_of_row(await _written(connection, insert_row(RULES, *new), new))
            await caller.note(
                connection,
                f"{RULE_EVENT}.created",
                ids.federation_rule_id(made.id),
                project.id,
                identity_provider_id=provider_id,
                data=_audited_rule(made),
            )
            return made

    async def rule(self, tenant_id: TenantId, provider_id: str, rule_id: str) -> FederationRule:
        async with self._transactions.reading(tenant_id) as connection:
            return await _required_rule(connection, tenant_id, provider_id, rule_id)

    async def rules(
        self,
        tenant_id: TenantId,
        provider_id: str,
        page: PageParams,
        *,
        service_account_id: str | None = None,
    ) -> Page[FederationRule]:
        # All of a provider, or those of one service account.
        account = None
        if service_account_id is not None:
            account = ids.parse_service_account_id(service_account_id)
            if account is None:
                raise unknown_account(service_account_id)
        async with self._transactions.reading(tenant_id) as connection:
            provider = await _PROVIDERS.get(connection, provider_id, tenant=tenant_id)
            return await _RULES.page(
                connection, page, tenant=tenant_id, provider=provider.id, account=account
            )

    async def change_rule(
        self, caller: AdminCaller, provider_id: str, rule_id: str, body: RuleUpdate
    ) -> FederationRule:
        # Fields that are left out stay.
        tenant_id = caller.tenant_id
        columns = body.columns()
        async with self._changing(caller) as connection:
            rule = await _required_rule(connection, tenant_id, provider_id, rule_id)
            parameters = {"tenant": tenant_id, "id": rule.id, **columns}
            rule = rule_of_row(
                await _written(connection, update_by_id(RULES, *columns), parameters)
            )
            await caller.note(
                connection,
                f"{RULE_EVENT}.updated",
                rule_id,
                rule.project_id,
                identity_provider_id=provider_id,
                changes_requested=_audited_rule(rule),
            )
            return rule

    async def delete_rule(self, caller: AdminCaller, provider_id: str, rule_id: str) -> None:
        # Tokens that were exchanged by the rule stop working.
        async with self._changing(caller) as connection:
            rule = await _required_rule(connection, caller.tenant_id, provider_id, rule_id)
            await connection.execute(
                mark_by_id(RULES, "deleted_at"), {"tenant": caller.tenant_id, "id": rule.id}
            )
            await caller.note(
                connection,
                f"{RULE_EVENT}.deleted",
                rule_id,
                rule.project_id,
                identity_provider_id=provider_id,
                service_account_id=ids.service_account_id(rule.service_account_id),
            )

    @asynccontextmanager
    async def _changing(self, caller: AdminCaller) -> AsyncIterator[Connection]:
        try:
            async with self._transactions.changing(caller.tenant_id) as connection:
                yield connection
        except StoreConflict as conflict:
            if _UNIQUE not in str(conflict):
                raise
            raise _audience_taken("Another identity provider of yours accepts them.") from conflict


_UNIQUE: Final = "uq_identity_providers_bearer"


async def _check(connection: Connection, tenant_id: TenantId, columns: Json) -> None:
    attributes = {one.attribute for one in columns["transformations"]}
    if attributes & OF_OPERATORS:
        raise invalid(
            "attribute_transformations",
            f"{', '.join(sorted(OF_OPERATORS))} are for issuers of the operator: tokens of yours "
            "are for your organization, and rules say what they may do",
        )
    if not columns["bearer"]:
        return
    issuer, audience = columns["issuer"], columns["audience"]
    if organizations_named(audience) - {ids.tenant_id(tenant_id)}:
        raise invalid("audience", "it names another organization")
    if await connection.execute(FIND_OF_OPERATORS, {"issuer": issuer, "audiences": [audience]}):
        raise _audience_taken("The operator of this server accepts them for all organizations.")


_NIL: Final = TenantId(EVERYONE)


class OperatorIssuers:
    """Issuers of the operators, and what they confirm of tenants' providers.

    The first are for the owner of the tables alone: methods raise `PermissionDenied` for others,
    and `ResourceNotFound` for an unknown issuer, tenant or provider.
    """

    def __init__(self, database: Database, forget: Callable[[], None]) -> None:
        """Call `forget` after a change: it makes this process look up tokens again."""
        self._database = database
        self._forget = forget

    async def list(self) -> Sequence[IdentityProvider]:
        return await self._all(_NIL)

    async def get(self, issuer_id: str) -> IdentityProvider:
        async with self._owner() as connection:
            return await _ISSUERS.get(connection, issuer_id, tenant=_NIL)

    async def create(self, author: Author, body: OperatorIssuerCreate) -> IdentityProvider:
        """Trust an issuer whose tokens name their tenant.

        Raises `InvalidRequest` if issuer and audience are trusted already, for unknown tenants, and
        if no claim is configured to name the tenant; `RateLimited` for too many.
        """
        columns = body.columns()
        async with self._changing() as connection:
            await self._check(connection, columns)
            if await _ISSUERS.count(connection, tenant=_NIL) >= PROVIDERS_MAX:
                raise _too_many(PROVIDERS_MAX, "issuers")
            made = await _insert(connection, _NIL, columns)
            await _note(connection, author, "created", made, data=_audited_provider(made))
            return made

    async def change(
        self, author: Author, issuer_id: str, body: OperatorIssuerUpdate
    ) -> IdentityProvider:
        # Fields that are left out stay. Raises as `create` does.
        async with self._changing() as connection:
            provider = await _ISSUERS.get(connection, issuer_id, tenant=_NIL)
            columns = body.columns(provider)
            await self._check(connection, columns)
            updated = await _update(connection, provider, columns)
            data = _audited_provider(updated)
            await _note(connection, author, "updated", updated, changes_requested=data)
            return updated

    async def delete(self, author: Author, issuer_id: str) -> None:
        # Tokens of the issuer stop working, and tenants may trust it themselves.
        async with self._changing() as connection:
            provider = await _ISSUERS.get(connection, issuer_id, tenant=_NIL)
            await connection.execute(
                mark_by_id(PROVIDERS, "deleted_at"), {"tenant": _NIL, "id": provider.id}
            )
            await _note(connection, author, "deleted", provider, name=provider.name)

    async def of_tenant(self, name: str) -> Sequence[IdentityProvider]:
        """Return the providers that a tenant trusts, the oldest first.

        `harmony.tenant_told_by` of its body is what ties a bearer token to the tenant.
        """
        return await self._all(await self._tenant_id(name))

    async def confirm(self, author: Author, name: str, provider_id: str) -> IdentityProvider:
        """Let bearer tokens of a tenant's provider omit the tenant's name.

        Raises `InvalidRequest` if another provider has bearer tokens of this issuer and audience,
        or if this provider has none.
        """
        try:
            return await self._set_unnamed(author, name, provider_id, is_confirmed=True)
        except StoreConflict as conflict:
            raise InvalidRequest(
                "Bearer tokens of this issuer for this audience need not name a tenant already, "
                "and are another one's. Withdraw that first.",
                code="audience_taken",
                param="workload_identity_provider_id",
            ) from conflict

    async def withdraw(self, author: Author, name: str, provider_id: str) -> IdentityProvider:
        # Bearer tokens have to name the tenant again.
        return await self._set_unnamed(author, name, provider_id, is_confirmed=False)

    async def _set_unnamed(
        self, author: Author, name: str, provider_id: str, *, is_confirmed: bool
    ) -> IdentityProvider:
        tenant_id = await self._tenant_id(name)
        async with self._changing(tenant_id) as connection:
            provider = await _PROVIDERS.get(connection, provider_id, tenant=tenant_id)
            if not provider.bearer:
                raise InvalidRequest(
                    "Tokens of this provider are for exchange alone, which names it always. Let "
                    "its tenant set 'harmony.bearer' first.",
                    code="no_bearer_tokens",
                    param="workload_identity_provider_id",
                )
            is_unnamed = is_confirmed or bool(organizations_named(provider.audience))
            updated = await _update(connection, provider, {"unnamed_bearer": is_unnamed})
            event = author.event(
                f"{PROVIDER_EVENT}.updated",
                provider_id,
                changes_requested=_audited_provider(updated),
            )
            await audit_log.record(connection, tenant_id, event)
            return updated

    async def _check(self, connection: Connection, columns: Json) -> None:
        if all(one.attribute != TENANT for one in columns["transformations"]):
            raise invalid(
                "attribute_transformations",
                f"one has to make the attribute '{TENANT}', the id or name of the tenant that a "
                "token is for",
            )
        named = [name for name in columns["tenants"] if name != ANY_TENANT]
        existing = {row.name for row in await connection.execute(_SELECT_TENANTS, {"names": named})}
        for name in named:
            if name not in existing:
                raise invalid("tenants", f"there is no tenant '{shown(name)}'")

    async def _all(self, tenant_id: TenantId) -> Sequence[IdentityProvider]:
        async with self._owner(tenant_id) as connection:
            page = PageParams(PROVIDERS_MAX)
            return (await _PROVIDERS.page(connection, page, tenant=tenant_id)).rows

    async def _tenant_id(self, name: str) -> TenantId:
        check_name(name, param="tenant")
        with owned():
            return (await tenants.tenant_named(self._database, name)).id

    @asynccontextmanager
    async def _owner(self, tenant_id: TenantId = _NIL) -> AsyncIterator[Connection]:
        with owned():
            async with self._database.owner_transaction() as connection:
                if tenant_id == _NIL:
                    await check_owner(connection)
                yield connection

    @asynccontextmanager
    async def _changing(self, tenant_id: TenantId = _NIL) -> AsyncIterator[Connection]:
        # Changes of one tenant's trust, or the operators', run one after the other.
        try:
            async with self._owner(tenant_id) as connection:
                await take_turns(connection, tenant_id, TenantLock.ADMINISTRATION)
                yield connection
        except StoreConflict as conflict:
            if _UNIQUE not in str(conflict):
                raise
            raise InvalidRequest(
                "There is an issuer of this URL and audience already.",
                code="audience_taken",
                param="audience",
            ) from conflict
        self._forget()


async def _note(
    connection: Connection, author: Author, act: str, issuer: IdentityProvider, **details: Any
) -> None:
    target = ids.operator_issuer_id(issuer.id)
    event = author.event(f"{ISSUER_EVENT}.{act}", target, **details)
    await audit_log.record(connection, None, event)
