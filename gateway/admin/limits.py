"""Rate limits of projects; spend limits and spend alerts of an organization and its projects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.admin.pages import ORDERED_PAGE, PAGE, conversation_page, cut, page_params
from gateway.admin.projects import required_project
from gateway.admin.routes import AdminRoute
from gateway.errors import ResourceNotFound, shown
from gateway.limits.money import CENT
from gateway.limits.terms import ALL_MODELS
from gateway.protocol.admin_bodies import (
    RATE_LIMIT_PREFIX,
    RateLimitUpdate,
    SpendAlertUpdate,
    SpendLimitUpdate,
    deleted_body,
    rate_limit_body,
    spend_alert_body,
    spend_limit_body,
)
from gateway.services.limits import LimitOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from gateway.admin.routes import AdminCall
    from gateway.admin.transactions import Transactions
    from gateway.governance.audit import Author
    from gateway.limits.terms import Limit, Mode, What
    from gateway.services.limits import Limits
    from gateway.store.limits.rules import SpendAlert
    from gateway.tenancy import TenantId

    Json = dict[str, Any]


class ProjectLimits:
    """Limits of tenants and their projects. Methods raise `ResourceNotFound` for a project that the
    tenant does not have. `author` is who changes something, for the audit log.
    """

    def __init__(
        self,
        transactions: Transactions,
        limits: Limits,
        *,
        models: Callable[[], Sequence[str]],
        forget: Callable[[], None],
    ) -> None:
        """Show limits of the served `models`.

        `forget`, called after a change, makes this process look up keys again.
        """
        self.limits = limits
        self._transactions = transactions
        self._models = models
        self._forget = forget

    def organization(self, tenant_id: TenantId) -> LimitOwner:
        return LimitOwner(tenant_id, "organization", tenant_id)

    async def of_project(
        self, tenant_id: TenantId, project_id: str, *, is_active: bool = False
    ) -> LimitOwner:
        """Return a project as an owner of limits.

        Raises `ResourceNotFound`, and with `is_active` `InvalidRequest` for an archived one.
        """
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=is_active)
        return LimitOwner(tenant_id, "project", project.id)

    async def by_model(self, owner: LimitOwner) -> dict[str, list[Limit]]:
        """Return the owner's limits by model, for served models and those with limits."""
        found: dict[str, list[Limit]] = {model: [] for model in sorted(self._models())}
        for limit in await self.limits.limits(owner.tenant_id):
            if (limit.scope, limit.scope_id) == (owner.scope, owner.scope_id):
                found.setdefault(limit.model, []).append(limit)
        return found

    async def set(
        self,
        owner: LimitOwner,
        values: Mapping[tuple[What, int], int | None],
        *,
        author: Author,
        model: str = ALL_MODELS,
        mode: Mode | None = None,
    ) -> list[Limit]:
        """Set limits of one model, or of all, as `Limits.set_limits` does."""
        changed = await self.limits.set_limits(owner, values, model=model, mode=mode, author=author)
        self._forget()
        return changed

    async def set_budget(self, owner: LimitOwner, cap: int, author: Author) -> None:
        """Set the spend limit per month, in nano-dollars."""
        await self.limits.set_budget(owner, cap, author=author)
        self._forget()

    async def remove_budget(self, owner: LimitOwner, author: Author) -> bool:
        """Delete the spend limit per month. Return False if there was none."""
        is_gone = await self.limits.remove_budget(owner, "usd", "month", author)
        self._forget()
        return is_gone

    async def add_alert(
        self, owner: LimitOwner, threshold: int, channel: dict[str, object], author: Author
    ) -> SpendAlert:
        """Add an alert at `threshold` nano-dollars a month."""
        made = await self.limits.add_alert(owner, threshold, channel, author=author)
        self._forget()
        return made

    async def alerts(self, owner: LimitOwner) -> list[SpendAlert]:
        # Alerts that the operator set beside a budget (`SpendAlert.percent`) are not the
        # administrators', and may be in other units and intervals than dollars and months.
        return [one for one in await self.limits.alerts(owner) if one.percent is None]

    async def alert(self, owner: LimitOwner, alert_id: UUID) -> SpendAlert | None:
        """Return the owner's alert with this id, None if there is none."""
        found = await self.alerts(owner)
        return next((one for one in found if one.id == alert_id), None)

    async def change_alert(
        self, owner: LimitOwner, alert: SpendAlert, author: Author
    ) -> SpendAlert | None:
        """Change threshold or channel of an alert. None: it was deleted."""
        changed = await self.limits.change_alert(owner, alert, author)
        self._forget()
        return changed

    async def remove_alert(self, owner: LimitOwner, alert_id: UUID, author: Author) -> bool:
        """Delete a spend alert. Return False if there was none with this id."""
        theirs = {one.id for one in await self.alerts(owner)}
        is_gone = alert_id in theirs and await self.limits.remove_alert(owner, alert_id, author)
        self._forget()
        return is_gone


