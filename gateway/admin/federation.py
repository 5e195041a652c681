"""`/v1/organization/workload_identity_providers`: issuers of tokens, and rules of their tokens."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.admin.pages import ORDERED_PAGE, cursor_page, page_params
from gateway.admin.projects import required_project
from gateway.admin.routes import AdminRoute
from gateway.admin.service_accounts import required_account, unknown_account
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, StoreConflict, shown
from gateway.protocol.admin_bodies import (
    ProviderCreate,
    ProviderUpdate,
    RuleCreate,
    RuleUpdate,
    deleted_body,
    discovered,
    provider_body,
    rule_body,
)
from gateway.protocol.request_errors import invalid, unknown_place
from gateway.store.admin import federation as rows
from gateway.store.admin import operator_issuers as issuers
from gateway.store.admin.pages import PagePosition
from gateway.tenancy.federation import (
    OF_OPERATORS,
    FederationRule,
    IdentityProvider,
    TokenTerms,
    organizations_named,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from uuid import UUID

    from gateway.admin.routes import AdminCall
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.admin_bodies import OperatorIssuerCreate, OperatorIssuerUpdate
    from gateway.store.admin.pages import Page
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import TenantId
    from gateway.tenancy.federation import KeySource, Transformation, Value

PROVIDER_EVENT: Final = "workload_identity_provider"
RULE_EVENT: Final = "workload_identity_provider_mapping"
_BEARER_INDEX: Final = "uq_identity_providers_named"


NOT_STORED: Final = datetime.fromtimestamp(0, UTC)
"""In the place of times that are the database's."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """Request for an identity provider."""

    name: str
    issuer: str
    audience: str
    keys: KeySource
    terms: TokenTerms
    description: str | None = None
    transformations: tuple[Transformation, ...] = ()
    enabled: bool = True

    @classmethod
    def of(cls, body: ProviderCreate | OperatorIssuerCreate) -> ProviderRequest:
        return cls(
            name=body.name,
            issuer=body.issuer,
            audience=body.audience,
            keys=body.keys(body.issuer) or discovered(body.issuer),
            terms=body.harmony.terms(TokenTerms()),
            description=body.description,
            transformations=body.transformations or (),
            enabled=body.enabled is not False,
        )

    def provider(self, uuid: UUID, tenant_id: TenantId) -> IdentityProvider:
        return IdentityProvider(
            id=uuid,
            tenant_id=tenant_id,
            name=self.name,
            issuer=self.issuer,
            audience=self.audience,
            keys=self.keys,
            terms=self.terms,
            description=self.description,
            transformations=self.transformations,
            enabled=self.enabled,
            created_at=NOT_STORED,
            updated_at=NOT_STORED,
        )


