"""Limits, budgets, alerts and prices, for operators and administrators.

What is set here counts at other replicas within `auth.key_cache_ttl_s`: it is looked up with keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.limits.money import COMPONENTS, PRICE_TIERS, Price, begins
from gateway.limits.terms import ALL_MODELS, DAY_S, MINUTE_S, Budget, Limit
from gateway.protocol.request_errors import wrong_value
from gateway.store import tenants
from gateway.store.limits import alerts, counters, prices, rules
from gateway.store.limits.rules import OPERATORS, SpendAlert
from gateway.store.schema import EVERYONE
from gateway.store.tools.quotas import Quota, take_turns
from gateway.tenancy import default_project

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from gateway.governance.audit import AuditEvent, Author
    from gateway.limits.money import Component
    from gateway.limits.terms import Interval, Mode, Scope, Unit, What
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

ALERTS_MAX: Final = 100
"""Of one scope."""
CAP_MAX: Final = 2**63 - 1
"""Of a budget: more does not fit into its column."""
NANO_MAX: Final = 10**15
"""The highest price of a unit: a million dollars."""


@dataclass(frozen=True, slots=True)
class LimitOwner:
    """Owner of limits and budgets: a tenant, or one of its projects or keys."""

    tenant_id: TenantId
    scope: Scope
    scope_id: UUID

    @classmethod
    def of_tenant(cls, tenant_id: TenantId) -> LimitOwner:
        return cls(tenant_id, "tenant", tenant_id)

    @property
    def project(self) -> UUID | None:
        return self.scope_id if self.scope == "project" else None


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget, and what is spent of it in the interval that is now."""

    budget: Budget
    spent: int