ORGANIZATION = "/organization"
PROJECT = "/organization/projects/{project_id}"


def routes(limits: ProjectLimits) -> list[AdminRoute]:
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
        """List the limits of each model that is served or has limits."""
        asked = page_params(call.request.query_params)
        owner = await self._limits.of_project(call.principal.tenant_id, call.path["project_id"])
        by_model = await self._limits.by_model(owner)
        bodies = [rate_limit_body(model, limits) for model, limits in by_model.items()]
        page, has_more = cut(bodies, asked)
        return conversation_page(page, has_more=has_more)

    async def update(self, call: AdminCall) -> Json:
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
        """Return the hard limit per month."""
        found = await self._limits.limits.budget(await self._owner_of(call), "usd", "month")
        if found is None:
            raise _no_spend_limit()
        return spend_limit_body(self._kind, found.budget.cap, found.spent)

    async def set_limit(self, call: AdminCall) -> Json:
        """Set the limit in cents a month; above it requests get 429."""
        asked = await call.body(SpendLimitUpdate)
        owner = await self._owner_of(call, is_active=True)
        await self._limits.set_budget(owner, asked.threshold_amount * CENT, call.caller.author)
        return await self.limit(call)

    async def delete_limit(self, call: AdminCall) -> Json:
        """Delete the limit; 404 if none is set."""
        owner = await self._owner_of(call, is_active=True)
        if not await self._limits.remove_budget(owner, call.caller.author):
            raise _no_spend_limit()
        return deleted_body(f"{self._kind}.spend_limit")

    async def alerts(self, call: AdminCall) -> Json:
        """List all alerts, the oldest first; with `order=desc` the newest."""
        asked = page_params(call.request.query_params)
        found = await self._limits.alerts(await self._owner_of(call))
        bodies = [spend_alert_body(self._kind, one.id, one.threshold, one.channel) for one in found]
        page, has_more = cut(bodies, asked)
        return conversation_page(page, has_more=has_more)

    async def create_alert(self, call: AdminCall) -> Json:
        """Add an alert: recipients and a threshold in cents a month."""
        asked = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        made = await self._limits.add_alert(
            owner, asked.threshold_amount * CENT, asked.channel, call.caller.author
        )
        return spend_alert_body(self._kind, made.id, made.threshold, made.channel)

    async def alert(self, call: AdminCall) -> Json:
        """Return an alert; 404 for one of another scope."""
        found = await self._limits.alert(await self._owner_of(call), _alert_id(call))
        if found is None:
            raise _unknown_alert(call)
        return spend_alert_body(self._kind, found.id, found.threshold, found.channel)

    async def update_alert(self, call: AdminCall) -> Json:
        """Replace both threshold and recipients of an alert."""
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
        """Delete an alert; 404 for one of another scope."""
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
