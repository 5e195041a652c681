"""`/admin/v1/issuers`: those that operators trust, and what they confirm of tenants' providers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field
from sqlalchemy import Text, any_, bindparam, select
from sqlalchemy.dialects.postgresql import ARRAY
from typing_extensions import override

from gateway import ids
from gateway.admin.identity_providers import (
    ATTRIBUTES_MAX,
    EVENT,
    PROVIDERS,
    PROVIDERS_MAX,
    PROVIDERS_OF_TENANTS,
    UNIQUE,
    AttributeName,
    Audience,
    ProviderFields,
    Url,
    audited,
    insert_provider,
    provider_body,
    too_many,
    update_provider,
)
from gateway.admin.routes import changed, deleted, read, whole_page
from gateway.admin.tenants import ONE as TENANT_PATH
from gateway.admin.tenants import check_name
from gateway.admin.transactions import CoreStatement, ResourceRows, mark_by_id, owning
from gateway.errors import InvalidRequest, ResourceNotFound, StoreConflict, shown
from gateway.protocol.admin_bodies import DisplayName, Json, NoBody, ShortText, scopes_of
from gateway.protocol.base import Many
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import invalid
from gateway.store import audit_log, tenants
from gateway.store.callers import provider_of_row
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.database import check_owner
from gateway.store.schema import EVERYONE
from gateway.store.tables import TABLES
from gateway.tenancy import TenantId
from gateway.tenancy.issuers import ANY_TENANT, TENANT, IdentityProvider, organizations_named
from gateway.tenancy.permissions import SCOPES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gateway.admin.routes import AdminRoute
    from gateway.audit import Author
    from gateway.store.postgres.database import Connection, Database

TENANTS: Final = TABLES["tenants"]

ALL = "/issuers"
ONE = f"{ALL}/{{issuer_id}}"
OF_TENANT = f"{TENANT_PATH}/issuers"
OF_TENANT_ONE = f"{OF_TENANT}/{{workload_identity_provider_id}}"
ISSUER_EVENT: Final = "harmony.issuer"

TenantNames = Annotated[Many[ShortText], Field(min_length=1, max_length=1000)]
Roles = Annotated[
    dict[AttributeName, Annotated[Many[str], Field(min_length=1, max_length=len(SCOPES))]],
    Field(max_length=ATTRIBUTES_MAX),
]


class _OperatorIssuerFields(ProviderFields):
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


def routes(issuers: OperatorIssuers) -> list[AdminRoute]:
    def shown_all(providers: Sequence[IdentityProvider]) -> Json:
        return whole_page(list(map(provider_body, providers)))

    may_read: Final = "issuers.read"
    may_write: Final = "issuers.write"
    confirm, withdraw = f"{OF_TENANT_ONE}/confirm", f"{OF_TENANT_ONE}/withdraw"
    return [
        read(ALL, may_read, issuers.list, shown_all),
        changed(ALL, may_write, issuers.create, provider_body, OperatorIssuerCreate),
        read(ONE, may_read, issuers.get, provider_body),
        changed(ONE, may_write, issuers.change, provider_body, OperatorIssuerUpdate),
        deleted(ONE, may_write, issuers.delete, "issuer"),
        read(OF_TENANT, may_read, issuers.of_tenant, shown_all),
        changed(confirm, may_write, issuers.confirm, provider_body, NoBody),
        changed(withdraw, may_write, issuers.withdraw, provider_body, NoBody),
    ]


_SELECT_TENANTS: Final = CoreStatement(
    select(TENANTS.c.name).where(TENANTS.c.name == any_(bindparam("names", type_=ARRAY(Text))))
)


def _unknown_issuer(issuer_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"There is no issuer '{shown(issuer_id)}'. GET /admin/v1/issuers lists them.",
        code="issuer_not_found",
        param="issuer_id",
    )


_ISSUERS: Final = ResourceRows(
    PROVIDERS,
    provider_of_row,
    ids.parse_operator_issuer_id,
    _unknown_issuer,
    PROVIDERS.c.deleted_at.is_(None),
)
_NIL: Final = TenantId(EVERYONE)


class OperatorIssuers:
    def __init__(self, database: Database, forget: Callable[[], None]) -> None:
        # `forget` makes this process look up tokens again.
        self._database = database
        self._forget = forget

    async def list(self) -> Sequence[IdentityProvider]:
        return await self._all(_NIL)

    async def get(self, issuer_id: str) -> IdentityProvider:
        async with self._owner() as connection:
            return await _ISSUERS.get(connection, issuer_id, tenant=_NIL)

    async def create(self, author: Author, body: OperatorIssuerCreate) -> IdentityProvider:
        columns = body.columns()
        async with self._changing() as connection:
            await self._check(connection, columns)
            if await _ISSUERS.count(connection, tenant=_NIL) >= PROVIDERS_MAX:
                raise too_many(PROVIDERS_MAX, "issuers")
            made = await insert_provider(connection, _NIL, columns)
            await _note(connection, author, "created", made, data=audited(made))
            return made

    async def change(
        self, author: Author, issuer_id: str, body: OperatorIssuerUpdate
    ) -> IdentityProvider:
        async with self._changing() as connection:
            provider = await _ISSUERS.get(connection, issuer_id, tenant=_NIL)
            columns = body.columns(provider)
            await self._check(connection, columns)
            updated = await update_provider(connection, provider, columns)
            data = audited(updated)
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
        return await self._all(await self._tenant_id(name))

    async def confirm(self, author: Author, name: str, provider_id: str) -> IdentityProvider:
        """Let bearer tokens of a tenant's provider omit the tenant's name."""
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
        return await self._set_unnamed(author, name, provider_id, is_confirmed=False)

    async def _set_unnamed(
        self, author: Author, name: str, provider_id: str, *, is_confirmed: bool
    ) -> IdentityProvider:
        tenant_id = await self._tenant_id(name)
        async with self._changing(tenant_id) as connection:
            provider = await PROVIDERS_OF_TENANTS.get(connection, provider_id, tenant=tenant_id)
            if not provider.bearer:
                raise InvalidRequest(
                    "Tokens of this provider are for exchange alone, which names it always. Let "
                    "its tenant set 'harmony.bearer' first.",
                    code="no_bearer_tokens",
                    param="workload_identity_provider_id",
                )
            is_unnamed = is_confirmed or bool(organizations_named(provider.audience))
            updated = await update_provider(connection, provider, {"unnamed_bearer": is_unnamed})
            event = author.event(
                f"{EVENT}.updated", provider_id, changes_requested=audited(updated)
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
            return (await PROVIDERS_OF_TENANTS.page(connection, page, tenant=tenant_id)).rows

    async def _tenant_id(self, name: str) -> TenantId:
        check_name(name, param="tenant")
        return (await tenants.tenant_named(self._database, name)).id

    @asynccontextmanager
    async def _owner(self, tenant_id: TenantId = _NIL) -> AsyncIterator[Connection]:
        async with owning(self._database) as connection:
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
            if UNIQUE not in str(conflict):
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
