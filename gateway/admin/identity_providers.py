"""Identity providers of tenants: issuers of tokens that a tenant trusts.

Bodies and objects are those of openai-python 3.52. Issuers that operators trust are rows of the
same table.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, Discriminator, Field, StringConstraints, model_validator
from sqlalchemy import bindparam, func, update
from typing_extensions import override

from gateway import ids
from gateway.admin.routes import changed, deleted, listed, read
from gateway.admin.transactions import (
    CoreStatement,
    ResourceRows,
    insert_row,
    mark_by_id,
    of_tenant,
    update_by_id,
)
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, StoreConflict, shown
from gateway.protocol.admin_bodies import DisplayName, Json, ShortText, seconds_of
from gateway.protocol.base import AS_INTEGER, Many, NullableModel, WireModel, without_nulls
from gateway.protocol.request_errors import invalid
from gateway.store.callers import FIND_OF_OPERATORS, provider_of_row
from gateway.store.tables import TABLES
from gateway.tenancy.issuers import (
    ALGORITHMS,
    EXPRESSION_CHARS_MAX,
    OF_OPERATORS,
    TOKEN_LIFETIME_MAX_S,
    Algorithm,
    IdentityProvider,
    KeySource,
    Transformation,
    discovered,
    organizations_named,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Row
    from gateway.tenancy import TenantId

PROVIDERS: Final = TABLES["identity_providers"]
RULES: Final = TABLES["federation_rules"]

ALL = "/organization/workload_identity_providers"
ONE = f"{ALL}/{{workload_identity_provider_id}}"
KIND = "organization.workload_identity_provider"

EVENT: Final = "workload_identity_provider"

PROVIDERS_MAX: Final = 50
"""Providers per tenant, and issuers of operators."""
URL_CHARS_MAX: Final = 512
"""Issuer and audience share one index entry."""
ATTRIBUTES_MAX: Final = 32
JWKS_BYTES_MAX: Final = 64 * 1024
CLOCK_SKEW_MAX_S: Final = 300


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
    lifetime_max_seconds: (
        Annotated[int, Field(ge=1, le=TOKEN_LIFETIME_MAX_S), AS_INTEGER] | None
    ) = None

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


class ErasableModel(NullableModel):
    """Model in which a null erases the fields `_erasable`, and counts as missing elsewhere."""

    _erasable: ClassVar[tuple[str, ...]] = ("description",)

    @model_validator(mode="before")
    @classmethod
    @override
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        erased = {name: None for name in cls._erasable if name in value and value[name] is None}
        return without_nulls(value) | erased


class ProviderFields(ErasableModel):
    attribute_transformations: (
        Annotated[Many[AttributeTransformation], Field(max_length=ATTRIBUTES_MAX)] | None
    ) = None
    description: ShortText | None = None
    enabled: bool | None = None
    verification: Verification | None = None
    harmony: TokenExtras = TokenExtras()

    def columns(self, before: IdentityProvider | None = None) -> Json:
        """Return all values; omitted ones are `before`'s."""
        columns = dict(_DEFAULTS)
        if before is not None:
            columns = {name: getattr(before, name) for name in (*_NAMED, *_DEFAULTS)}
        columns |= self.model_dump(include={*_NAMED, *_DEFAULTS}, exclude_unset=True)
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
        verification = self.verification
        if self.harmony.jwks_url is not None:
            if verification is not None:
                raise invalid(
                    "harmony.jwks_url", "'verification' names the source of the keys already"
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


class ProviderCreate(ProviderFields):
    """`POST /organization/workload_identity_providers`: an issuer whose tokens are to be taken."""

    name: DisplayName
    type: Literal["oidc"]
    issuer: Url
    audience: Audience


class ProviderUpdate(ProviderFields):
    """`POST …/{id}`: omitted fields stay, null erases the description."""

    name: DisplayName | None = None
    issuer: Url | None = None
    audience: Audience | None = None


def routes(providers: IdentityProviders) -> list[AdminRoute]:
    may_read: Final = "workload_identity.read"
    may_write: Final = "workload_identity.write"
    return [
        listed(ALL, may_read, providers.list, provider_body, is_ordered=True),
        changed(ALL, may_write, providers.create, provider_body, ProviderCreate),
        read(ONE, may_read, providers.get, provider_body),
        changed(ONE, may_write, providers.change, provider_body, ProviderUpdate),
        deleted(ONE, may_write, providers.delete, KIND),
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


def audited(provider: IdentityProvider) -> Json:
    body = provider_body(provider)
    fields = ("issuer", "audience", "enabled", "tenants", "roles")
    extras = ("bearer", "tenant_told_by", "algorithms")
    return {name: body[name] for name in fields if name in body} | {
        name: body["harmony"][name] for name in extras if name in body["harmony"]
    }


_PROVIDER_IS_THERE: Final = PROVIDERS.c.deleted_at.is_(None)
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
    update(RULES)
    .where(
        *of_tenant(RULES),
        RULES.c.provider_id == bindparam("provider"),
        RULES.c.deleted_at.is_(None),
    )
    .values(deleted_at=func.now())
)


def _unknown(provider_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"No workload identity provider with id '{shown(provider_id)}' was found.",
        code="workload_identity_provider_not_found",
        param="workload_identity_provider_id",
    )


PROVIDERS_OF_TENANTS: Final = ResourceRows(
    PROVIDERS, provider_of_row, ids.parse_identity_provider_id, _unknown, _PROVIDER_IS_THERE
)


async def insert_provider(
    connection: Connection, tenant_id: TenantId, columns: Json
) -> IdentityProvider:
    """Insert a provider.

    Raises `StoreConflict` if another one that takes bearer tokens has its issuer and audience: one
    of this tenant (uq_identity_providers_bearer), or of any if tokens need not name their tenant
    (uq_identity_providers_unnamed).
    """
    if columns["unnamed_bearer"]:
        await _give_way(connection, columns["issuer"], columns["audience"])
    new = {"tenant_id": tenant_id, "id": ids.new_uuid(), **columns}
    return provider_of_row(await written(connection, insert_row(PROVIDERS, *new), new))


async def update_provider(
    connection: Connection, provider: IdentityProvider, columns: Json
) -> IdentityProvider:
    if columns.get("unnamed_bearer"):
        wanted = (columns.get(name, getattr(provider, name)) for name in ("issuer", "audience"))
        await _give_way(connection, *wanted)
    parameters = {"tenant": provider.tenant_id, "id": provider.id, **columns}
    statement = update_by_id(PROVIDERS, *columns)
    return provider_of_row(await written(connection, statement, parameters))


async def written(connection: Connection, statement: CoreStatement, values: Json) -> Row:
    encoded = {
        name: orjson.dumps(values[name], default=tuple)
        for name in ("transformations", "roles", "matchers")
        if values.get(name) is not None
    }
    return (await connection.execute(statement, {**values, **encoded})).one()


async def _give_way(connection: Connection, issuer: str, audience: str) -> None:
    await connection.execute(_GIVE_WAY, {"its_issuer": issuer, "its_audience": audience})


def too_many(most: int, what: str) -> RateLimited:
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
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def create(self, caller: AdminCaller, body: ProviderCreate) -> IdentityProvider:
        tenant_id = caller.tenant_id
        columns = body.columns()
        async with self._changing(caller) as connection:
            if await PROVIDERS_OF_TENANTS.count(connection, tenant=tenant_id) >= PROVIDERS_MAX:
                raise too_many(PROVIDERS_MAX, "workload identity providers")
            await _check(connection, tenant_id, columns)
            made = await insert_provider(connection, tenant_id, columns)
            target = ids.identity_provider_id(made.id)
            await caller.note(connection, f"{EVENT}.created", target, data=audited(made))
            return made

    async def get(self, tenant_id: TenantId, provider_id: str) -> IdentityProvider:
        async with self._transactions.reading(tenant_id) as connection:
            return await PROVIDERS_OF_TENANTS.get(connection, provider_id, tenant=tenant_id)

    async def list(self, tenant_id: TenantId, page: PageParams) -> Page[IdentityProvider]:
        async with self._transactions.reading(tenant_id) as connection:
            return await PROVIDERS_OF_TENANTS.page(connection, page, tenant=tenant_id)

    async def change(
        self, caller: AdminCaller, provider_id: str, body: ProviderUpdate
    ) -> IdentityProvider:
        async with self._changing(caller) as connection:
            provider = await PROVIDERS_OF_TENANTS.get(
                connection, provider_id, tenant=caller.tenant_id
            )
            columns = body.columns(provider)
            await _check(connection, caller.tenant_id, columns)
            updated = await update_provider(connection, provider, columns)
            await caller.note(
                connection, f"{EVENT}.updated", provider_id, changes_requested=audited(updated)
            )
            return updated

    async def delete(self, caller: AdminCaller, provider_id: str) -> None:
        # Its rules go with it: its tokens and those they were exchanged for stop working.
        async with self._changing(caller) as connection:
            provider = await PROVIDERS_OF_TENANTS.get(
                connection, provider_id, tenant=caller.tenant_id
            )
            row = {"tenant": caller.tenant_id, "id": provider.id, "provider": provider.id}
            await connection.execute(_DELETE_RULES, row)
            await connection.execute(mark_by_id(PROVIDERS, "deleted_at"), row)
            await caller.note(connection, f"{EVENT}.deleted", provider_id, name=provider.name)

    @asynccontextmanager
    async def _changing(self, caller: AdminCaller) -> AsyncIterator[Connection]:
        try:
            async with self._transactions.changing(caller.tenant_id) as connection:
                yield connection
        except StoreConflict as conflict:
            if UNIQUE not in str(conflict):
                raise
            raise _audience_taken("Another identity provider of yours accepts them.") from conflict


UNIQUE: Final = "uq_identity_providers_bearer"


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
