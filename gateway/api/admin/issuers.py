"""`/admin/v1/issuers`: issuers that operators trust, and those of tenants that they confirm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.api.admin.operators import TENANT
from gateway.api.admin.pages import whole_page
from gateway.api.admin.routes import AdminRoute
from gateway.protocol.admin.federation import (
    OperatorIssuerCreate,
    OperatorIssuerUpdate,
    operator_issuer_body,
    provider_body,
)
from gateway.protocol.admin.objects import deleted_body
from gateway.protocol.admin.requests import NoBody

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall, Endpoint
    from gateway.services.admin.operator_issuers import OperatorIssuers

ALL = "/issuers"
ONE = f"{ALL}/{{issuer_id}}"
OF_TENANT = f"{TENANT}/issuers"
OF_TENANT_ONE = f"{OF_TENANT}/{{workload_identity_provider_id}}"


def routes(issuers: OperatorIssuers) -> list[AdminRoute]:
    """Those of issuers, on the plane of operators."""
    answers = IssuerEndpoints(issuers)
    confirm, withdraw = answers.confirm(is_confirmed=True), answers.confirm(is_confirmed=False)
    return [
        AdminRoute("GET", ALL, "issuers.read", answers.list, "operator"),
        AdminRoute("POST", ALL, "issuers.write", answers.create, "operator"),
        AdminRoute("GET", ONE, "issuers.read", answers.get, "operator"),
        AdminRoute("POST", ONE, "issuers.write", answers.update, "operator"),
        AdminRoute("DELETE", ONE, "issuers.write", answers.delete, "operator"),
        AdminRoute("GET", OF_TENANT, "issuers.read", answers.of_tenant, "operator"),
        AdminRoute("POST", f"{OF_TENANT_ONE}/confirm", "issuers.write", confirm, "operator"),
        AdminRoute("POST", f"{OF_TENANT_ONE}/withdraw", "issuers.write", withdraw, "operator"),
    ]


class IssuerEndpoints:
    """Endpoints of issuers: see docs/authentication.md."""

    def __init__(self, issuers: OperatorIssuers) -> None:
        self._issuers = issuers

    async def list(self, _: AdminCall) -> dict[str, Any]:
        """All that operators trust, the oldest first."""
        return whole_page(list(map(operator_issuer_body, await self._issuers.list())))

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """An issuer whose tokens name their tenant, from now on."""
        asked = await call.body(OperatorIssuerCreate)
        return operator_issuer_body(await self._issuers.create(asked, call.author))

    async def get(self, call: AdminCall) -> dict[str, Any]:
        """One of them, with the tenants that it may speak for."""
        return operator_issuer_body(await self._issuers.get(call.path["issuer_id"]))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """POST of `/issuers/{issuer_id}`: what is left out stays."""
        asked = await call.body(OperatorIssuerUpdate)
        issuer_id = call.path["issuer_id"]
        return operator_issuer_body(await self._issuers.change(issuer_id, asked, call.author))

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """Its tokens work no more, and tenants may trust it themselves."""
        await self._issuers.delete(call.path["issuer_id"], call.author)
        return deleted_body("issuer", call.path["issuer_id"])

    async def of_tenant(self, call: AdminCall) -> dict[str, Any]:
        """Those that a tenant trusts; `harmony.tenant_told_by` says what makes a token its own."""
        found = await self._issuers.of_tenant(call.path["name"])
        return whole_page(list(map(provider_body, found)))

    def confirm(self, *, is_confirmed: bool) -> Endpoint:
        """Whether bearer tokens of a tenant's issuer are its own where they name no tenant."""

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
