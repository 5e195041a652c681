"""Spend limits (budgets) and spend alerts of tenants, their projects and keys.

Bodies and objects are those of openai-python 3.54, with amounts in cents; the database has
nano-dollars.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import orjson
from pydantic import AfterValidator, Field, StringConstraints
from sqlalchemy import bindparam, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import JSONB

from gateway import ids
from gateway.admin.limits import LimitOwner, upsert
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.routes import ORDERED_PAGE, AdminRoute, page_params
from gateway.admin.tenants import ONE as TENANT
from gateway.admin.transactions import (
    CoreStatement,
    ResourceRows,
    Transactions,
    insert_row,
    named,
    of_tenant,
)
from gateway.api.access.own_key import budget_body, limit_body
from gateway.api.query import list_body
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.ledger.jobs import count_from_beginning
from gateway.limits.money import CENT, begins
from gateway.limits.rules import Budget, Terms
from gateway.protocol.admin_bodies import Json, deleted_body
from gateway.protocol.base import AS_INTEGER, Many, NullableModel, WireModel
from gateway.store.limits import alerts, key_terms
from gateway.store.limits.alerts import OPERATORS, SpendAlert, alert_of
from gateway.store.limits.key_terms import budget_of
from gateway.store.schema import EVERYONE
from gateway.store.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from uuid import UUID

    from sqlalchemy import ColumnElement, Table

    from gateway.admin.limits import Limits
    from gateway.admin.routes import AdminCall
    from gateway.limits.accounting import Figures
    from gateway.limits.rules import Interval, Mode, Unit
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

BUDGETS: Final = TABLES["budgets"]
SPEND_ALERTS: Final = TABLES["spend_alerts"]

ORGANIZATION = "/organization"
ALERTS_MAX: Final = 100
CAP_MAX: Final = 2**63 - 1
"""More does not fit into its column."""
CENTS_MAX: Final = 10**11
RECIPIENTS_MAX: Final = 20
ALERT_EVENT: Final = "harmony.spend_alert"


def routes(spend_limits: SpendLimits, limits: Limits) -> list[AdminRoute]:
    may_read: Final = "spend.read"
    may_write: Final = "spend.write"
    query = (*ORDERED_PAGE, "before")
    every_route = []
    for base, kind in ((ORGANIZATION, "organization"), (PROJECT, "project")):
        spending = SpendEndpoints(spend_limits, limits, kind)
        limit, all_alerts = f"{base}/spend_limit", f"{base}/spend_alerts"
        one = f"{all_alerts}/{{alert_id}}"
        every_route += [
            AdminRoute("GET", limit, may_read, spending.limit),
            AdminRoute("POST", limit, may_write, spending.set_limit, SpendLimitUpdate),
            AdminRoute("DELETE", limit, may_write, spending.delete_limit),
            AdminRoute("GET", all_alerts, may_read, spending.alerts, query=query),
            AdminRoute("POST", all_alerts, may_write, spending.create_alert, SpendAlertUpdate),
            AdminRoute("GET", one, may_read, spending.alert),
            AdminRoute("POST", one, may_write, spending.update_alert, SpendAlertUpdate),
            AdminRoute("DELETE", one, may_write, spending.delete_alert),
        ]
    return every_route


def operator_routes(states: LimitStates) -> list[AdminRoute]:
    async def of_tenant(call: AdminCall) -> Json:
        project_id = call.request.query_params.get("project_id")
        return _states_body(await states.named(call.path["name"], project_id))

    query = ("project_id",)
    return [AdminRoute("GET", f"{TENANT}/limits", "tenants.read", of_tenant, query=query)]


def _printable(text: str) -> str:
    # The name becomes part of a mail's subject, which is one line.
    if not text.isprintable():
        raise ValueError("must have printable characters alone")
    return text


ADDRESS: Final = (
    r"^[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+)*"
    r"@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
)
"""One mailbox in ASCII: RFC 5322's dot-atom without the question mark, which begins an encoded word
of RFC 2047, and a host name."""
Address = Annotated[str, StringConstraints(max_length=254, pattern=ADDRESS)]
Subject = Annotated[str, StringConstraints(max_length=200), AfterValidator(_printable)]
Cents = Annotated[int, Field(ge=0, le=CENTS_MAX), AS_INTEGER]


class SpendLimitUpdate(WireModel):
    """`POST …/spend_limit`: the hard limit of a month, in cents."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: Cents