class Limits:
    """Use cases of limits, budgets, alerts and prices. Each takes an owner whose limits the caller
    may change; `author` is who does, for the audit log.
    """

    def __init__(self, database: Database, aliases: Mapping[str, str] | None = None) -> None:
        """Count requests by the model ids that `aliases` maps further names to."""
        self._database = database
        self._aliases = aliases or {}

    async def tenant(self, name: str) -> TenantId:
        """Return the id of the tenant with this name. Raises `ResourceNotFound`."""
        found = await tenants.find_tenant(self._database, name)
        if found is None:
            raise ResourceNotFound(f"There is no tenant {name!r}.", param="tenant")
        return found.id

    async def project(self, tenant_id: TenantId, project_id: UUID) -> LimitOwner:
        """Return a project as an owner of limits.

        Raises `ResourceNotFound` for a project that the tenant does not have.
        """
        async with self._database.transaction(tenant_id) as connection:
            is_there = await tenants.has_project(connection, tenant_id, project_id)
        # The default project need not have been written.
        if not is_there and project_id != default_project(tenant_id):
            raise ResourceNotFound(
                f"No project with id '{ids.project_id(project_id)}' was found.",
                code="project_not_found",
                param="project_id",
            )
        return LimitOwner(tenant_id, "project", project_id)

    async def key(self, tenant_id: TenantId, key_id: UUID) -> LimitOwner:
        """Return a key, federation rule or operator's issuer as an owner of limits.

        A key and its replacements share one owner. Raises `ResourceNotFound` for one that the
        tenant does not have.
        """
        async with self._database.owner_transaction() as connection:
            if not await rules.is_key(connection, tenant_id, key_id):
                raise ResourceNotFound(
                    f"No API key with id '{ids.api_key_id(key_id)}' was found.",
                    code="api_key_not_found",
                    param="key_id",
                )
            first = await rules.first_of_line(connection, tenant_id, key_id)
        return LimitOwner(tenant_id, "key", first)

    async def limits(self, tenant_id: TenantId) -> list[Limit]:
        async with self._database.transaction(tenant_id) as connection:
            return await rules.limits(connection, tenant_id)

    async def set_limits(
        self,
        owner: LimitOwner,
        values: Mapping[tuple[What, int], int | None],
        *,
        model: str = ALL_MODELS,
        mode: Mode | None = None,
        author: Author = COMMAND_LINE,
    ) -> list[Limit]:
        """Call `set_limits` in its own transaction, then adjust the levels of the buckets.

        `model` may be any of the model's names. If only the second step fails (`StoreError`), the
        limits are in effect, and the buckets fill at their rates.
        """
        model = self._id_of(model)
        async with self._database.transaction(owner.tenant_id) as connection:
            before = {one.name: one for one in await _limits_of(connection, owner, model)}
            changed = await set_limits(
                connection, owner, values, model=model, mode=mode, author=author
            )
        new = [one for one in changed if before.get(one.name) != one]
        await counters.resize(self._database, owner.tenant_id, before, new)
        return changed

    async def budgets(self, tenant_id: TenantId) -> list[BudgetState]:
        """Return all budgets of a tenant, its projects and keys."""
        now, found = datetime.now(UTC), []
        for budget in await rules.budgets(self._database, tenant_id):
            starts_at = begins(budget.interval, now)
            spent = await alerts.spent(self._database, tenant_id, budget.meter, starts_at)
            found.append(BudgetState(budget, spent))
        return found

    async def budget(self, owner: LimitOwner, unit: Unit, interval: Interval) -> BudgetState | None:
        """Return the owner's budget, None if it has none."""
        wanted = (owner.scope, owner.scope_id, unit, interval)
        for one in await self.budgets(owner.tenant_id):
            budget = one.budget
            if (budget.scope, budget.scope_id, budget.unit, budget.interval) == wanted:
                return one
        return None

    async def set_budget(  # noqa: PLR0913 - all that a budget is
        self,
        owner: LimitOwner,
        cap: int,
        *,
        unit: Unit = "usd",
        interval: Interval = "month",
        mode: Mode | None = None,
        alert_at: Collection[int] | None = None,
        author: Author = COMMAND_LINE,
    ) -> Budget:
        """Set the budget of an owner, in nano-dollars or tokens.

        Without a `mode` a budget keeps its mode; a new one is enforced. The operator is alerted at
        the percentages `alert_at` and at no others (None: alerts stay as they are). Raises
        `InvalidRequest`, without any change, for a budget in money without prices (usage would cost
        nothing) and for too many alerts.
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
        for one in await rules.budgets(self._database, owner.tenant_id):
            mode = mode or (one.mode if one.meter == budget.meter else None)
        budget = replace(budget, mode=mode or "enforce")
        event = _budget_changed(owner, budget, cap, author)
        async with self._database.transaction(owner.tenant_id) as connection:
            await take_turns(connection, owner.tenant_id, Quota.ADMINISTRATION)
            await rules.set_budget(connection, owner.tenant_id, budget, event)
            if alert_at is not None:
                thresholds = {percent: cap * percent // 100 for percent in alert_at}
                if max(thresholds.values(), default=0) > CAP_MAX:
                    raise InvalidRequest(f"An alert is at {CAP_MAX} at most.", param="alert_at")
                await _set_operators_alerts(connection, owner, budget, thresholds, author)
        return budget

    async def remove_budget(
        self,
        owner: LimitOwner,
        unit: Unit,
        interval: Interval,
        author: Author = COMMAND_LINE,
        *,
        with_alerts: bool = False,
    ) -> bool:
        """Delete the owner's budget; with `with_alerts` the operator's alerts of it, too.

        Return False if there was none.
        """
        gone = Budget(EVERYONE, owner.scope, owner.scope_id, unit, interval, 0)
        event = _budget_changed(owner, gone, None, author)
        async with self._database.transaction(owner.tenant_id) as connection:
            await take_turns(connection, owner.tenant_id, Quota.ADMINISTRATION)
            if with_alerts:
                await _set_operators_alerts(connection, owner, gone, {}, author)
            return await rules.set_budget(connection, owner.tenant_id, gone, event, is_gone=True)

    async def alerts(self, owner: LimitOwner) -> list[SpendAlert]:
        async with self._database.transaction(owner.tenant_id) as connection:
            return await _alerts_of(connection, owner)

    async def add_alert(
        self,
        owner: LimitOwner,
        threshold: int,
        channel: dict[str, object],
        *,
        unit: Unit = "usd",
        interval: Interval = "month",
        author: Author = COMMAND_LINE,
    ) -> SpendAlert:
        """Add an alert for when `threshold` is spent. Raises `InvalidRequest` for too many."""
        new = SpendAlert(
            ids.new_uuid(), owner.scope, owner.scope_id, unit, interval, threshold, channel
        )
        async with self._database.transaction(owner.tenant_id) as connection:
            await take_turns(connection, owner.tenant_id, Quota.ADMINISTRATION)
            _check_count(len(await _alerts_of(connection, owner)) + 1)
            return await _add_alert(connection, owner, new, author)

    async def change_alert(
        self, owner: LimitOwner, alert: SpendAlert, author: Author = COMMAND_LINE
    ) -> SpendAlert | None:
        """Change an alert; None if the owner has none with its id.

        With another threshold it fires again.
        """
        event = author.event(
            "harmony.spend_alert.updated",
            ids.spend_alert_id(alert.id),
            owner.project,
            changes_requested={
                "threshold": alert.threshold,
                # Not who they are: what is in an audit log cannot be erased.
                "notification_channel": {
                    "type": alert.channel["type"],
                    "recipients": len(alert.channel.get("recipients", ())),
                },
            },
        )
        before = {one.id: one.threshold for one in await self.alerts(owner)}
        changed = await rules.change_alert(self._database, owner.tenant_id, alert, event)
        if changed is not None and before.get(alert.id) != alert.threshold:
            await alerts.again(self._database, owner.tenant_id, alert.id)
        return changed

    async def remove_alert(
        self, owner: LimitOwner, alert_id: UUID, author: Author = COMMAND_LINE
    ) -> bool:
        # False: there was no alert with that id.
        async with self._database.transaction(owner.tenant_id) as connection:
            return await _remove_alert(connection, owner, alert_id, author)

    async def prices(self) -> list[Price]:
        return await prices.every(self._database)

    async def set_price(
        self,
        model: str,
        nano: Mapping[Component, int],
        *,
        tenant_id: TenantId | None = None,
        tier: str = "*",
        valid_from: datetime | None = None,
        author: Author = COMMAND_LINE,
    ) -> Price:
        """Set the price of a model from `valid_from` (now) until a later price begins.

        It is for one tenant or for all. Written usage lines keep their cost. Raises
        `InvalidRequest`, also for a tier that no response can have.
        """
        _check_tier(tier)
        # Responses end at whole seconds.
        now = datetime.now(UTC).replace(microsecond=0)
        if not nano or not set(nano) <= set(COMPONENTS):
            raise InvalidRequest(f"A price has some of: {', '.join(COMPONENTS)}.", param="price")
        if not all(0 <= one <= NANO_MAX for one in nano.values()):
            raise InvalidRequest("A price is zero or more, and below a million dollars.")
        price = Price(
            ids.new_uuid(),
            tenant_id or EVERYONE,
            self._id_of(model),
            tier,
            dict(nano),
            valid_from or now,
        )
        told = {"tier": tier, "nano": price.nano, "valid_from": price.valid_from.isoformat()}
        event = author.event("harmony.price.changed", price.model, changes_requested=told)
        await prices.add(self._database, price, event)
        return price

    async def end_price(
        self,
        model: str,
        *,
        tenant_id: TenantId | None = None,
        tier: str = "*",
        author: Author = COMMAND_LINE,
    ) -> bool:
        """End the current price of a model; return False if it had none.

        After that another price applies, or none. Raises `InvalidRequest` for an unknown tier.
        """
        _check_tier(tier)
        model = self._id_of(model)
        at = datetime.now(UTC).replace(microsecond=0)
        told = {"tier": tier, "valid_until": at.isoformat()}
        event = author.event("harmony.price.changed", model, changes_requested=told)
        return await prices.end(self._database, tenant_id or EVERYONE, model, tier, at, event)

    def _id_of(self, model: str) -> str:
        return self._aliases.get(model, model)

    async def _has_prices(self, tenant_id: TenantId) -> bool:
        now = datetime.now(UTC)
        known = await prices.valid(self._database)
        return any(one.tenant_id in {tenant_id, EVERYONE} and one.is_valid(now) for one in known)


async def set_limits(
    connection: Connection,
    owner: LimitOwner,
    values: Mapping[tuple[What, int], int | None],
    *,
    model: str = ALL_MODELS,
    mode: Mode | None = None,
    author: Author,
) -> list[Limit]:
    """Set limits by kind and window (seconds); None removes a limit.

    Returns all limits of owner and model. `mode` applies to the limits in `values`, or if that is
    empty to all of owner and model. Without it each keeps its mode; a new limit is observed if all
    others are, otherwise enforced. Raises `InvalidRequest`, also for a limit above one of the
    enclosing scope (a project's tenant, a key's project).
    """
    there = {(one.what, one.window_s): one for one in await _limits_of(connection, owner, model)}
    asked = values
    if not values and mode is not None:
        asked = {what: one.value for what, one in there.items()}
    named = _requested_limits(owner, asked, model, mode, there)
    if not named:
        raise InvalidRequest("There is nothing to change.")
    known = await _limits_around(connection, owner)
    for limit, value in named:
        limit.check()
        if value is not None and values:
            _check_within(limit, known)
    await rules.set_limits(
        connection,
        owner.tenant_id,
        [limit for limit, value in named if value is not None],
        _limits_changed(owner, values, model, mode, author),
        gone=[limit for limit, value in named if value is None],
    )
    return await _limits_of(connection, owner, model)


def _requested_limits(
    owner: LimitOwner,
    values: Mapping[tuple[What, int], int | None],
    model: str,
    mode: Mode | None,
    there: Mapping[tuple[What, int], Limit],
) -> list[tuple[Limit, int | None]]:
    is_observed = bool(there) and all(one.mode == "observe" for one in there.values())
    new: Mode = "observe" if is_observed else "enforce"
    found = []
    for (what, window_s), value in values.items():
        own = there.get((what, window_s))
        kept = new if own is None else own.mode
        limit = Limit(owner.scope, owner.scope_id, what, value or 0, window_s, model, mode or kept)
        found.append((limit, value))
    return found


async def _limits_of(connection: Connection, owner: LimitOwner, model: str) -> list[Limit]:
    return [
        one
        for one in await rules.limits(connection, owner.tenant_id)
        if (one.scope, one.scope_id, one.model) == (owner.scope, owner.scope_id, model)
    ]


async def _limits_around(connection: Connection, owner: LimitOwner) -> list[Limit]:
    # Limits of an owner may not exceed these.
    around: set[tuple[Scope, UUID]] = set()
    if owner.scope != "tenant":
        around.add(("tenant", owner.tenant_id))
    if owner.scope == "key":
        project = await rules.project_of_key(connection, owner.tenant_id, owner.scope_id)
        if project is not None:
            around.add(("project", project))
    known = await rules.limits(connection, owner.tenant_id)
    return [one for one in known if (one.scope, one.scope_id) in around]


async def _alerts_of(connection: Connection, owner: LimitOwner) -> list[SpendAlert]:
    return await rules.alerts(connection, owner.tenant_id, owner.scope, owner.scope_id)


def _check_count(alerts: int) -> None:
    if alerts > ALERTS_MAX:
        raise InvalidRequest(f"There may be {ALERTS_MAX} spend alerts at most.")


async def _set_operators_alerts(
    connection: Connection,
    owner: LimitOwner,
    budget: Budget,
    thresholds: Mapping[int, int],
    author: Author,
) -> None:
    # Replaces the operator's alerts of this unit and interval; unchanged ones do not fire again.
    new, gone = dict(thresholds), []
    known = await _alerts_of(connection, owner)
    for one in known:
        if one.percent is None or one.meter != budget.meter:
            continue
        if new.get(one.percent) == one.threshold:
            del new[one.percent]
        else:
            gone.append(one)
    _check_count(len(known) - len(gone) + len(new))
    for one in gone:
        await _remove_alert(connection, owner, one.id, author)
    for percent, threshold in new.items():
        channel = {"type": OPERATORS, "percent": percent}
        unit, interval = budget.unit, budget.interval
        alert = SpendAlert(
            ids.new_uuid(), owner.scope, owner.scope_id, unit, interval, threshold, channel
        )
        await _add_alert(connection, owner, alert, author)


async def _add_alert(
    connection: Connection, owner: LimitOwner, new: SpendAlert, author: Author
) -> SpendAlert:
    told = {"threshold": new.threshold, "unit": new.unit, "interval": new.interval}
    target = ids.spend_alert_id(new.id)
    event = author.event("harmony.spend_alert.created", target, owner.project, data=told)
    return await rules.add_alert(connection, owner.tenant_id, new, event)


async def _remove_alert(
    connection: Connection, owner: LimitOwner, alert_id: UUID, author: Author
) -> bool:
    target = ids.spend_alert_id(alert_id)
    event = author.event("harmony.spend_alert.deleted", target, owner.project)
    return await rules.remove_alert(
        connection, owner.tenant_id, owner.scope, owner.scope_id, alert_id, event
    )


def _check_tier(tier: str) -> None:
    if tier not in PRICE_TIERS:
        raise wrong_value("tier", tier, PRICE_TIERS)


def _limits_changed(
    owner: LimitOwner,
    values: Mapping[tuple[What, int], int | None],
    model: str,
    mode: Mode | None,
    author: Author,
) -> AuditEvent:
    # Limits of a project have an event type and an id of OpenAI's.
    per = {MINUTE_S: "_per_1_minute", DAY_S: "_per_1_day"}
    changes: dict[str, int | str | None] = {
        f"{what}{per.get(window_s, '')}": value for (what, window_s), value in values.items()
    }
    changes |= {} if mode is None else {"mode": mode}
    if owner.project is not None:
        return author.event(
            "rate_limit.updated", f"rl-{model}", owner.project, changes_requested=changes
        )
    told = {"scope": owner.scope, "model": model, **changes}
    return author.event("harmony.limit.changed", str(owner.scope_id), changes_requested=told)


def _budget_changed(
    owner: LimitOwner, budget: Budget, cap: int | None, author: Author
) -> AuditEvent:
    told = {"scope": owner.scope, "unit": budget.unit, "interval": budget.interval, "cap": cap}
    return author.event(
        "harmony.budget.changed", str(owner.scope_id), owner.project, changes_requested=told
    )


def _check_within(limit: Limit, around: Sequence[Limit]) -> None:
    # A limit above an enclosing one would never be reached.
    for one in around:
        same = (one.what, one.window_s) == (limit.what, limit.window_s)
        if same and one.model in {ALL_MODELS, limit.model} and limit.value > one.value:
            whose = "project" if one.scope == "project" else "organization"
            raise InvalidRequest(
                f"{limit.what} may be {one.value} at most, which the {whose} has.",
                param=limit.what,
            )
