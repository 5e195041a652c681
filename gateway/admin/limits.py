"""Rate limits of tenants, their projects and keys; bodies and objects of openai-python 3.54."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.dialects import postgresql

from gateway import ids
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import required_project
from gateway.admin.routes import PAGE, AdminRoute, cut, page_params
from gateway.admin.transactions import CoreStatement, Transactions, named, of_tenant
from gateway.api.query import list_body
from gateway.audit import COMMAND_LINE
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.limits.rules import ALL_MODELS, DAY_S, MINUTE_S, Budget, Limit
from gateway.limits.stored_bytes import WHOLE_TENANT
from gateway.protocol.base import Count, WireModel
from gateway.protocol.request_errors import unsupported
from gateway.store import audit_log, tenants
from gateway.store.limits import counters
from gateway.store.limits.key_terms import limit_of
from gateway.store.postgres.statements import Statement
from gateway.store.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Table

    from gateway.admin.routes import AdminCall
    from gateway.audit import Author
    from gateway.limits.rules import Mode, Scope, What
    from gateway.protocol.admin_bodies import Json
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

    Values = Mapping[tuple[What, int], int | None]

LIMITS: Final = TABLES["limits"]
API_KEYS: Final = TABLES["api_keys"]

STORAGE_MAX: Final = 1_000
UNLIMITED: Final = 1_000_000_000
"""Number for "no limit", because OpenAI's object always has one. This or more removes a limit."""
RATE_LIMIT_PREFIX: Final = "rl-"


def routes(limits: Limits) -> list[AdminRoute]:
    rates = RateLimitEndpoints(limits)
    all_rates, one = f"{PROJECT}/rate_limits", f"{PROJECT}/rate_limits/{{id}}"
    return [
        AdminRoute("GET", all_rates, "rate_limits.read", rates.list, query=(*PAGE, "before")),
        AdminRoute(
            "POST", one, "rate_limits.write", rates.update, RateLimitUpdate, spans_slashes=True
        ),
    ]


class RateLimitEndpoints:
    """Endpoints of `…/rate_limits`; `rl-*` is for all models together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def list(self, call: AdminCall) -> Json:
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
            call.principal.tenant_id, call.path["project_id"], is_active=True, author=call.author
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


class Limited(NamedTuple):
    """Limited quantity of a field; `window_s` 0: at one moment."""

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


@dataclass(frozen=True, slots=True)
class LimitOwner:
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
        return {"tenant": self.tenant_id, "scope": self.scope, "scope_id": self.scope_id}

    def has(self, one: Limit | Budget) -> bool:
        return (one.scope, one.scope_id) == (self.scope, self.scope_id)

    async def note(self, connection: Connection, event: str, target: str, **details: Any) -> None:
        audit_event = self.author.event(event, target, self.project, **details)
        await audit_log.record(connection, self.tenant_id, audit_event)


class StorageState(NamedTuple):
    tenant: str
    limit: Limit
    stored_bytes: int | None


_LIMIT_KEY: Final = ("scope", "scope_id", "model", "what", "window_s")


def upsert(table: Table, key: Sequence[str], changed: Mapping[str, Any], **values: Any) -> Any:
    added = postgresql.insert(table).values(
        tenant_id=bindparam("tenant"), **named(*key), **changed, **values
    )
    return added.on_conflict_do_update(
        index_elements=["tenant_id", *key], set_={name: added.excluded[name] for name in changed}
    )


_LIMITS: Final = CoreStatement(
    select(LIMITS).where(*of_tenant(LIMITS)).order_by(*(LIMITS.c[name] for name in _LIMIT_KEY))
)
_SET_LIMIT: Final = CoreStatement(
    upsert(LIMITS, _LIMIT_KEY, {**named("value", "mode"), "updated_at": func.now()})
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
    """Limits of tenants, their projects and keys, which are looked up with keys."""

    def __init__(
        self,
        database: Database,
        aliases: Mapping[str, str] | None = None,
        *,
        models: Callable[[], Sequence[str]] = tuple,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        # `aliases` map further names to model ids. Served `models` are shown without limits, too.
        self._database = database
        self._aliases = aliases or {}
        self._models = models
        self._transactions = Transactions(database, forget)

    async def tenant(self, name: str) -> TenantId:
        return (await tenants.tenant_named(self._database, name)).id

    async def of_project(
        self,
        tenant_id: TenantId,
        project_id: str,
        *,
        is_active: bool = False,
        author: Author = COMMAND_LINE,
    ) -> LimitOwner:
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=is_active)
        return LimitOwner(tenant_id, "project", project.id, author)

    async def key(self, tenant_id: TenantId, key_id: UUID) -> LimitOwner:
        """Return a key, federation rule or operator's issuer as an owner of limits, which a key
        shares with its replacements.
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
        async with self._database.runs_transaction() as connection:
            parameters = {"whole": WHOLE_TENANT, "rows_max": STORAGE_MAX}
            rows = await connection.execute(_STORAGE, parameters)
        # Read last: a tenant may be created meanwhile.
        names = {one.id: one.name for one in await tenants.all_tenants(self._database)}
        return [StorageState(names[row.tenant_id], limit_of(row), row.bytes) for row in rows]

    async def by_model(self, owner: LimitOwner) -> dict[str, list[Limit]]:
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
        """Set limits, then adjust the levels of the buckets; if only that fails, these fill at
        their rates.
        """
        model = self._aliases.get(model, model)
        async with self._transactions.changing(owner.tenant_id) as connection:
            before = {
                one.name: one
                for one in await _limits(connection, owner.tenant_id)
                if owner.has(one) and one.model == model
            }
            changed = await set_limits(connection, owner, values, model=model, mode=mode)
        new = [one for one in changed if before.get(one.name) != one]
        await counters.resize(self._database, owner.tenant_id, before, new)
        return changed


async def set_limits(
    connection: Connection,
    owner: LimitOwner,
    values: Values,
    *,
    model: str = ALL_MODELS,
    mode: Mode | None = None,
) -> list[Limit]:
    """Set limits by kind and window (seconds), None removes one; return all of owner and model.

    `mode` applies to the limits in `values`, or if that is empty to all of owner and model. Without
    it each keeps its mode; a new limit is observed if all others are. No limit may exceed one of
    the enclosing scope.
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
                f"{limit.what} may be {one.value} at most, which the {whose} has.", param=limit.what
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
