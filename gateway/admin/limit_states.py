"""`/admin/v1/tenants/{name}/limits`: what is used of limits and budgets now, over all replicas."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway.admin.limits import LimitOwner
from gateway.admin.routes import AdminRoute
from gateway.admin.tenants import ONE
from gateway.api.access.own_key import budget_body, limit_body
from gateway.limits.rules import Terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.admin.limits import Limits
    from gateway.admin.routes import AdminCall
    from gateway.admin.spend_limits import SpendLimits
    from gateway.limits.accounting import Figures
    from gateway.protocol.admin_bodies import Json
    from gateway.tenancy import TenantId


def routes(states: LimitStates) -> list[AdminRoute]:
    async def read(call: AdminCall) -> Json:
        project_id = call.request.query_params.get("project_id")
        return _body(await states.named(call.path["name"], project_id))

    return [AdminRoute("GET", f"{ONE}/limits", "tenants.read", read, query=("project_id",))]


class LimitStates:
    def __init__(
        self,
        limits: Limits,
        spend_limits: SpendLimits,
        figures: Callable[[TenantId, Terms], Awaitable[Figures]],
    ) -> None:
        self._limits = limits
        self._spend_limits = spend_limits
        self._figures = figures

    async def named(self, tenant: str, project_id: str | None) -> Figures:
        tenant_id = await self._limits.tenant(tenant)
        if project_id is None:
            return await self.of(LimitOwner.of_tenant(tenant_id))
        return await self.of(await self._limits.of_project(tenant_id, project_id))

    async def of(self, owner: LimitOwner) -> Figures:
        # Of those that are its own, not of the ones around it.
        limits = filter(owner.has, await self._limits.limits(owner.tenant_id))
        budgets = await self._spend_limits.of(owner)
        return await self._figures(owner.tenant_id, Terms(tuple(limits), tuple(budgets)))


def _body(figures: Figures) -> Json:
    now = datetime.now(UTC)
    budgets = []
    for one in figures.budgets:
        at = one.runs_out_at(now)
        budgets.append({**budget_body(one), "runs_out_at": at and int(at.timestamp())})
    return {
        "object": "limits",
        "limits": list(map(limit_body, figures.limits)),
        "budgets": budgets,
    }
