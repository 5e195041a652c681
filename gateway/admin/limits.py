"""Rate limits, spend limits (budgets) and spend alerts of tenants, their projects and keys.

Bodies and objects are field for field those of openai-python 3.54
(`openai.types.admin.organization`), with additional fields under `harmony`. Amounts on the
wire are in cents, those in the database in nano-dollars.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import orjson
from pydantic import AfterValidator, Field, StringConstraints
from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql

from gateway import ids
from gateway.admin.core import CoreStatement, ResourceRows, insert_row, named, of_tenant
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import required_project
from gateway.admin.routes import (
    ORDERED_PAGE,
    PAGE,
    AdminRoute,
    cut,
    page_params,
)
from gateway.admin.transactions import Transactions
from gateway.api.query import list_body
from gateway.audit import COMMAND_LINE
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.limits.money import CENT, begins
from gateway.limits.rules import ALL_MODELS, DAY_S, MINUTE_S, Budget, Limit, Terms
from gateway.limits.stored_bytes import WHOLE_TENANT
from gateway.protocol.admin_bodies import Json, deleted_body
from gateway.protocol.base import AS_INTEGER, Count, Many, NullableModel, WireModel
from gateway.protocol.request_errors import unsupported
from gateway.store import audit_log, tenants
from gateway.store.limits import alerts, counters, key_terms
from gateway.store.limits.alerts import OPERATORS, SpendAlert, alert_of
from gateway.store.limits.key_terms import budget_of, limit_of
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.store.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import ColumnElement, Table

    from gateway.admin.routes import AdminCall
    from gateway.audit import Author
    from gateway.limits.rules import Interval, Mode, Scope, Unit, What
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

    Values = Mapping[tuple[What, int], int | None]

LIMITS: Final = TABLES["limits"]
BUDGETS: Final = TABLES["budgets"]
SPEND_ALERTS: Final = TABLES["spend_alerts"]
API_KEYS: Final = TABLES["api_keys"]

ORGANIZATION = "/organization"
ALERTS_MAX: Final = 100
STORAGE_MAX: Final = 1_000
"""Limits of stored bytes that are listed."""
CAP_MAX: Final = 2**63 - 1
"""Largest budget: more does not fit into its column."""
UNLIMITED: Final = 1_000_000_000
"""Number that is shown where there is no limit, because OpenAI's object always has a number there.
This or more in one of its fields removes the limit.
"""
CENTS_MAX: Final = 10**11
RECIPIENTS_MAX: Final = 20
RATE_LIMIT_PREFIX: Final = "rl-"
ALERT_EVENT: Final = "harmony.spend_alert"


def routes(limits: Limits) -> list[AdminRoute]:
    rates = RateLimitEndpoints(limits)
    one_rate = f"{PROJECT}/rate_limits/{{id}}"
    every_route = [
        AdminRoute(
            "GET", f"{PROJECT}/rate_limits", "rate_limits.read", rates.list, query=(*PAGE, "before")
        ),
        AdminRoute(
            "POST",
            one_rate,
            "rate_limits.write",
            rates.update,
            RateLimitUpdate,
            spans_slashes=True,
        ),
    ]
    reads: Final = "spend.read"
    writes: Final = "spend.write"
    query = (*ORDERED_PAGE, "before")
    for base, kind in ((ORGANIZATION, "organization"), (PROJECT, "project")):
        spending = SpendEndpoints(limits, kind)
        limit, all_alerts = f"{base}/spend_limit", f"{base}/spend_alerts"
        one = f"{all_alerts}/{{alert_id}}"
        every_route += [
            AdminRoute("GET", limit, reads, spending.limit),
            AdminRoute("POST", limit, writes, spending.set_limit, SpendLimitUpdate),
            AdminRoute("DELETE", limit, writes, spending.delete_limit),
            AdminRoute("GET", all_alerts, reads, spending.alerts, query=query),
            AdminRoute("POST", all_alerts, writes, spending.create_alert, SpendAlertUpdate),
            AdminRoute("GET", one, reads, spending.alert),
            AdminRoute("POST", one, writes, spending.update_alert, SpendAlertUpdate),
            AdminRoute("DELETE", one, writes, spending.delete_alert),
        ]
    return every_route


class RateLimitEndpoints:
    """Endpoints of `…/rate_limits`: one for each model, and `rl-*` for all together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def list(self, call: AdminCall) -> Json:
        """List the limits of each model that is served or has limits."""
        params = page_params(call.request.query_params)
        owner = await self._limits.of_project(call.principal.tenant_id, call.path["project_id"])
        by_model = await self._limits.by_model(owner)
        page, has_more = cut(
            [rate_limit_body(model, limits) for model, limits in by_model.items()], params
        )
        return list_body(page, has_more=has_more)

    async def update(self, call: AdminCall) -> Json:
        body, id_ = await call.body(RateLimitUpdate), call.path["id"]
        owner = await self._limits.of_project(
            call.principal.tenant_id,
            call.path["project_id"],
            is_active=True,
            author=call.caller.author,
        )
        model = id_.removeprefix(RATE_LIMIT_PREFIX)
        models = {*await self._limits.by_model(owner), ALL_MODELS}
        if not id_.startswith(RATE_LIMIT_PREFIX) or model not in models:
            raise ResourceNotFound(
                f"No rate limit with id '{shown(id_)}' was found.",
                code="rate_limit_not_found",
                param="rate_limit_id",
            )
        limits = await self._limits.set_limits(owner, body.values, model=model, mode=body.mode)
        return rate_limit_body(model, limits)


