"""`/v1/organization/workload_identity_providers`: issuers of tokens, and rules of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.api.admin.pages import ORDERED_PAGE, cursor_page, page_params
from gateway.api.admin.routes import AdminRoute
from gateway.protocol.admin.federation import (
    ProviderCreate,
    ProviderUpdate,
    RuleCreate,
    RuleUpdate,
    provider_body,
    rule_body,
)
from gateway.protocol.admin.objects import deleted_body
from gateway.services.admin.federation import ProviderRequest, RuleRequest

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.federation import IdentityProviders
    from gateway.services.admin.transactions import AdminCaller
    from gateway.tenancy import TenantId

ALL = "/organization/workload_identity_providers"
ONE = f"{ALL}/{{workload_identity_provider_id}}"
RULES = f"{ONE}/federation_rules"
RULE = f"{RULES}/{{workload_identity_federation_rule_id}}"
KIND = "organization.workload_identity_provider"
RULE_KIND = "organization.workload_identity_federation_rule"


def routes(providers: IdentityProviders) -> list[AdminRoute]:
    """Those of identity providers and their rules."""
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
        """List the identity providers of the tenant."""
        asked = page_params(call.request.query_params)
        page = await self._providers.list(
            call.principal.tenant_id,
            limit=asked.limit,
            after=asked.after,
            descends=asked.order == "desc",
        )
        return cursor_page(list(map(provider_body, page.rows)), has_more=page.has_more)

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """An issuer that is trusted from now on."""
        asked = await call.body(ProviderCreate)
        made = await self._providers.create(call.caller, ProviderRequest.of(asked))
        return provider_body(made)

    async def get(self, call: AdminCall) -> dict[str, Any]:
        """A provider by its id, with whence its keys come."""
        return provider_body(await self._providers.get(*_tenant_and_provider(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """What is left out stays."""
        asked = await call.body(ProviderUpdate)
        return provider_body(await self._providers.change(*_caller_and_provider(call), asked))

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """With its rules; its tokens work no more."""
        await self._providers.delete(*_caller_and_provider(call))
        return deleted_body(KIND, call.path["workload_identity_provider_id"])

    async def rules(self, call: AdminCall) -> dict[str, Any]:
        """Those of one provider, or with `service_account_id` of one account."""
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
        """Which tokens act for a service account."""
        asked = await call.body(RuleCreate)
        return rule_body(
            await self._providers.create_rule(*_caller_and_provider(call), RuleRequest.of(asked))
        )

    async def rule(self, call: AdminCall) -> dict[str, Any]:
        """A rule of a provider, with what it matches and for whom it acts."""
        return rule_body(await self._providers.rule(*_tenant_and_provider(call), _rule_id(call)))

    async def update_rule(self, call: AdminCall) -> dict[str, Any]:
        """What is left out stays."""
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
        """What was exchanged by it works no more."""
        await self._providers.delete_rule(*_caller_and_provider(call), _rule_id(call))
        return deleted_body(RULE_KIND, _rule_id(call))


def _tenant_and_provider(call: AdminCall) -> tuple[TenantId, str]:
    return call.principal.tenant_id, call.path["workload_identity_provider_id"]


def _caller_and_provider(call: AdminCall) -> tuple[AdminCaller, str]:
    return call.caller, call.path["workload_identity_provider_id"]


def _rule_id(call: AdminCall) -> str:
    return call.path["workload_identity_federation_rule_id"]