def provider_changes(
    body: ProviderUpdate | OperatorIssuerUpdate, before: IdentityProvider
) -> dict[str, Any]:
    """Return the fields that a body changes; omitted ones stay. Raises `InvalidRequest`."""
    keys = body.keys(body.issuer or before.issuer)
    if keys is None and body.issuer and before.keys == discovered(before.issuer):
        # Where nobody said otherwise, it is the issuer that says where its keys are.
        keys = discovered(body.issuer)
    changes: dict[str, Any] = {
        "name": body.name,
        "issuer": body.issuer,
        "audience": body.audience,
        "description": body.description,
        "enabled": body.enabled,
        "transformations": body.transformations,
        "keys": keys,
        "terms": body.harmony.terms(before.terms),
    }
    return {name: value for name, value in changes.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """Request for a rule; `scopes` empty: all of the project."""

    project_id: str
    service_account_id: str
    matchers: dict[str, Value]
    scopes: frozenset[str] = frozenset()
    name: str | None = None
    description: str | None = None
    enabled: bool = True

    @classmethod
    def of(cls, body: RuleCreate) -> RuleRequest:
        return cls(
            project_id=body.project_id,
            service_account_id=body.service_account_id,
            matchers=dict(body.attribute_matchers),
            scopes=body.scopes() or frozenset(),
            name=body.name,
            description=body.description,
            enabled=body.enabled is not False,
        )


def unknown_provider(provider_id: str) -> ResourceNotFound:
    """Return the same error for a provider that is unknown, deleted, or another tenant's."""
    return ResourceNotFound(
        f"No workload identity provider with id '{shown(provider_id)}' was found.",
        code="workload_identity_provider_not_found",
        param="workload_identity_provider_id",
    )


def unknown_rule(rule_id: str) -> ResourceNotFound:
    """Return one error for a rule that is unknown, deleted, or another provider's or tenant's."""
    return ResourceNotFound(
        f"No federation rule with id '{shown(rule_id)}' was found at this identity provider.",
        code="federation_rule_not_found",
        param="workload_identity_federation_rule_id",
    )


PROVIDERS_MAX: Final = 50
"""Identity providers of one tenant."""
RULES_MAX: Final = 50
"""Federation rules of one identity provider."""


class IdentityProviders:
    """Identity providers of tenants, and their rules. All methods raise `ResourceNotFound` for an
    unknown provider, rule, project or account.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def create(self, caller: AdminCaller, asked: ProviderRequest) -> IdentityProvider:
        """Trust an issuer.

        Raises `RateLimited` for too many, and `InvalidRequest` if bearer tokens of this issuer and
        audience belong to another provider of the tenant or to the operator, or if the audience
        names another tenant.
        """
        tenant_id = caller.tenant_id
        async with self._changing(caller) as connection:
            if await rows.count(connection, tenant_id) >= PROVIDERS_MAX:
                raise _too_many(PROVIDERS_MAX, "workload identity providers")
            new = asked.provider(ids.new_uuid(), tenant_id)
            await _check(connection, new)
            made = await rows.insert(connection, new)
            target = ids.identity_provider_id(made.id)
            await caller.note(connection, f"{PROVIDER_EVENT}.created", target, data=told_of(made))
            return made

    async def get(self, tenant_id: TenantId, provider_id: str) -> IdentityProvider:
        async with self._transactions.reading(tenant_id) as connection:
            return await _require(connection, tenant_id, provider_id)

    async def list(
        self, tenant_id: TenantId, *, limit: int, after: str | None, descends: bool = False
    ) -> Page[IdentityProvider]:
        """Return one page of providers by age. Raises `InvalidRequest` for an unknown `after`."""
        place = None if after is None else ids.parse_identity_provider_id(after)
        if after is not None and place is None:
            raise unknown_place()
        async with self._transactions.reading(tenant_id) as connection:
            return await rows.page(connection, tenant_id, PagePosition(limit, place, descends))

    async def change(
        self, caller: AdminCaller, provider_id: str, asked: ProviderUpdate
    ) -> IdentityProvider:
        # Fields that are left out stay. Raises as `create` does.
        async with self._changing(caller) as connection:
            found = await _require(connection, caller.tenant_id, provider_id)
            wanted = replace(found, **provider_changes(asked, found))
            if (wanted.issuer, wanted.audience) != (found.issuer, found.audience):
                # It was those that the operator confirmed.
                wanted = replace(wanted, confirmed=False)
            await _check(connection, wanted)
            changed = await rows.change(connection, wanted)
            if changed is None:
                raise unknown_provider(provider_id)
            await caller.note(
                connection,
                f"{PROVIDER_EVENT}.updated",
                provider_id,
                changes_requested=told_of(changed),
            )
            return changed

    async def delete(self, caller: AdminCaller, provider_id: str) -> None:
        # Its rules go with it: its tokens and those they were exchanged for stop working.
        async with self._changing(caller) as connection:
            found = await _require(connection, caller.tenant_id, provider_id)
            await rows.delete(connection, caller.tenant_id, found.id)
            await caller.note(connection, f"{PROVIDER_EVENT}.deleted", provider_id, name=found.name)

    async def create_rule(
        self, caller: AdminCaller, provider_id: str, asked: RuleRequest
    ) -> FederationRule:
        """Add a rule to a provider.

        Raises `RateLimited` for too many, `InvalidRequest` for an archived project.
        """
        tenant_id = caller.tenant_id
        async with self._changing(caller) as connection:
            provider = await _require(connection, tenant_id, provider_id)
            if await rows.count_rules(connection, tenant_id, provider.id) >= RULES_MAX:
                raise _too_many(RULES_MAX, "federation rules of this identity provider")
            project = await required_project(
                connection, tenant_id, asked.project_id, is_active=True
            )
            account = await required_account(connection, project, asked.service_account_id)
            rule = FederationRule(
                id=ids.new_uuid(),
                tenant_id=tenant_id,
                provider_id=provider.id,
                project_id=project.id,
                service_account_id=account.id,
                matchers=asked.matchers,
                scopes=asked.scopes,
                name=asked.name,
                description=asked.description,
                enabled=asked.enabled,
                created_at=NOT_STORED,
                updated_at=NOT_STORED,
            )
            made = await rows.insert_rule(connection, rule)
            await caller.note(
                connection,
                f"{RULE_EVENT}.created",
                ids.federation_rule_id(made.id),
                project.id,
                identity_provider_id=provider_id,
                data=_audit_data(made),
            )
            return made

    async def rule(self, tenant_id: TenantId, provider_id: str, rule_id: str) -> FederationRule:
        async with self._transactions.reading(tenant_id) as connection:
            return await _require_rule(connection, tenant_id, provider_id, rule_id)

    async def rules(
        self,
        tenant_id: TenantId,
        provider_id: str,
        *,
        limit: int,
        after: str | None,
        account_id: str | None = None,
        descends: bool = False,
    ) -> Page[FederationRule]:
        """Return one page of a provider's rules by age, optionally those of one service account.

        Raises `InvalidRequest` for an unknown `after`.
        """
        place = None if after is None else ids.parse_federation_rule_id(after)
        if after is not None and place is None:
            raise unknown_place()
        account = None if account_id is None else ids.parse_service_account_id(account_id)
        if account_id is not None and account is None:
            raise unknown_account(account_id)
        async with self._transactions.reading(tenant_id) as connection:
            provider = await _require(connection, tenant_id, provider_id)
            asked = PagePosition(limit, place, descends)
            return await rows.page_of_rules(connection, provider, account, asked)

    async def change_rule(
        self, caller: AdminCaller, provider_id: str, rule_id: str, changes: Mapping[str, Any]
    ) -> FederationRule:
        async with self._changing(caller) as connection:
            found = await _require_rule(connection, caller.tenant_id, provider_id, rule_id)
            changed = await rows.change_rule(connection, replace(found, **changes))
            if changed is None:
                raise unknown_rule(rule_id)
            await caller.note(
                connection,
                f"{RULE_EVENT}.updated",
                rule_id,
                changed.project_id,
                identity_provider_id=provider_id,
                changes_requested=_audit_data(changed),
            )
            return changed

    async def delete_rule(self, caller: AdminCaller, provider_id: str, rule_id: str) -> None:
        # Tokens that were exchanged by the rule stop working.
        async with self._changing(caller) as connection:
            found = await _require_rule(connection, caller.tenant_id, provider_id, rule_id)
            await rows.delete_rule(connection, found)
            await caller.note(
                connection,
                f"{RULE_EVENT}.deleted",
                rule_id,
                found.project_id,
                identity_provider_id=provider_id,
                service_account_id=ids.service_account_id(found.service_account_id),
            )

    @asynccontextmanager
    async def _changing(self, caller: AdminCaller) -> AsyncIterator[Connection]:
        try:
            async with self._transactions.changing(caller.tenant_id) as connection:
                yield connection
        except StoreConflict as conflict:
            if _BEARER_INDEX not in str(conflict):
                raise
            raise _audience_taken("Another identity provider of yours accepts them.") from conflict


async def _check(connection: Connection, provider: IdentityProvider) -> None:
    if any(one.attribute in OF_OPERATORS for one in provider.transformations):
        raise invalid(
            "attribute_transformations",
            f"{', '.join(sorted(OF_OPERATORS))} are for issuers of the operator: tokens of yours "
            "are for your organization, and rules say what they may do",
        )
    if not provider.terms.bearer:
        return
    if organizations_named(provider.audience) - {ids.tenant_id(provider.tenant_id)}:
        raise invalid("audience", "it names another organization")
    if await issuers.find_for(connection, provider.issuer, [provider.audience]):
        raise _audience_taken("The operator of this server accepts them for all organizations.")


def _audience_taken(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Bearer tokens of this issuer for this audience are accepted already. {why} Have your "
        "issuer make tokens for another audience.",
        code="audience_taken",
        param="audience",
    )


async def _require(
    connection: Connection, tenant_id: TenantId, provider_id: str
) -> IdentityProvider:
    uuid = ids.parse_identity_provider_id(provider_id)
    found = None if uuid is None else await rows.find(connection, tenant_id, uuid)
    if found is None:
        raise unknown_provider(provider_id)
    return found


async def _require_rule(
    connection: Connection, tenant_id: TenantId, provider_id: str, rule_id: str
) -> FederationRule:
    provider = await _require(connection, tenant_id, provider_id)
    uuid = ids.parse_federation_rule_id(rule_id)
    found = None if uuid is None else await rows.find_rule(connection, provider, uuid)
    if found is None:
        raise unknown_rule(rule_id)
    return found


def _too_many(most: int, what: str) -> RateLimited:
    return RateLimited(
        f"There are {most} {what}, which is as many as may be. Delete some that are not needed any "
        "more.",
        code="too_many_identity_providers",
    )


def told_of(provider: IdentityProvider) -> dict[str, Any]:
    """Return the data of a provider for the audit log."""
    return {
        "issuer": provider.issuer,
        "audience": provider.audience,
        "enabled": provider.enabled,
        "bearer": provider.terms.bearer,
        "tenant_told_by": provider.tenant_told_by,
        "algorithms": list(provider.terms.algorithms),
    }


def _audit_data(rule: FederationRule) -> dict[str, Any]:
    return {
        "service_account_id": ids.service_account_id(rule.service_account_id),
        "attribute_matchers": dict(rule.matchers),
        "scopes": sorted(rule.scopes),
        "enabled": rule.enabled,
    }


ALL = "/organization/workload_identity_providers"
ONE = f"{ALL}/{{workload_identity_provider_id}}"
RULES = f"{ONE}/federation_rules"
RULE = f"{RULES}/{{workload_identity_federation_rule_id}}"
KIND = "organization.workload_identity_provider"
RULE_KIND = "organization.workload_identity_federation_rule"


def routes(providers: IdentityProviders) -> list[AdminRoute]:
    answers = FederationEndpoints(providers)
    return [
        AdminRoute("GET", ALL, "workload_identity.read", answers.list, query=ORDERED_PAGE),
        AdminRoute("POST", ALL, "workload_identity.write", answers.create, body=ProviderCreate),
        AdminRoute("GET", ONE, "workload_identity.read", answers.get),
        AdminRoute("POST", ONE, "workload_identity.write", answers.update, body=ProviderUpdate),
        AdminRoute("DELETE", ONE, "workload_identity.write", answers.delete),
        AdminRoute(
            "GET",
            RULES,
            "workload_identity.read",
            answers.rules,
            query=(*ORDERED_PAGE, "service_account_id"),
        ),
        AdminRoute("POST", RULES, "workload_identity.write", answers.create_rule, body=RuleCreate),
        AdminRoute("GET", RULE, "workload_identity.read", answers.rule),
        AdminRoute("POST", RULE, "workload_identity.write", answers.update_rule, body=RuleUpdate),
        AdminRoute("DELETE", RULE, "workload_identity.write", answers.delete_rule),
    ]


class FederationEndpoints:
    """Endpoints of identity providers and their rules."""

    def __init__(self, providers: IdentityProviders) -> None:
        self._providers = providers

    async def list(self, call: AdminCall) -> dict[str, Any]:
        asked = page_params(call.request.query_params)
        page = await self._providers.list(
            call.principal.tenant_id,
            limit=asked.limit,
            after=asked.after,
            descends=asked.order == "desc",
        )
        return cursor_page(list(map(provider_body, page.rows)), has_more=page.has_more)

    async def create(self, call: AdminCall) -> dict[str, Any]:
        asked = await call.body(ProviderCreate)
        made = await self._providers.create(call.caller, ProviderRequest.of(asked))
        return provider_body(made)

    async def get(self, call: AdminCall) -> dict[str, Any]:
        return provider_body(await self._providers.get(*_tenant_and_provider(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """Change the fields in the body; omitted ones stay."""
        asked = await call.body(ProviderUpdate)
        return provider_body(await self._providers.change(*_caller_and_provider(call), asked))

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """Delete the provider and its rules; its tokens stop working."""
        await self._providers.delete(*_caller_and_provider(call))
        return deleted_body(KIND, call.path["workload_identity_provider_id"])

    async def rules(self, call: AdminCall) -> dict[str, Any]:
        """List the rules of a provider, or with `service_account_id` those of one account."""
        query = call.request.query_params
        asked = page_params(query)
        page = await self._providers.rules(
            *_tenant_and_provider(call),
            limit=asked.limit,
            after=asked.after,
            account_id=query.get("service_account_id") or None,
            descends=asked.order == "desc",
        )
        return cursor_page(list(map(rule_body, page.rows)), has_more=page.has_more)

    async def create_rule(self, call: AdminCall) -> dict[str, Any]:
        """Add a rule about which tokens act for a service account."""
        asked = await call.body(RuleCreate)
        return rule_body(
            await self._providers.create_rule(*_caller_and_provider(call), RuleRequest.of(asked))
        )

    async def rule(self, call: AdminCall) -> dict[str, Any]:
        return rule_body(await self._providers.rule(*_tenant_and_provider(call), _rule_id(call)))

    async def update_rule(self, call: AdminCall) -> dict[str, Any]:
        """Change the fields in the body; omitted ones stay."""
        asked = await call.body(RuleUpdate)
        changes: dict[str, Any] = {
            "name": asked.name,
            "description": asked.description,
            "enabled": asked.enabled,
            "matchers": asked.attribute_matchers,
            "scopes": asked.scopes(),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        changed = await self._providers.change_rule(
            *_caller_and_provider(call), _rule_id(call), given
        )
        return rule_body(changed)

    async def delete_rule(self, call: AdminCall) -> dict[str, Any]:
        """Delete the rule; tokens that were exchanged by it stop working."""
        await self._providers.delete_rule(*_caller_and_provider(call), _rule_id(call))
        return deleted_body(RULE_KIND, _rule_id(call))


def _tenant_and_provider(call: AdminCall) -> tuple[TenantId, str]:
    return call.principal.tenant_id, call.path["workload_identity_provider_id"]


def _caller_and_provider(call: AdminCall) -> tuple[AdminCaller, str]:
    return call.caller, call.path["workload_identity_provider_id"]


def _rule_id(call: AdminCall) -> str:
    return call.path["workload_identity_federation_rule_id"]