class SpendEndpoints:
    """Endpoints of `…/spend_limit` and `…/spend_alerts` of an organization, or of a project."""

    def __init__(self, limits: Limits, kind: str) -> None:
        self._limits = limits
        self._kind = kind

    async def limit(self, call: AdminCall) -> Json:
        """Return the hard limit per month."""
        state = await self._limits.budget(await self._owner_of(call), "usd", "month")
        if state is None:
            raise _no_spend_limit()
        return {
            "object": f"{self._kind}.spend_limit",
            "currency": "USD",
            "interval": "month",
            "threshold_amount": state.budget.cap // CENT,
            "enforcement": {
                "status": "enforcing" if state.spent >= state.budget.cap else "inactive"
            },
        }

    async def set_limit(self, call: AdminCall) -> Json:
        """Set the limit in cents a month; above it requests get 429."""
        body = await call.body(SpendLimitUpdate)
        owner = await self._owner_of(call, is_active=True)
        await self._limits.set_budget(owner, body.threshold_amount * CENT)
        return await self.limit(call)

    async def delete_limit(self, call: AdminCall) -> Json:
        """Delete the limit; 404 if none is set."""
        owner = await self._owner_of(call, is_active=True)
        if not await self._limits.remove_budget(owner, "usd", "month"):
            raise _no_spend_limit()
        return deleted_body(f"{self._kind}.spend_limit")

    async def alerts(self, call: AdminCall) -> Json:
        """List all alerts, the oldest first; with `order=desc` the newest."""
        params = page_params(call.request.query_params)
        rows = await self._limits.alerts(await self._owner_of(call))
        # Alerts that the operator set beside a budget are not the administrators', and may be in
        # other units and intervals than dollars and months.
        page, has_more = cut([self._body(one) for one in rows if one.percent is None], params)
        return list_body(page, has_more=has_more)

    async def create_alert(self, call: AdminCall) -> Json:
        """Add an alert: recipients and a threshold in cents a month."""
        body = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        return self._body(await self._limits.add_alert(owner, body.threshold, body.channel))

    async def alert(self, call: AdminCall) -> Json:
        """Return an alert; 404 for one of another scope."""
        owner = await self._owner_of(call)
        return self._body(await self._limits.alert(owner, call.path["alert_id"]))

    async def update_alert(self, call: AdminCall) -> Json:
        """Replace both threshold and recipients of an alert."""
        body = await call.body(SpendAlertUpdate)
        owner = await self._owner_of(call, is_active=True)
        changed = await self._limits.change_alert(
            owner, call.path["alert_id"], body.threshold, body.channel
        )
        return self._body(changed)

    async def delete_alert(self, call: AdminCall) -> Json:
        """Delete an alert; 404 for one of another scope."""
        owner, alert_id = await self._owner_of(call, is_active=True), call.path["alert_id"]
        await self._limits.remove_alert(owner, alert_id)
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
        tenant_id, author = call.principal.tenant_id, call.caller.author
        if self._kind == "project":
            return await self._limits.of_project(
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


def _printable(text: str) -> str:
    # The name becomes part of a mail's subject, which is one line.
    if not text.isprintable():
        raise ValueError("must have printable characters alone")
    return text


ADDRESS: Final = (
    r"^[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+)*"
    r"@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
)
"""Pattern of one mailbox in ASCII: RFC 5322's dot-atom without the question mark, which begins an
encoded word of RFC 2047, and a host name."""
Address = Annotated[str, StringConstraints(max_length=254, pattern=ADDRESS)]
Subject = Annotated[str, StringConstraints(max_length=200), AfterValidator(_printable)]
Cents = Annotated[int, Field(ge=0, le=CENTS_MAX), AS_INTEGER]


class Limited(NamedTuple):
    """Limited quantity of a field of a body; `window_s` 0: at one moment."""

    what: What
    window_s: int


class MainLimits(WireModel):
    """Limits that OpenAI has, too."""

    max_requests_per_1_minute: Annotated[Count | None, Limited("requests", MINUTE_S)] = None
    max_tokens_per_1_minute: Annotated[Count | None, Limited("tokens", MINUTE_S)] = None
    max_requests_per_1_day: Annotated[Count | None, Limited("requests", DAY_S)] = None


class RateLimitExtras(WireModel):
    """`harmony` of a rate limit; null takes a limit away, and leaves the mode as it is."""

    max_tokens_per_1_day: Annotated[Count | None, Limited("tokens", DAY_S)] = None
    max_input_tokens_per_1_minute: Annotated[Count | None, Limited("input_tokens", MINUTE_S)] = None
    max_output_tokens_per_1_minute: Annotated[Count | None, Limited("output_tokens", MINUTE_S)] = (
        None
    )
    max_concurrent_responses: Annotated[Count | None, Limited("responses", 0)] = None
    max_stored_bytes: Annotated[Count | None, Limited("stored_bytes", 0)] = None
    max_running_background: Annotated[Count | None, Limited("background_running", 0)] = None
    max_queued_background: Annotated[Count | None, Limited("background_queued", 0)] = None
    mode: Literal["enforce", "observe"] | None = None


class KeyLimits(RateLimitExtras, MainLimits):
    """`harmony.limits` of a key that is made: for all models together, by the names that limits of
    a project have.
    """

    @property
    def values(self) -> Values:
        # Nulls are left out.
        return {limited: value for limited, value in _sent(self) if value is not None}


class RateLimitUpdate(MainLimits):
    """`POST …/rate_limits/{id}`: omitted fields stay, null takes a limit away; so does a number
    of 1,000,000,000 or more where it stands outside of `harmony`. The mode alone is that of all
    limits of the model.
    """

    batch_1_day_max_input_tokens: Count | None = None
    max_audio_megabytes_per_1_minute: Count | None = None
    max_images_per_1_minute: Count | None = None
    harmony: RateLimitExtras | None = None

    @property
    def mode(self) -> Mode | None:
        # None leaves the mode unchanged.
        return None if self.harmony is None else self.harmony.mode

    @property
    def values(self) -> Values:
        """Return the new values by limit; None removes a limit.

        Raises `InvalidRequest` for limits that are not supported.
        """
        for name in self.model_fields_set - _FIELDS.keys() - {"harmony"}:
            if getattr(self, name) is not None:
                raise unsupported(name, "Leave it out: this server limits requests and tokens")
        return dict(_sent(self)) | ({} if self.harmony is None else dict(_sent(self.harmony)))


def _limits_in(model: type[WireModel]) -> dict[str, Limited]:
    return {
        name: one
        for name, field in model.model_fields.items()
        for one in field.metadata
        if isinstance(one, Limited)
    }


_FIELDS: Final = _limits_in(MainLimits)
_EXTRA_FIELDS: Final = _limits_in(RateLimitExtras)
_NEEDED: Final = frozenset({"max_requests_per_1_minute", "max_tokens_per_1_minute"})


def _sent(body: WireModel) -> Iterator[tuple[tuple[What, int], int | None]]:
    # OpenAI's value for "no limit" becomes None.
    for name, limited in _limits_in(type(body)).items():
        if name in body.model_fields_set:
            value = getattr(body, name)
            yield limited, None if name in _FIELDS and (value or 0) >= UNLIMITED else value


def rate_limit_body(model: str, limits: Iterable[Limit]) -> Json:
    """Return `project.rate_limit` from the limits of a project for a model."""
    values = {(one.what, one.window_s): one.value for one in limits}
    modes = {one.mode for one in limits}
    body: Json = {
        "id": f"{RATE_LIMIT_PREFIX}{model}", "object": "project.rate_limit", "model": model
    }  # fmt: skip
    for name, what in _FIELDS.items():
        if (value := values.get(what)) is not None or name in _NEEDED:
            body[name] = UNLIMITED if value is None else value
    extras = {name: values[what] for name, what in _EXTRA_FIELDS.items() if what in values}
    mode = "observe" if modes == {"observe"} else "enforce"
    return {**body, "harmony": {**extras, "mode": mode}}


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
        # In nano-dollars.
        return self.threshold_amount * CENT

    @property
    def channel(self) -> Json:
        # In the form that is stored and shown.
        return self.notification_channel.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class LimitOwner:
    """Owner of limits and budgets: a tenant, or one of its projects or keys; and, for the audit
    log, the `author` of changes of these.
    """

    tenant_id: TenantId
    scope: Scope
    scope_id: UUID
    author: Author = COMMAND_LINE

    @classmethod
    def of_tenant(cls, tenant_id: TenantId) -> LimitOwner:
        return cls(tenant_id, "tenant", tenant_id)

    @property
    def project(self) -> UUID | None:
        return self.scope_id if self.scope == "project" else None

    @property
    def row(self) -> dict[str, Any]:
        # The parameters of `of_scope`.
        return {"tenant": self.tenant_id, "scope": self.scope, "scope_id": self.scope_id}

    def alert(
        self, unit: Unit, interval: Interval, threshold: int, channel: Mapping[str, Any]
    ) -> SpendAlert:
        # A new one of this owner.
        return SpendAlert(
            ids.new_uuid(), self.scope, self.scope_id, unit, interval, threshold, dict(channel)
        )

    def has(self, one: Limit | Budget) -> bool:
        return (one.scope, one.scope_id) == (self.scope, self.scope_id)

    async def note(self, connection: Connection, event: str, target: str, **details: Any) -> None:
        audit_event = self.author.event(event, target, self.project, **details)
        await audit_log.record(connection, self.tenant_id, audit_event)


class BudgetState(NamedTuple):
    """A budget, and its spending in the current interval."""

    budget: Budget
    spent: int


class StorageState(NamedTuple):
    """A limit of stored bytes, its tenant, and what was last measured; None: not measured yet."""

    tenant: str
    limit: Limit
    stored_bytes: int | None


_LIMIT_KEY: Final = ("scope", "scope_id", "model", "what", "window_s")
_BUDGET_KEY: Final = ("scope", "scope_id", "unit", "span")


def _upsert(table: Table, key: Sequence[str], changed: Mapping[str, Any], **values: Any) -> Any:
    # Inserts a row, or changes the one of the same key.
    added = postgresql.insert(table).values(
        tenant_id=bindparam("tenant"), **named(*key), **changed, **values
    )
    return added.on_conflict_do_update(
        index_elements=["tenant_id", *key],
        set_={name: added.excluded[name] for name in changed},
    )


def _of_scope(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    return of_tenant(table, "scope", "scope_id", *columns)


_LIMITS: Final = CoreStatement(
    select(LIMITS).where(*of_tenant(LIMITS)).order_by(*(LIMITS.c[name] for name in _LIMIT_KEY))
)
_SET_LIMIT: Final = CoreStatement(
    _upsert(LIMITS, _LIMIT_KEY, {**named("value", "mode"), "updated_at": func.now()})
)
_REMOVE_LIMIT: Final = CoreStatement(delete(LIMITS).where(*of_tenant(LIMITS, *_LIMIT_KEY)))
_STORAGE: Final = Statement("""
SELECT limits.*, stored.bytes
FROM limits
LEFT JOIN stored_bytes AS stored
    ON stored.tenant_id = limits.tenant_id AND stored.project_id = CASE limits.scope
       WHEN 'project' THEN limits.scope_id ELSE CAST(:whole AS uuid) END
WHERE limits.what = 'stored_bytes'
ORDER BY coalesce(stored.bytes, 0) / greatest(CAST(limits.value AS double precision), 1) DESC,
         limits.tenant_id, limits.scope_id
LIMIT :rows_max
""")
_BUDGETS: Final = CoreStatement(
    select(BUDGETS).where(*of_tenant(BUDGETS)).order_by(*(BUDGETS.c[name] for name in _BUDGET_KEY))
)
_SET_BUDGET: Final = CoreStatement(
    _upsert(BUDGETS, _BUDGET_KEY, named("id", "cap", "mode"), created_at=func.now())
)
_REMOVE_BUDGET: Final = CoreStatement(delete(BUDGETS).where(*of_tenant(BUDGETS, *_BUDGET_KEY)))
_ALERTS: Final = CoreStatement(
    select(SPEND_ALERTS)
    .where(*_of_scope(SPEND_ALERTS))
    .order_by(SPEND_ALERTS.c.created_at, SPEND_ALERTS.c.id)
)
_ALERT_ROWS: Final = ResourceRows(
    SPEND_ALERTS,
    alert_of,
    ids.parse_spend_alert_id,
    _unknown_alert,
    SPEND_ALERTS.c.scope == bindparam("scope"),
    SPEND_ALERTS.c.scope_id == bindparam("scope_id"),
)
_CHANGE_ALERT: Final = CoreStatement(
    update(SPEND_ALERTS)
    .where(*_of_scope(SPEND_ALERTS, "id"))
    .values(threshold=bindparam("threshold"), channel=bindparam("channel"))
    .returning(SPEND_ALERTS)
)
_REMOVE_ALERT: Final = CoreStatement(delete(SPEND_ALERTS).where(*_of_scope(SPEND_ALERTS, "id")))
_PROJECT_OF_KEY: Final = CoreStatement(
    select(func.coalesce(API_KEYS.c.project_id, API_KEYS.c.tenant_id)).where(
        *of_tenant(API_KEYS, "id")
    )
)
# Raw SQL: of three tables, which have nothing else in common.
_IS_KEY: Final = Statement("""
SELECT EXISTS (SELECT FROM api_keys WHERE tenant_id = :tenant AND id = :key)
    OR EXISTS (SELECT FROM federation_rules
               WHERE tenant_id = :tenant AND id = :key AND deleted_at IS NULL)
    OR EXISTS (SELECT FROM identity_providers
               WHERE id = :key AND tenants IS NOT NULL AND deleted_at IS NULL)
""")
# Raw SQL: recursive. The key that others replaced, one after the other.
_FIRST_OF_LINE: Final = Statement("""
WITH RECURSIVE line AS (
    SELECT CAST(:key AS uuid) AS id, 0 AS older
    UNION ALL
    SELECT k.id, line.older + 1 FROM api_keys AS k JOIN line ON k.replaced_by = line.id
    WHERE k.tenant_id = :tenant
)
SELECT id FROM line ORDER BY older DESC LIMIT 1
""")


class Limits:
    """Limits, budgets and spend alerts of tenants, their projects and keys.

    Changes take effect at other replicas within `auth.key_cache_ttl_s`, because limits are looked
    up with keys. Each method takes an owner whose limits the caller may change.
    """

    def __init__(
        self,
        database: Database,
        aliases: Mapping[str, str] | None = None,
        *,
        models: Callable[[], Sequence[str]] = tuple,
        forget: Callable[[], None] | None = None,
    ) -> None:
        """Count requests by the model ids that `aliases` maps further names to.

        Limits of the served `models` are shown though they have none. `forget`, called after a
        change, makes this process look up keys again.
        """
        self._database = database
        self._aliases = aliases or {}
        self._models = models
        self._forget = forget or (lambda: None)
        self._transactions = Transactions(database, self._forget)

    async def tenant(self, name: str) -> TenantId:
        """Return the id of the tenant with this name. Raises `ResourceNotFound`."""
        return (await tenants.tenant_named(self._database, name)).id

    async def of_project(
        self,
        tenant_id: TenantId,
        project_id: str,
        *,
        is_active: bool = False,
        author: Author = COMMAND_LINE,
    ) -> LimitOwner:
        """Return a project as an owner of limits.

        Raises `ResourceNotFound`, and with `is_active` `InvalidRequest` for an archived one.
        """
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=is_active)
        return LimitOwner(tenant_id, "project", project.id, author)

    async def key(self, tenant_id: TenantId, key_id: UUID) -> LimitOwner:
        """Return a key, federation rule or operator's issuer as an owner of limits.

        A key and its replacements share one owner. Raises `ResourceNotFound` for one that the
        tenant does not have.
        """
        place = {"tenant": tenant_id, "key": key_id}
        async with self._database.owner_transaction() as connection:
            if not await connection.scalar(_IS_KEY, place):
                raise ResourceNotFound(
                    f"No API key with id '{ids.api_key_id(key_id)}' was found.",
                    code="api_key_not_found",
                    param="key_id",
                )
            return LimitOwner(tenant_id, "key", await connection.scalar(_FIRST_OF_LINE, place))

    async def limits(self, tenant_id: TenantId) -> list[Limit]:
        async with self._transactions.reading(tenant_id) as connection:
            return await _limits(connection, tenant_id)

    async def storage(self) -> list[StorageState]:
        """Return the limits of stored bytes of all tenants, the fullest first."""
        names = {one.id: one.name for one in await tenants.all_tenants(self._database)}
        async with self._database.runs_transaction() as connection:
            parameters = {"whole": WHOLE_TENANT, "rows_max": STORAGE_MAX}
            rows = await connection.execute(_STORAGE, parameters)
        return [
            StorageState(names[row.tenant_id], limit_of(row), row.bytes)
            for row in rows
            if row.tenant_id in names
        ]

    async def by_model(self, owner: LimitOwner) -> dict[str, list[Limit]]:
        """Return the owner's limits by model, for served models and those with limits."""
        by_model: dict[str, list[Limit]] = {model: [] for model in sorted(self._models())}
        for limit in await self.limits(owner.tenant_id):
            if owner.has(limit):
                by_model.setdefault(limit.model, []).append(limit)
        return by_model

    async def set_limits(
        self,
        owner: LimitOwner,
        values: Values,
        *,
        model: str = ALL_MODELS,
        mode: Mode | None = None,
    ) -> list[Limit]:
        """Call `set_limits` in its own transaction, then adjust the levels of the buckets.

        `model` may be any of the model's names. If only the second step fails (`StoreError`), the
        limits are in effect, and the buckets fill at their rates.
        """
        model = self._aliases.get(model, model)
        async with self._database.transaction(owner.tenant_id) as connection:
            before = {
                one.name: one
                for one in await _limits(connection, owner.tenant_id)
                if owner.has(one) and one.model == model
            }
            changed = await set_limits(connection, owner, values, model=model, mode=mode)
        new = [one for one in changed if before.get(one.name) != one]
        await counters.resize(self._database, owner.tenant_id, before, new)
        self._forget()
        return changed

    async def budgets(self, tenant_id: TenantId) -> list[BudgetState]:
        async with self._transactions.reading(tenant_id) as connection:
            rows = await connection.execute(_BUDGETS, {"tenant": tenant_id})
        states, now = [], datetime.now(UTC)
        for budget in map(budget_of, rows):
            starts_at = begins(budget.interval, now)
            spent = await alerts.spent(self._database, tenant_id, budget.meter, starts_at)
            states.append(BudgetState(budget, spent))
        return states

    async def terms(self, owner: LimitOwner) -> Terms:
        """Return the limits and budgets that are the owner's own."""
        async with self._transactions.reading(owner.tenant_id) as connection:
            limits = await _limits(connection, owner.tenant_id)
            rows = await connection.execute(_BUDGETS, {"tenant": owner.tenant_id})
        budgets = filter(owner.has, map(budget_of, rows))
        return Terms(tuple(filter(owner.has, limits)), tuple(budgets))

    async def budget(self, owner: LimitOwner, unit: Unit, interval: Interval) -> BudgetState | None:
        for one in await self.budgets(owner.tenant_id):
            if owner.has(one.budget) and (one.budget.unit, one.budget.interval) == (unit, interval):
                return one
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
        self,
        owner: LimitOwner,
        unit: Unit,
        interval: Interval,
        *,
        with_alerts: bool = False,
    ) -> bool:
        """Delete the owner's budget; with `with_alerts` the operator's alerts of it, too.

        Return False if there was none.
        """
        gone = Budget(EVERYONE, owner.scope, owner.scope_id, unit, interval, 0)
        async with self._transactions.changing(owner.tenant_id) as connection:
            if with_alerts:
                await _set_operators_alerts(connection, owner, gone, {})
            is_gone = bool(await connection.count(_REMOVE_BUDGET, _budget_row(owner, gone)))
            if is_gone:
                await _note_budget(connection, owner, gone, None)
        return is_gone

    async def alerts(self, owner: LimitOwner) -> list[SpendAlert]:
        # The oldest first.
        async with self._transactions.reading(owner.tenant_id) as connection:
            return await _alerts_of(connection, owner)

    async def add_alert(
        self,
        owner: LimitOwner,
        threshold: int,
        channel: Mapping[str, Any],
    ) -> SpendAlert:
        """Add an alert for when `threshold` nano-dollars are spent in a month.

        Raises `InvalidRequest` for too many.
        """
        async with self._transactions.changing(owner.tenant_id) as connection:
            _check_count(len(await _alerts_of(connection, owner)) + 1)
            alert = owner.alert("usd", "month", threshold, channel)
            return await _add_alert(connection, owner, alert)

    async def alert(self, owner: LimitOwner, alert_id: str) -> SpendAlert:
        async with self._transactions.reading(owner.tenant_id) as connection:
            return await _administrators_alert(connection, owner, alert_id)

    async def change_alert(
        self, owner: LimitOwner, alert_id: str, threshold: int, channel: Mapping[str, Any]
    ) -> SpendAlert:
        """Change an administrator's alert. With another threshold it fires again.

        Raises `ResourceNotFound`.
        """
        async with self._transactions.changing(owner.tenant_id) as connection:
            before = await _administrators_alert(connection, owner, alert_id)
            values = {"id": before.id, "threshold": threshold, "channel": orjson.dumps(channel)}
            changed = await connection.execute(_CHANGE_ALERT, owner.row | values)
            # Only the number of recipients: an audit log cannot be erased.
            recipients = len(channel.get("recipients", ()))
            data = {
                "threshold": threshold,
                "notification_channel": {"type": channel["type"], "recipients": recipients},
            }
            await owner.note(connection, f"{ALERT_EVENT}.updated", alert_id, changes_requested=data)
        if before.threshold != threshold:
            await alerts.again(self._database, owner.tenant_id, before.id)
        return alert_of(changed.one())

    async def remove_alert(self, owner: LimitOwner, alert_id: str) -> None:
        async with self._transactions.changing(owner.tenant_id) as connection:
            alert = await _administrators_alert(connection, owner, alert_id)
            await _remove_alert(connection, owner, alert.id)

    async def _has_prices(self, tenant_id: TenantId) -> bool:
        now = datetime.now(UTC)
        prices = await key_terms.valid_prices(self._database)
        return any(one.tenant_id in {tenant_id, EVERYONE} and one.is_valid(now) for one in prices)


