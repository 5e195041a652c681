"""Rate limits of projects; spend limits and spend alerts of an organization and its projects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.api.admin.pages import ORDERED_PAGE, PAGE, conversation_page, cut, page_params
from gateway.api.admin.routes import AdminRoute
from gateway.errors import ResourceNotFound, shown
from gateway.limits.money import CENT
from gateway.limits.terms import ALL_MODELS
from gateway.protocol.admin.limits import (
    RATE_LIMIT_PREFIX,
    RateLimitUpdate,
    SpendAlertUpdate,
    SpendLimitUpdate,
    rate_limit_body,
    spend_alert_body,
    spend_limit_body,
)
from gateway.protocol.admin.objects import deleted_body

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.limits import ProjectLimits
    from gateway.services.limits import LimitOwner

    Json = dict[str, Any]

ORGANIZATION = "/organization"
PROJECT = "/organization/projects/{project_id}"


def routes(limits: ProjectLimits) -> list[AdminRoute]:
    """Those of limits, budgets and alerts."""
    rates = RateLimitEndpoints(limits)
    found = [
        AdminRoute(
            "GET",
            f"{PROJECT}/rate_limits",
            "rate_limits.read",
            rates.list,
            query=(*PAGE, "before"),
        ),
        AdminRoute(
            "POST",
            f"{PROJECT}/rate_limits/{{id}}",
            "rate_limits.write",
            rates.update,
            body=RateLimitUpdate,
            spans_slashes=True,
        ),
    ]
    for base, kind in ((ORGANIZATION, "organization"), (PROJECT, "project")):
        spending = SpendEndpoints(limits, kind)
        limit, alerts = f"{base}/spend_limit", f"{base}/spend_alerts"
        one = f"{alerts}/{{alert_id}}"
        found += [
            AdminRoute("GET", limit, "spend.read", spending.limit),
            AdminRoute("POST", limit, "spend.write", spending.set_limit, body=SpendLimitUpdate),
            AdminRoute("DELETE", limit, "spend.write", spending.delete_limit),
            AdminRoute(
                "GET", alerts, "spend.read", spending.alerts, query=(*ORDERED_PAGE, "before")
            ),
            AdminRoute("POST", alerts, "spend.write", spending.create_alert, body=SpendAlertUpdate),
            AdminRoute("GET", one, "spend.read", spending.alert),
            AdminRoute("POST", one, "spend.write", spending.update_alert, body=SpendAlertUpdate),
            AdminRoute("DELETE", one, "spend.write", spending.delete_alert),
        ]
    return found


class RateLimitEndpoints:
    """Endpoints of `…/rate_limits`: one for each model, and `rl-*` for all together."""

    def __init__(self, limits: ProjectLimits) -> None:
        self._limits = limits

    async def list(self, call: AdminCall) -> Json:
        """Of every model that is served, and of those that have limits."""
        asked = page_params(call.request.query_params)
        owner = await self._limits.of_project(call.principal.tenant_id, call.path["project_id"])
        by_model = await self._limits.by_model(owner)
        bodies = [rate_limit_body(model, limits) for model, limits in by_model.items()]
        page, has_more = cut(bodies, asked)
        return conversation_page(page, has_more=has_more)

    async def update(self, call: AdminCall) -> Json:
        """Other values for one model."""
        asked = await call.body(RateLimitUpdate)
        owner = await self._limits.of_project(
            call.principal.tenant_id, call.path["project_id"], is_active=True
        )
        model = call.path["id"].removeprefix(RATE_LIMIT_PREFIX)
        known = await self._limits.by_model(owner)
        if not call.path["id"].startswith(RATE_LIMIT_PREFIX) or model not in {*known, ALL_MODELS}:
            raise ResourceNotFound(
                f"No rate limit with id '{shown(call.path['id'])}' was found.",
                code="rate_limit_not_found",
                param="rate_limit_id",
            )
        limits = await self._limits.set(
            owner,
            asked.values,
            author=call.caller.author,
            model=model,
            mode=asked.mode,
        )
        return rate_limit_body(model, limits)


class SpendEndpoints:
    """Endpoints of `…/spend_limit` and `…/spend_alerts` of an organization, or of a project."""

    def __init__(self, limits: ProjectLimits, kind: str) -> None:
        self._limits = limits
        self._kind = kind

    async def limit(self, call: AdminCall) -> Json:
        """The hard limit of a month."""
        found = await self._limits.limits.budget(await self._owner_of(call), "usd", "month")
        if found is None:
            raise _no_spend_limit()
        return spend_limit_body(self._kind, found.budget.cap, found.spent)

    async def set_limit(self, call: AdminCall) -> Json:
        """POST of `…/spend_limit`: cents a month, from which on requests get 429."""
        asked = await call.body(SpendLimitUpdate)
        owner = await self._owner_of(call, is_active=True)
        await self._limits.set_budget(owner, asked.threshold_amount * CENT, call.caller.author)
        return await self.limit(call)

    async def delete_limit(self, call: AdminCall) -> Json:
        """DELETE of `…/spend_limit`; 404 where none is set."""
        owner = await self._owner_of(call, is_active=True)
        if not await self._limits.remove_budget(owner, call.caller.author):
            raise _no_spend_limit()
        return deleted_body(f"{self._kind}.spend_limit")

    async def alerts(self, call: AdminCall) -> Json:
        """All alerts, the oldest first, or with `order=desc` the newest."""
        asked = page_params(call.request.query_params)
        found = await self._limits.alerts(await self._owner_of(call))
        bodies = [spend_alert_body(self._kind, one.id, one.threshold, one.channel) for one in found]
        page, has_more = cut(bodies, asked)
        return conversation_page(page, has_more=has_more)

    async def create_alert(self, call: AdminCall) -> Json:
        """POST of `…/spend_alerts`: who is told at which sum of cents a month."""
        asked = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        made = await self._limits.add_alert(
            owner, asked.threshold_amount * CENT, asked.channel, call.caller.author
        )
        return spend_alert_body(self._kind, made.id, made.threshold, made.channel)

    async def alert(self, call: AdminCall) -> Json:
        """GET of `…/spend_alerts/{alert_id}`; 404 for one of another scope."""
        found = await self._limits.alert(await self._owner_of(call), _alert_id(call))
        if found is None:
            raise _unknown_alert(call)
        return spend_alert_body(self._kind, found.id, found.threshold, found.channel)

    async def update_alert(self, call: AdminCall) -> Json:
        """POST of `…/spend_alerts/{alert_id}`: threshold and recipients, both of them anew."""
        asked = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        known = await self._limits.alert(owner, _alert_id(call))
        if known is None:
            raise _unknown_alert(call)
        new = replace(known, threshold=asked.threshold_amount * CENT, channel=asked.channel)
        if await self._limits.change_alert(owner, new, call.caller.author) is None:
            raise _unknown_alert(call)
        return spend_alert_body(self._kind, new.id, new.threshold, new.channel)

    async def delete_alert(self, call: AdminCall) -> Json:
        """DELETE of `…/spend_alerts/{alert_id}`; 404 for one of another scope."""
        owner, alert_id = await self._owner_of(call, is_active=True), _alert_id(call)
        if not await self._limits.remove_alert(owner, alert_id, call.caller.author):
            raise _unknown_alert(call)
        return deleted_body(f"{self._kind}.spend_alert", call.path["alert_id"])

    async def _owner_of(self, call: AdminCall, *, is_active: bool = False) -> LimitOwner:
        if self._kind == "project":
            return await self._limits.of_project(
                call.principal.tenant_id, call.path["project_id"], is_active=is_active
            )
        return self._limits.organization(call.principal.tenant_id)


def _no_spend_limit() -> ResourceNotFound:
    return ResourceNotFound(
        "There is no spend limit. POST sets one.", code="spend_limit_not_found", param=None
    )


def _alert_id(call: AdminCall) -> UUID:
    found = ids.parse_spend_alert_id(call.path["alert_id"])
    if found is None:
        raise _unknown_alert(call)
    return found


def _unknown_alert(call: AdminCall) -> ResourceNotFound:
    return ResourceNotFound(
        f"No spend alert with id '{shown(call.path['alert_id'])}' was found.",
        code="spend_alert_not_found",
        param="alert_id",
    )
