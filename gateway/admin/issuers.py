"""`/admin/v1/issuers`: issuers that operators trust, and those of tenants that they confirm."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.admin.federation import (
    PROVIDER_EVENT,
    PROVIDERS_MAX,
    ProviderRequest,
    provider_changes,
    told_of,
    unknown_provider,
)
from gateway.admin.operators import TENANT as TENANT_PATH
from gateway.admin.pages import whole_page
from gateway.admin.routes import AdminRoute
from gateway.admin.transactions import owned
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, StoreConflict, shown
from gateway.governance.audit import COMMAND_LINE
from gateway.protocol.admin_bodies import (
    NoBody,
    OperatorIssuerCreate,
    OperatorIssuerUpdate,
    deleted_body,
    operator_issuer_body,
    provider_body,
)
from gateway.protocol.request_errors import invalid
from gateway.services.access import check_name
from gateway.store import tenants
from gateway.store.admin import federation as providers
from gateway.store.admin import operator_issuers as rows
from gateway.store.admin.pages import PagePosition
from gateway.store.governance import audit_log
from gateway.store.schema import EVERYONE
from gateway.store.tools.quotas import Quota, take_turns
from gateway.tenancy import TenantId
from gateway.tenancy.federation import ANY_TENANT, TENANT, OperatorIssuer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gateway.admin.routes import AdminCall, Endpoint
    from gateway.governance.audit import Author
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import Tenant
    from gateway.tenancy.federation import IdentityProvider

EVENT: Final = "harmony.issuer"
_OPERATORS: Final = TenantId(EVERYONE)


class OperatorIssuers:
    """Issuers, for the owner of the tables alone: all methods raise `PermissionDenied` for others,
    and `ResourceNotFound` for an unknown issuer, tenant or provider.
    """

    def __init__(self, database: Database, forget: Callable[[], None]) -> None:
        """Call `forget` after a change: it makes this process look up tokens again."""
        self._database = database
        self._forget = forget

    async def list(self) -> list[OperatorIssuer]:
        async with self._owner() as connection:
            return await rows.all_issuers(connection)

    async def get(self, issuer_id: str) -> OperatorIssuer:
        async with self._owner() as connection:
            return await _require(connection, issuer_id)

    async def create(
        self, asked: OperatorIssuerCreate, author: Author = COMMAND_LINE
    ) -> OperatorIssuer:
        """Trust an issuer whose tokens name their tenant.

        Raises `InvalidRequest` if issuer and audience are trusted already, for unknown tenants, and
        if no claim is configured to name the tenant; `RateLimited` for too many.
        """
        provider = ProviderRequest.of(asked).provider(ids.new_uuid(), _OPERATORS)
        new = OperatorIssuer(
            replace(provider, terms=replace(provider.terms, bearer=True)),
            tuple(dict.fromkeys(asked.tenants)),
            asked.scopes_by_role() or {},
        )
        async with self._changing() as connection:
            await self._check(connection, new)
            if len(await rows.all_issuers(connection)) >= PROVIDERS_MAX:
                raise RateLimited(
                    f"There are {PROVIDERS_MAX} issuers, which is as many as may be. Delete "
                    "some that are not needed any more.",
                    code="too_many_identity_providers",
                )
            made = await rows.insert(connection, new)
            await _note(connection, author, "created", made, data=_audit_data(made))
            return made

    async def change(
        self, issuer_id: str, asked: OperatorIssuerUpdate, author: Author = COMMAND_LINE
    ) -> OperatorIssuer:
        # Fields that are left out stay. Raises as `create` does.
        async with self._changing() as connection:
            found = await _require(connection, issuer_id)
            changes = provider_changes(asked, found.provider)
            wanted = replace(found, provider=replace(found.provider, **changes))
            if asked.tenants is not None:
                wanted = replace(wanted, tenants=tuple(dict.fromkeys(asked.tenants)))
            if (roles := asked.scopes_by_role()) is not None:
                wanted = replace(wanted, roles=roles)
            await self._check(connection, wanted)
            changed = await rows.change(connection, wanted)
            if changed is None:
                raise unknown_issuer(issuer_id)
            await _note(
                connection, author, "updated", changed, changes_requested=_audit_data(changed)
            )
            return changed

    async def delete(self, issuer_id: str, author: Author = COMMAND_LINE) -> None:
        # Tokens of the issuer stop working.
        async with self._changing() as connection:
            found = await _require(connection, issuer_id)
            await rows.delete(connection, found.provider.id)
            await _note(connection, author, "deleted", found, name=found.provider.name)

    async def of_tenant(self, name: str) -> Sequence[IdentityProvider]:
        """Return the providers that a tenant trusts, the oldest first."""
        tenant = await self._tenant(name)
        async with self._owner() as connection:
            page = await providers.page(connection, tenant.id, PagePosition(PROVIDERS_MAX))
        return page.rows

    async def confirm(
        self, name: str, provider_id: str, author: Author = COMMAND_LINE, *, is_confirmed: bool
    ) -> IdentityProvider:
        """Let bearer tokens of a tenant's provider omit the tenant's name, or no longer.

        Raises `InvalidRequest` if another provider has bearer tokens of this issuer and audience,
        or if this provider has none.
        """
        tenant = await self._tenant(name)
        uuid = ids.parse_identity_provider_id(provider_id)
        try:
            async with self._changing(tenant.id) as connection:
                found = None if uuid is None else await providers.find(connection, tenant.id, uuid)
                if found is None:
                    raise unknown_provider(provider_id)
                if not found.terms.bearer:
                    raise InvalidRequest("Its tokens are for exchange alone, and name it always.")
                wanted = replace(found, confirmed=is_confirmed)
                changed = await providers.change(connection, wanted)
                assert changed is not None, "nobody deletes it meanwhile"
                event = author.event(
                    f"{PROVIDER_EVENT}.updated", provider_id, changes_requested=told_of(changed)
                )
                await audit_log.record(connection, tenant.id, event)
                return changed
        except StoreConflict as conflict:
            raise InvalidRequest(
                "Bearer tokens of this issuer for this audience need not name a tenant already, "
                "and are another one's. Withdraw that first.",
                code="audience_taken",
            ) from conflict

    async def _check(self, connection: Connection, issuer: OperatorIssuer) -> None:
        if all(one.attribute != TENANT for one in issuer.provider.transformations):
            raise invalid(
                "attribute_transformations",
                f"one has to make the attribute '{TENANT}', the id or name of the tenant that a "
                "token is for",
            )
        named = [name for name in issuer.tenants if name != ANY_TENANT]
        strange = await rows.unknown_tenants(connection, named)
        if strange:
            raise invalid("tenants", f"there is no tenant '{shown(strange[0])}'")

    async def _tenant(self, name: str) -> Tenant:
        check_name(name, param="tenant")
        with owned():
            found = await tenants.find_tenant(self._database, name)
        if found is None:
            raise ResourceNotFound(f"There is no tenant {name!r}.", param="tenant")
        return found

    @asynccontextmanager
    async def _owner(self) -> AsyncIterator[Connection]:
        with owned():
            async with self._database.owner_transaction() as connection:
                yield connection

    @asynccontextmanager
    async def _changing(self, tenant_id: TenantId = _OPERATORS) -> AsyncIterator[Connection]:
        # Changes of one tenant's trust, or the operators', run one after the other.
        try:
            async with self._owner() as connection:
                await take_turns(connection, tenant_id, Quota.ADMINISTRATION)
                yield connection
        except StoreConflict as conflict:
            if rows.UNIQUE not in str(conflict):
                raise
            raise InvalidRequest(
                "There is an issuer of this URL and audience already.",
                code="audience_taken",
                param="audience",
            ) from conflict
        self._forget()


def unknown_issuer(issuer_id: str) -> ResourceNotFound:
    """Return the same error for an issuer that is unknown or deleted."""
    return ResourceNotFound(
        f"There is no issuer '{shown(issuer_id)}'. GET /admin/v1/issuers lists them.",
        code="issuer_not_found",
        param="issuer_id",
    )


async def _require(connection: Connection, issuer_id: str) -> OperatorIssuer:
    uuid = ids.parse_operator_issuer_id(issuer_id)
    found = None if uuid is None else await rows.find(connection, uuid)
    if found is None:
        raise unknown_issuer(issuer_id)
    return found


async def _note(
    connection: Connection, author: Author, act: str, issuer: OperatorIssuer, **details: Any
) -> None:
    target = ids.operator_issuer_id(issuer.provider.id)
    await audit_log.record(connection, None, author.event(f"{EVENT}.{act}", target, **details))


def _audit_data(issuer: OperatorIssuer) -> dict[str, Any]:
    told = told_of(issuer.provider)
    told.pop("tenant_told_by")
    return told | {
        "tenants": list(issuer.tenants),
        "roles": {name: list(scopes) for name, scopes in issuer.roles.items()},
    }


ALL = "/issuers"
ONE = f"{ALL}/{{issuer_id}}"
OF_TENANT = f"{TENANT_PATH}/issuers"
OF_TENANT_ONE = f"{OF_TENANT}/{{workload_identity_provider_id}}"


def routes(issuers: OperatorIssuers) -> list[AdminRoute]:
    answers = IssuerEndpoints(issuers)
    confirm, withdraw = answers.confirm(is_confirmed=True), answers.confirm(is_confirmed=False)
    return [
        AdminRoute("GET", ALL, "issuers.read", answers.list, "operator"),
        AdminRoute(
            "POST", ALL, "issuers.write", answers.create, "operator", body=OperatorIssuerCreate
        ),
        AdminRoute("GET", ONE, "issuers.read", answers.get, "operator"),
        AdminRoute(
            "POST", ONE, "issuers.write", answers.update, "operator", body=OperatorIssuerUpdate
        ),
        AdminRoute("DELETE", ONE, "issuers.write", answers.delete, "operator"),
        AdminRoute("GET", OF_TENANT, "issuers.read", answers.of_tenant, "operator"),
        AdminRoute(
            "POST", f"{OF_TENANT_ONE}/confirm", "issuers.write", confirm, "operator", body=NoBody
        ),
        AdminRoute(
            "POST", f"{OF_TENANT_ONE}/withdraw", "issuers.write", withdraw, "operator", body=NoBody
        ),
    ]


class IssuerEndpoints:
    """Endpoints of issuers: see docs/authentication.md."""

    def __init__(self, issuers: OperatorIssuers) -> None:
        self._issuers = issuers

    async def list(self, _: AdminCall) -> dict[str, Any]:
        return whole_page(list(map(operator_issuer_body, await self._issuers.list())))

    async def create(self, call: AdminCall) -> dict[str, Any]:
        asked = await call.body(OperatorIssuerCreate)
        return operator_issuer_body(await self._issuers.create(asked, call.author))

    async def get(self, call: AdminCall) -> dict[str, Any]:
        return operator_issuer_body(await self._issuers.get(call.path["issuer_id"]))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """Change the fields in the body; omitted ones stay."""
        asked = await call.body(OperatorIssuerUpdate)
        issuer_id = call.path["issuer_id"]
        return operator_issuer_body(await self._issuers.change(issuer_id, asked, call.author))

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """Delete the issuer. Its tokens stop working, and tenants may trust it themselves."""
        await self._issuers.delete(call.path["issuer_id"], call.author)
        return deleted_body("issuer", call.path["issuer_id"])

    async def of_tenant(self, call: AdminCall) -> dict[str, Any]:
        # `harmony.tenant_told_by` is what assigns the tokens of a provider to the tenant.
        found = await self._issuers.of_tenant(call.path["name"])
        return whole_page(list(map(provider_body, found)))

    def confirm(self, *, is_confirmed: bool) -> Endpoint:
        """Return an endpoint that lets a provider's bearer tokens omit the tenant, or no longer."""

        async def endpoint(call: AdminCall) -> dict[str, Any]:
            await call.body(NoBody)
            changed = await self._issuers.confirm(
                call.path["name"],
                call.path["workload_identity_provider_id"],
                call.author,
                is_confirmed=is_confirmed,
            )
            return provider_body(changed)

        return endpoint