async def set_limits(
    connection: Connection,
    owner: LimitOwner,
    values: Values,
    *,
    model: str = ALL_MODELS,
    mode: Mode | None = None,
) -> list[Limit]:
    """Set limits by kind and window (seconds); None removes a limit.

    Returns all limits of owner and model. `mode` applies to the limits in `values`, or if that is
    empty to all of owner and model. Without it each keeps its mode; a new limit is observed if all
    others are, otherwise enforced. Raises `InvalidRequest`, also for a limit above one of the
    enclosing scope (a project's tenant, a key's project).
    """
    existing = await _limits(connection, owner.tenant_id)
    there = {
        (one.what, one.window_s): one for one in existing if owner.has(one) and one.model == model
    }
    wanted = values
    if not values and mode is not None:
        wanted = {what: one.value for what, one in there.items()}
    if not wanted:
        raise InvalidRequest("There is nothing to change.")
    around = await _scopes_around(connection, owner)
    enclosing = [one for one in existing if (one.scope, one.scope_id) in around]
    is_observed = bool(there) and all(one.mode == "observe" for one in there.values())
    for (what, window_s), value in wanted.items():
        own = there.get((what, window_s))
        kept: Mode = own.mode if own is not None else "observe" if is_observed else "enforce"
        limit = Limit(owner.scope, owner.scope_id, what, value or 0, window_s, model, mode or kept)
        limit.check()
        row = owner.row | {"model": model, "what": what, "window_s": window_s}
        if value is None:
            await connection.execute(_REMOVE_LIMIT, row)
            there.pop((what, window_s), None)
            continue
        if values:
            _check_within(limit, enclosing)
        await connection.execute(_SET_LIMIT, row | {"value": value, "mode": limit.mode})
        there[what, window_s] = limit
    await _note_limits(connection, owner, values, model, mode)
    return [there[name] for name in sorted(there)]