class NotificationChannel(NullableModel):
    """Channel and recipients of a notification: OpenAI has e-mail alone."""

    type: Literal["email"]
    recipients: Annotated[Many[Address], Field(min_length=1, max_length=RECIPIENTS_MAX)]
    subject_prefix: Subject | None = None


class SpendAlertUpdate(WireModel):
    """`POST …/spend_alerts` and `…/spend_alerts/{id}`."""

    currency: Literal["USD"]
    interval: Literal["month"]
    notification_channel: NotificationChannel
    threshold_amount: Cents

    @property
    def threshold(self) -> int:
        return self.threshold_amount * CENT

    @property
    def channel(self) -> Json:
        return self.notification_channel.model_dump(mode="json")


class SpendEndpoints:
    def __init__(self, spend_limits: SpendLimits, owners: Limits, kind: str) -> None:
        self._spend_limits = spend_limits
        self._owners = owners
        self._kind = kind

    async def limit(self, call: AdminCall) -> Json:
        state = await self._spend_limits.budget(await self._owner_of(call), "usd", "month")
        if state is None:
            raise _no_spend_limit()
        is_enforcing = state.budget.mode == "enforce" and state.spent >= state.budget.cap
        return {
            "object": f"{self._kind}.spend_limit",
            "currency": "USD",
            "interval": "month",
            "threshold_amount": state.budget.cap // CENT,
            "enforcement": {"status": "enforcing" if is_enforcing else "inactive"},
        }

    async def set_limit(self, call: AdminCall) -> Json:
        body = await call.body(SpendLimitUpdate)
        owner = await self._owner_of(call, is_active=True)
        await self._spend_limits.set_budget(owner, body.threshold_amount * CENT)
        return await self.limit(call)

    async def delete_limit(self, call: AdminCall) -> Json:
        owner = await self._owner_of(call, is_active=True)
        if not await self._spend_limits.remove_budget(owner, "usd", "month"):
            raise _no_spend_limit()
        return deleted_body(f"{self._kind}.spend_limit")

    async def alerts(self, call: AdminCall) -> Json:
        params = page_params(call.request.query_params)
        page = await self._spend_limits.administrators_alerts(await self._owner_of(call), params)
        return list_body(map(self._body, page.rows), has_more=page.has_more)

    async def create_alert(self, call: AdminCall) -> Json:
        body = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        return self._body(await self._spend_limits.add_alert(owner, body.threshold, body.channel))

    async def alert(self, call: AdminCall) -> Json:
        owner = await self._owner_of(call)
        return self._body(await self._spend_limits.alert(owner, call.path["alert_id"]))

    async def update_alert(self, call: AdminCall) -> Json:
        body = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        changed = await self._spend_limits.change_alert(
            owner, call.path["alert_id"], body.threshold, body.channel
        )
        return self._body(changed)

    async def delete_alert(self, call: AdminCall) -> Json:
        owner, alert_id = await self._owner_of(call, is_active=True), call.path["alert_id"]
        await self._spend_limits.remove_alert(owner, alert_id)
        return deleted_body(f"{self._kind}.spend_alert", alert_id)

    def _body(self, alert: SpendAlert) -> Json:
        return {
            "id": ids.spend_alert_id(alert.id),
            "object": f"{self._kind}.spend_alert",
            "currency": "USD",
            "interval": "month",
            "threshold_amount": alert.threshold // CENT,
            "notification_channel": alert.channel,
        }

    async def _owner_of(self, call: AdminCall, *, is_active: bool = False) -> LimitOwner:
        tenant_id, author = call.principal.tenant_id, call.author
        if self._kind == "project":
            return await self._owners.of_project(
                tenant_id, call.path["project_id"], is_active=is_active, author=author
            )
        return LimitOwner(tenant_id, "organization", tenant_id, author)


def _no_spend_limit() -> ResourceNotFound:
    return ResourceNotFound(
        "There is no spend limit. POST sets one.", code="spend_limit_not_found", param=None
    )


