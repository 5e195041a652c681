"""`/admin/v1`: what operators see and decide. Content is not among it.

Tenants are known here by their names, as on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.admin.keys import ShownKey, admin_key_body
from gateway.admin.pages import PAGE, conversation_page, cut, page_params, whole_page
from gateway.admin.routes import AdminRoute
from gateway.protocol.admin.requests import NoBody, TenantCreate, TenantKeyCreate, TenantUpdate

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.admin.operations import Operations
    from gateway.admin.routes import AdminCall
    from gateway.services.access import TenantDetail
    from gateway.tenancy import Tenant

TENANT = "/tenants/{name}"
BACKEND = "/backends/{name}"


def routes(operations: Operations) -> list[AdminRoute]:
    answers = OperatorEndpoints(operations)
    return [
        AdminRoute("GET", "/tenants", "tenants.read", answers.tenants, "operator", query=PAGE),
        AdminRoute(
            "POST",
            "/tenants",
            "tenants.write",
            answers.create_tenant,
            "operator",
            body=TenantCreate,
        ),
        AdminRoute("GET", TENANT, "tenants.read", answers.tenant, "operator"),
        AdminRoute(
            "POST", TENANT, "tenants.write", answers.update_tenant, "operator", body=TenantUpdate
        ),
        AdminRoute(
            "POST",
            f"{TENANT}/disable",
            "tenants.write",
            answers.disable_tenant,
            "operator",
            body=NoBody,
        ),
        AdminRoute(
            "POST",
            f"{TENANT}/admin_api_keys",
            "tenants.write",
            answers.create_key,
            "operator",
            body=TenantKeyCreate,
        ),
        AdminRoute("GET", "/backends", "backends.read", answers.backends, "operator"),
        AdminRoute(
            "POST", f"{BACKEND}/drain", "backends.write", answers.drain, "operator", body=NoBody
        ),
        AdminRoute(
            "POST", f"{BACKEND}/undrain", "backends.write", answers.undrain, "operator", body=NoBody
        ),
        AdminRoute("GET", "/replicas", "replicas.read", answers.replicas, "operator"),
        AdminRoute("GET", "/settings", "settings.read", answers.settings, "operator"),
    ]


class OperatorEndpoints:
    """Endpoints of the plane of operators."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def tenants(self, call: AdminCall) -> dict[str, Any]:
        """List tenants by name; `after` is the id of a tenant."""
        asked = page_params(call.request.query_params)
        shown = [_tenant(one) for one in await self._operations.tenants()]
        page, has_more = cut(shown, asked)
        return conversation_page(page, has_more=has_more)

    async def create_tenant(self, call: AdminCall) -> dict[str, Any]:
        """Create a tenant with the policy of the settings."""
        asked = await call.body(TenantCreate)
        return _tenant(await self._operations.create_tenant(asked.name, call.author))

    async def tenant(self, call: AdminCall) -> dict[str, Any]:
        return _detail(await self._operations.tenant(call.path["name"]))

    async def update_tenant(self, call: AdminCall) -> dict[str, Any]:
        """Change values of a tenant's policy; null resets one to the settings'."""
        asked = await call.body(TenantUpdate)
        name = call.path["name"]
        return _detail(await self._operations.set_policy(name, asked.policy, call.author))

    async def disable_tenant(self, call: AdminCall) -> dict[str, Any]:
        """Disable a tenant's keys: at once here, soon at other replicas."""
        await call.body(NoBody)
        return _tenant(await self._operations.disable_tenant(call.path["name"], call.author))

    async def create_key(self, call: AdminCall) -> dict[str, Any]:
        """Create an admin key of a tenant; its value is shown only once."""
        asked = await call.body(TenantKeyCreate)
        made = await self._operations.create_admin_key(call.path["name"], asked.name, call.author)
        return admin_key_body(ShownKey(made[0], secret=made[1]))

    async def backends(self, call: AdminCall) -> dict[str, Any]:  # noqa: ARG002 - like the others
        return whole_page(await self._operations.backends())

    async def drain(self, call: AdminCall) -> dict[str, Any]:
        """Send a backend no new requests; running ones continue."""
        await call.body(NoBody)
        await self._operations.drain(call.path["name"], call.author)
        return {"object": "backend.drained", "name": call.path["name"]}

    async def undrain(self, call: AdminCall) -> dict[str, Any]:
        """Use a backend again, at all replicas within `membership.drain_poll_s`."""
        await call.body(NoBody)
        await self._operations.undrain(call.path["name"], call.author)
        return {"object": "backend.undrained", "name": call.path["name"]}

    async def replicas(self, call: AdminCall) -> dict[str, Any]:  # noqa: ARG002 - like the others
        """List this replica and those that reported lately."""
        found = await self._operations.replicas()
        return whole_page([{"object": "replica", "id": name} for name in found])

    async def settings(self, call: AdminCall) -> dict[str, Any]:  # noqa: ARG002 - like the others
        return {"object": "settings", "settings": self._operations.settings()}


def _tenant(tenant: Tenant) -> dict[str, Any]:
    times = ("created_at", "disabled_at", "deleted_at", "held_at", "purged_at")
    return {
        "id": ids.tenant_id(tenant.id),
        "object": "tenant",
        "name": tenant.name,
        **{name: _seconds(getattr(tenant, name)) for name in times},
    }


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _detail(detail: TenantDetail) -> dict[str, Any]:
    own = dict(detail.own)
    return {**_tenant(detail.tenant), "policy": detail.policy.shown(), "own": own}