async def _limits(connection: Connection, tenant_id: TenantId) -> list[Limit]:
    return [limit_of(row) for row in await connection.execute(_LIMITS, {"tenant": tenant_id})]


async def _scopes_around(
    connection: Connection, owner: LimitOwner
) -> Collection[tuple[Scope, UUID]]:
    # Limits of an owner may not exceed those of these.
    if owner.scope == "tenant":
        return ()
    tenant: tuple[Scope, UUID] = ("tenant", owner.tenant_id)
    if owner.scope != "key":
        return (tenant,)
    place = {"tenant": owner.tenant_id, "id": owner.scope_id}
    project = await connection.scalar(_PROJECT_OF_KEY, place)
    return (tenant, ("project", project))


def _check_within(limit: Limit, around: Iterable[Limit]) -> None:
    # A limit above an enclosing one would never be reached.
    for one in around:
        same = (one.what, one.window_s) == (limit.what, limit.window_s)
        if same and one.model in {ALL_MODELS, limit.model} and limit.value > one.value:
            whose = "project" if one.scope == "project" else "organization"
            raise InvalidRequest(
                f"{limit.what} may be {one.value} at most, which the {whose} has.",
                param=limit.what,
            )


async def _note_limits(
    connection: Connection, owner: LimitOwner, values: Values, model: str, mode: Mode | None
) -> None:
    # Limits of a project have an event type and an id of OpenAI's.
    per = {MINUTE_S: "_per_1_minute", DAY_S: "_per_1_day"}
    changes: dict[str, int | str | None] = {
        f"{what}{per.get(window_s, '')}": value for (what, window_s), value in values.items()
    }
    changes |= {} if mode is None else {"mode": mode}
    event, target = "rate_limit.updated", f"{RATE_LIMIT_PREFIX}{model}"
    if owner.project is None:
        event, target = "harmony.limit.changed", str(owner.scope_id)
        changes = {"scope": owner.scope, "model": model, **changes}
    await owner.note(connection, event, target, changes_requested=changes)


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


async def _administrators_alert(
    connection: Connection, owner: LimitOwner, alert_id: str
) -> SpendAlert:
    alert = await _ALERT_ROWS.get(connection, alert_id, **owner.row)
    if alert.percent is not None:
        raise _unknown_alert(alert_id)
    return alert


def _check_count(count: int) -> None:
    if count > ALERTS_MAX:
        raise InvalidRequest(f"There may be {ALERTS_MAX} spend alerts at most.")


async def _set_operators_alerts(
    connection: Connection,
    owner: LimitOwner,
    budget: Budget,
    thresholds: Mapping[int, int],
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
        alert = owner.alert(budget.unit, budget.interval, threshold, channel)
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