def _unknown_alert(alert_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"No spend alert with id '{shown(alert_id)}' was found.",
        code="spend_alert_not_found",
        param="alert_id",
    )


class BudgetState(NamedTuple):
    budget: Budget
    spent: int


_BUDGET_KEY: Final = ("scope", "scope_id", "unit", "span")


def _of_scope(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    return of_tenant(table, "scope", "scope_id", *columns)


_BUDGETS: Final = CoreStatement(
    select(BUDGETS).where(*of_tenant(BUDGETS)).order_by(*(BUDGETS.c[name] for name in _BUDGET_KEY))
)
_SET_BUDGET: Final = CoreStatement(
    upsert(BUDGETS, _BUDGET_KEY, named("id", "cap", "mode"), created_at=func.now())
)
_REMOVE_BUDGET: Final = CoreStatement(delete(BUDGETS).where(*of_tenant(BUDGETS, *_BUDGET_KEY)))
_ALERTS: Final = CoreStatement(
    select(SPEND_ALERTS)
    .where(*_of_scope(SPEND_ALERTS))
    .order_by(SPEND_ALERTS.c.created_at, SPEND_ALERTS.c.id)
)
# Alerts that the operator set beside a budget are not the administrators', and may be in other
# units and intervals than dollars and months.
_ADMINISTRATORS_ALERTS: Final = ResourceRows(
    SPEND_ALERTS,
    alert_of,
    ids.parse_spend_alert_id,
    _unknown_alert,
    SPEND_ALERTS.c.scope == bindparam("scope"),
    SPEND_ALERTS.c.scope_id == bindparam("scope_id"),
    cast(func.convert_from(SPEND_ALERTS.c.channel, "UTF8"), JSONB)["type"].astext != OPERATORS,
)
_CHANGE_ALERT: Final = CoreStatement(
    update(SPEND_ALERTS)
    .where(*_of_scope(SPEND_ALERTS, "id"))
    .values(threshold=bindparam("threshold"), channel=bindparam("channel"))
    .returning(SPEND_ALERTS)
)
_REMOVE_ALERT: Final = CoreStatement(delete(SPEND_ALERTS).where(*_of_scope(SPEND_ALERTS, "id")))


class SpendLimits:
    """Budgets and spend alerts, which are looked up with keys."""

    def __init__(self, database: Database, forget: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._transactions = Transactions(database, forget)

    async def budgets(self, tenant_id: TenantId) -> list[BudgetState]:
        async with self._transactions.reading(tenant_id) as connection:
            rows = await connection.execute(_BUDGETS, {"tenant": tenant_id})
        return [await self._state(tenant_id, budget) for budget in map(budget_of, rows)]

    async def of(self, owner: LimitOwner) -> list[Budget]:
        async with self._transactions.reading(owner.tenant_id) as connection:
            rows = await connection.execute(_BUDGETS, {"tenant": owner.tenant_id})
        return list(filter(owner.has, map(budget_of, rows)))

    async def budget(self, owner: LimitOwner, unit: Unit, interval: Interval) -> BudgetState | None:
        for one in await self.of(owner):
            if (one.unit, one.interval) == (unit, interval):
                return await self._state(owner.tenant_id, one)
        return None

    async def set_budget(
        self,
        owner: LimitOwner,
        cap: int,
        *,
        unit: Unit = "usd",
        interval: Interval = "month",
        mode: Mode | None = None,
        alert_at: Collection[int] | None = None,
    ) -> Budget:
        """Set the budget of an owner, in nano-dollars or tokens.

        Without a `mode` it keeps its own; a new one is enforced. The operator is alerted at the
        percentages `alert_at` and at no others (None: as before).
        """
        if not 0 <= cap <= CAP_MAX:
            raise InvalidRequest(
                f"A budget is from 0 to {CAP_MAX} nano-dollars or tokens.", param="cap"
            )
        if unit == "usd" and not await self._has_prices(owner.tenant_id):
            raise InvalidRequest(
                "No model has a price, so nothing would ever be spent. Set prices first.",
                param="unit",
            )
        budget = Budget(ids.new_uuid(), owner.scope, owner.scope_id, unit, interval, cap)
        await self._begin_to_count(owner, budget)
        async with self._transactions.changing(owner.tenant_id) as connection:
            for row in await connection.execute(_BUDGETS, {"tenant": owner.tenant_id}):
                mode = mode or (row.mode if budget_of(row).meter == budget.meter else None)
            budget = replace(budget, mode=mode or "enforce")
            values = {"id": budget.id, "cap": cap, "mode": budget.mode}
            await connection.execute(_SET_BUDGET, _budget_row(owner, budget) | values)
            await _note_budget(connection, owner, budget, cap)
            if alert_at is not None:
                thresholds = {percent: cap * percent // 100 for percent in alert_at}
                if max(thresholds.values(), default=0) > CAP_MAX:
                    raise InvalidRequest(f"An alert is at {CAP_MAX} at most.", param="alert_at")
                await _set_operators_alerts(connection, owner, budget, thresholds)
        return budget

    async def remove_budget(
        self, owner: LimitOwner, unit: Unit, interval: Interval, *, with_alerts: bool = False
    ) -> bool:
        """Delete a budget, and with `with_alerts` the operator's alerts of it."""
        gone = Budget(EVERYONE, owner.scope, owner.scope_id, unit, interval, 0)
        async with self._transactions.changing(owner.tenant_id) as connection:
            if with_alerts:
                await _set_operators_alerts(connection, owner, gone, {})
            is_gone = bool(await connection.count(_REMOVE_BUDGET, _budget_row(owner, gone)))
            if is_gone:
                await _note_budget(connection, owner, gone, None)
        return is_gone

    async def alerts(self, owner: LimitOwner) -> list[SpendAlert]:
        async with self._transactions.reading(owner.tenant_id) as connection:
            return await _alerts_of(connection, owner)

    async def administrators_alerts(self, owner: LimitOwner, page: PageParams) -> Page[SpendAlert]:
        async with self._transactions.reading(owner.tenant_id) as connection:
            return await _ADMINISTRATORS_ALERTS.page(connection, page, **owner.row)

    async def add_alert(
        self, owner: LimitOwner, threshold: int, channel: Mapping[str, Any]
    ) -> SpendAlert:
        """Add an alert at `threshold` nano-dollars a month."""
        alert = _new_alert(owner, "usd", "month", threshold, channel)
        await self._begin_to_count(owner, alert)
        async with self._transactions.changing(owner.tenant_id) as connection:
            _check_count(len(await _alerts_of(connection, owner)) + 1)
            return await _add_alert(connection, owner, alert)

    async def alert(self, owner: LimitOwner, alert_id: str) -> SpendAlert:
        async with self._transactions.reading(owner.tenant_id) as connection:
            return await _ADMINISTRATORS_ALERTS.get(connection, alert_id, **owner.row)

    async def change_alert(
        self, owner: LimitOwner, alert_id: str, threshold: int, channel: Mapping[str, Any]
    ) -> SpendAlert:
        """Change an administrator's alert, which fires again at another threshold."""
        async with self._transactions.changing(owner.tenant_id) as connection:
            before = await _ADMINISTRATORS_ALERTS.get(connection, alert_id, **owner.row)
            values = {"id": before.id, "threshold": threshold, "channel": orjson.dumps(channel)}
            changed = await connection.execute(_CHANGE_ALERT, owner.row | values)
            # Only the number of recipients: an audit log cannot be erased.
            recipients = len(channel.get("recipients", ()))
            data = {
                "threshold": threshold,
                "notification_channel": {"type": channel["type"], "recipients": recipients},
            }
            if before.threshold != threshold:
                await alerts.again(connection, owner.tenant_id, before.id)
            await owner.note(connection, f"{ALERT_EVENT}.updated", alert_id, changes_requested=data)
        return alert_of(changed.one())

    async def remove_alert(self, owner: LimitOwner, alert_id: str) -> None:
        async with self._transactions.changing(owner.tenant_id) as connection:
            alert = await _ADMINISTRATORS_ALERTS.get(connection, alert_id, **owner.row)
            await _remove_alert(connection, owner, alert.id)

    async def _begin_to_count(self, owner: LimitOwner, wanted: Budget | SpendAlert) -> None:
        # Before replicas look it up: what they count from then on is added.
        async with self._transactions.reading(owner.tenant_id) as connection:
            counted = {one.meter for one in await _alerts_of(connection, owner)}
        counted |= {one.meter for one in await self.of(owner)}
        if wanted.meter not in counted:
            await count_from_beginning(self._database, owner.tenant_id, wanted)

    async def _state(self, tenant_id: TenantId, budget: Budget) -> BudgetState:
        starts_at = begins(budget.interval, datetime.now(UTC))
        spent = await alerts.spent(self._database, tenant_id, budget.meter, starts_at)
        return BudgetState(budget, spent)

    async def _has_prices(self, tenant_id: TenantId) -> bool:
        now = datetime.now(UTC)
        prices = await key_terms.valid_prices(self._database)
        return any(one.tenant_id in {tenant_id, EVERYONE} and one.is_valid(now) for one in prices)


def _new_alert(
    owner: LimitOwner, unit: Unit, interval: Interval, threshold: int, channel: Mapping[str, Any]
) -> SpendAlert:
    return SpendAlert(
        ids.new_uuid(), owner.scope, owner.scope_id, unit, interval, threshold, dict(channel)
    )


def _budget_row(owner: LimitOwner, budget: Budget) -> dict[str, Any]:
    return owner.row | {"unit": budget.unit, "span": budget.interval}


async def _note_budget(
    connection: Connection, owner: LimitOwner, budget: Budget, cap: int | None
) -> None:
    data = {"scope": owner.scope, "unit": budget.unit, "interval": budget.interval, "cap": cap}
    target = str(owner.scope_id)
    await owner.note(connection, "harmony.budget.changed", target, changes_requested=data)


async def _alerts_of(connection: Connection, owner: LimitOwner) -> list[SpendAlert]:
    return [alert_of(row) for row in await connection.execute(_ALERTS, owner.row)]


def _check_count(count: int) -> None:
    if count > ALERTS_MAX:
        raise InvalidRequest(f"There may be {ALERTS_MAX} spend alerts at most.")


async def _set_operators_alerts(
    connection: Connection, owner: LimitOwner, budget: Budget, thresholds: Mapping[int, int]
) -> None:
    # Replaces the operator's alerts of this unit and interval; unchanged ones do not fire again.
    new, gone = dict(thresholds), []
    existing = await _alerts_of(connection, owner)
    for one in existing:
        if one.percent is None or one.meter != budget.meter:
            continue
        if new.get(one.percent) == one.threshold:
            del new[one.percent]
        else:
            gone.append(one)
    _check_count(len(existing) - len(gone) + len(new))
    for one in gone:
        await _remove_alert(connection, owner, one.id)
    for percent, threshold in new.items():
        channel = {"type": OPERATORS, "percent": percent}
        alert = _new_alert(owner, budget.unit, budget.interval, threshold, channel)
        await _add_alert(connection, owner, alert)


async def _add_alert(connection: Connection, owner: LimitOwner, new: SpendAlert) -> SpendAlert:
    data = {"threshold": new.threshold, "unit": new.unit, "interval": new.interval}
    row = {
        "tenant_id": owner.tenant_id,
        "id": new.id,
        "scope": owner.scope,
        "scope_id": owner.scope_id,
        "unit": new.unit,
        "span": new.interval,
        "threshold": new.threshold,
        "channel": orjson.dumps(new.channel),
    }
    made = alert_of((await connection.execute(insert_row(SPEND_ALERTS, *row), row)).one())
    target = ids.spend_alert_id(made.id)
    await owner.note(connection, f"{ALERT_EVENT}.created", target, data=data)
    return made


async def _remove_alert(connection: Connection, owner: LimitOwner, alert_id: UUID) -> None:
    await connection.execute(_REMOVE_ALERT, owner.row | {"id": alert_id})
    await owner.note(connection, f"{ALERT_EVENT}.deleted", ids.spend_alert_id(alert_id))


class LimitStates:
    """Present use of limits and budgets, over all replicas."""

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


def _states_body(figures: Figures) -> Json:
    now = datetime.now(UTC)
    budgets = []
    for one in figures.budgets:
        at = one.runs_out_at(now)
        budgets.append({**budget_body(one), "runs_out_at": at and int(at.timestamp())})
    return {"object": "limits", "limits": list(map(limit_body, figures.limits)), "budgets": budgets}
