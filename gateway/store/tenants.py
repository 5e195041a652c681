"""Tenants, their policies and their keys, for operators; the look-up that makes a key a tenant.

Names are the operator's, checked by `services.access`. Times are the database's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Final, TypedDict

from sqlalchemy import func, insert, select, text, update

from gateway.store.tables import APP_ROLE, api_keys, tenants
from gateway.tenancy import ApiKey, Principal, Tenant, TenantId, TenantPolicy

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.engine import Database
    from gateway.store.execution import Row
    from gateway.tenancy import Dialect, OnDisconnect, ReasoningSummary, ServiceTierMax

_FIND_PRINCIPAL: Final = text("SELECT * FROM find_principal(:key_hash)")
DEFAULT_POLICY: Final = TenantPolicy()
DEFAULT_DIALECT: Final[Dialect] = "openai"
"""Of a key that was made before there were others."""
_TAKE_ROLE: Final = text("SELECT set_config('role', :role, true)")
_KEY = (
    api_keys.c.id,
    api_keys.c.tenant_id,
    api_keys.c.name,
    api_keys.c.hint,
    api_keys.c.created_at,
    api_keys.c.disabled_at,
    api_keys.c.dialect,
)
_TENANT = (tenants.c.id, tenants.c.name, tenants.c.created_at, tenants.c.disabled_at)


@dataclass(frozen=True, slots=True)
class OwnPolicy:
    """What the operator decided for this tenant; None where the setting counts."""

    on_disconnect: OnDisconnect | None = None
    log_retention_s: int | None = None
    response_retention_s: int | None = None
    background_running_max: int | None = None
    background_queued_max: int | None = None
    reasoning_summary: ReasoningSummary | None = None
    reasoning_budget_tokens: int | None = None
    service_tier_max: ServiceTierMax | None = None

    def over(self, defaults: TenantPolicy) -> TenantPolicy:
        """What counts: its own where it has one, else the default."""
        own = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(defaults, **own)


class PolicyChanges(TypedDict, total=False):
    """What is to become of a tenant's own policy: None takes back, what is left out stays."""

    on_disconnect: OnDisconnect | None
    log_retention_s: int | None
    response_retention_s: int | None
    background_running_max: int | None
    background_queued_max: int | None
    reasoning_summary: ReasoningSummary | None
    reasoning_budget_tokens: int | None
    service_tier_max: ServiceTierMax | None


_POLICY = tuple(tenants.c[field.name] for field in fields(OwnPolicy))


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that is made: `hash` is the HMAC of its secret, `hint` its last characters."""

    id: UUID
    tenant_id: TenantId
    name: str
    hint: str
    hash: bytes
    dialect: Dialect = "openai"


def _tenant(row: Row) -> Tenant:
    return Tenant(TenantId(row.id), row.name, row.created_at, row.disabled_at)


def _own_policy(row: Row) -> OwnPolicy:
    return OwnPolicy(**{field.name: getattr(row, field.name) for field in fields(OwnPolicy)})


def _key(row: Row) -> ApiKey:
    return ApiKey(
        id=row.id,
        tenant_id=TenantId(row.tenant_id),
        name=row.name,
        hint=row.hint,
        created_at=row.created_at,
        disabled_at=row.disabled_at,
        dialect=row.dialect or DEFAULT_DIALECT,
    )


async def insert_tenant(database: Database, tenant_id: TenantId, name: str) -> Tenant:
    """Raises `StoreConflict` (uq_tenants_name) when the name is taken."""
    statement = insert(tenants).values(id=tenant_id, name=name, created_at=func.now())
    async with database.owner_transaction() as connection:
        return _tenant((await connection.execute(statement.returning(*_TENANT))).one())


async def all_tenants(database: Database) -> list[Tenant]:
    """By name."""
    async with database.owner_transaction() as connection:
        rows = await connection.execute(select(*_TENANT).order_by(tenants.c.name))
        return [_tenant(row) for row in rows]


async def find_tenant(database: Database, name: str) -> Tenant | None:
    """The tenant of that name, disabled ones included."""
    async with database.owner_transaction() as connection:
        rows = await connection.execute(select(*_TENANT).where(tenants.c.name == name))
        row = rows.one_or_none()
    return _tenant(row) if row else None


async def disable_tenant(database: Database, name: str) -> Tenant | None:
    """Disable it, if it is not already; None when there is no such tenant."""
    statement = (
        update(tenants)
        .where(tenants.c.name == name)
        .values(disabled_at=func.coalesce(tenants.c.disabled_at, func.now()))
    )
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement.returning(*_TENANT))).one_or_none()
    return _tenant(row) if row else None


async def find_policy(database: Database, name: str) -> tuple[Tenant, OwnPolicy] | None:
    """The tenant of that name with its own policy."""
    statement = select(*_TENANT, *_POLICY).where(tenants.c.name == name)
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return (_tenant(row), _own_policy(row)) if row else None


async def set_policy(
    database: Database, name: str, changes: PolicyChanges
) -> tuple[Tenant, OwnPolicy] | None:
    """Change a tenant's own policy; None when there is no such tenant.

    Raises `StoreConflict` for a value that the table refuses. `changes` must not be empty.
    """
    statement = update(tenants).where(tenants.c.name == name).values(**changes)
    async with database.owner_transaction() as connection:
        result = await connection.execute(statement.returning(*_TENANT, *_POLICY))
        row = result.one_or_none()
    return (_tenant(row), _own_policy(row)) if row else None


async def insert_key(database: Database, new: NewKey) -> ApiKey:
    """Raises `StoreConflict` when the tenant is unknown."""
    statement = insert(api_keys).values(
        tenant_id=new.tenant_id,
        id=new.id,
        name=new.name,
        hint=new.hint,
        hash=new.hash,
        dialect=new.dialect,
        created_at=func.now(),
    )
    async with database.owner_transaction() as connection:
        return _key((await connection.execute(statement.returning(*_KEY))).one())


async def keys(database: Database, tenant_id: TenantId | None) -> list[ApiKey]:
    """A tenant's keys, or (None) all of them, the oldest first."""
    statement = select(*_KEY).order_by(api_keys.c.created_at, api_keys.c.id)
    if tenant_id is not None:
        statement = statement.where(api_keys.c.tenant_id == tenant_id)
    async with database.owner_transaction() as connection:
        return [_key(row) for row in await connection.execute(statement)]


async def disable_key(database: Database, tenant_id: TenantId, key_id: UUID) -> ApiKey | None:
    """Disable it, if it is not already; None when there is no such key."""
    statement = (
        update(api_keys)
        .where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
        .values(disabled_at=func.coalesce(api_keys.c.disabled_at, func.now()))
    )
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement.returning(*_KEY))).one_or_none()
    return _key(row) if row else None


async def find_principal(
    database: Database, key_hash: bytes, defaults: TenantPolicy = DEFAULT_POLICY
) -> Principal | None:
    """Whose key this is; None when it is unknown, or disabled, or its tenant is.

    Its policy is the tenant's own, and `defaults` where it has none. Runs as the role of tenants,
    which can see a key only by the hash of its secret.
    """
    async with database.owner_transaction() as connection:
        await connection.execute(_TAKE_ROLE, {"role": APP_ROLE})
        row = (await connection.execute(_FIND_PRINCIPAL, {"key_hash": key_hash})).one_or_none()
    if row is None or not row.is_enabled:
        return None
    return Principal(
        TenantId(row.tenant_id),
        row.tenant_name,
        row.key_id,
        _own_policy(row).over(defaults),
        row.dialect or DEFAULT_DIALECT,
    )
