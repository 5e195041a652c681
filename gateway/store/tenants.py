from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.audit import COMMAND_LINE
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.store import audit_log
from gateway.store.callers import DEFAULT_DIALECT, key_terms, own_policy
from gateway.store.postgres.statements import Statement
from gateway.store.tables.columns import typed
from gateway.store.tables.tenants import api_keys
from gateway.tenancy import ApiKey, ProjectId, Tenant, TenantId
from gateway.tenancy.policy import POLICY_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.audit import AuditEvent, Author
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import Dialect, KeyKind
    from gateway.tenancy.policy import OwnPolicy, PolicyChanges


_TENANT: Final = ", ".join(field.name for field in fields(Tenant))
_POLICY: Final = ", ".join(POLICY_VALUES)
KEY_COLUMNS: Final = ", ".join(typed(api_keys, without="hash pepper_id"))
"""All but the hash, which the role of tenants may not read."""
_INSERT_TENANT: Final = Statement(f"""
INSERT INTO tenants (id, name, created_at) VALUES (:id, :name, now()) RETURNING {_TENANT}
""")  # noqa: S608 - constants only
# In the order that Python has, too: lists are cut behind a name.
_ALL_TENANTS: Final = Statement(f'SELECT {_TENANT} FROM tenants ORDER BY name COLLATE "C"')  # noqa: S608
_DISABLE_TENANT: Final = Statement(f"""
UPDATE tenants SET disabled_at = coalesce(disabled_at, now()) WHERE id = :id
RETURNING {_TENANT}
""")  # noqa: S608 - constants only
_FIND_POLICY: Final = Statement(f"""
SELECT {_TENANT}, {_POLICY} FROM tenants WHERE name = :name
""")  # noqa: S608 - constants only
_SET_POLICY: Final = f"""
UPDATE tenants SET {{changes}} WHERE id = :id RETURNING {_TENANT}, {_POLICY}
"""  # noqa: S608 - constants only
_INSERT_KEY: Final = Statement(f"""
INSERT INTO api_keys (tenant_id, id, name, hint, hash, dialect, project_id, kind, pepper_id,
                      created_at)
VALUES (:tenant_id, :id, :name, :hint, :hash, :dialect, :project_id, :kind, :pepper_id, now())
RETURNING {KEY_COLUMNS}
""")  # noqa: S608 - constants only
_KEYS: Final = Statement(f"""
SELECT {KEY_COLUMNS} FROM api_keys
WHERE CAST(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id
ORDER BY created_at, id
""")  # noqa: S608 - constants only
# Replicas write the same key each in its own time: one that was written just now stays.
_NOTE_USES: Final = Statement("""
UPDATE api_keys SET last_used_at = now()
WHERE tenant_id = :tenant AND id = ANY(CAST(:ids AS uuid[]))
  AND (last_used_at IS NULL
       OR last_used_at < now() - make_interval(secs => CAST(:interval_s AS double precision)))
""")
_HASH_AGAIN: Final = Statement("""
UPDATE api_keys SET hash = :hash, pepper_id = :pepper_id WHERE tenant_id = :tenant AND id = :id
""")
_DISABLE_KEY: Final = Statement(f"""
UPDATE api_keys SET disabled_at = coalesce(disabled_at, now())
WHERE tenant_id = :tenant_id AND id = :id
RETURNING {KEY_COLUMNS}
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key: `hash` is the HMAC of its secret, `hint` its last characters."""

    id: UUID
    tenant_id: TenantId
    name: str
    hint: str
    hash: bytes
    dialect: Dialect = "openai"
    project_id: ProjectId | None = None
    kind: KeyKind = "project"
    pepper_id: int | None = None


def _tenant(row: Row) -> Tenant:
    # `row` begins with `_TENANT`.
    return Tenant(*row[: len(fields(Tenant))])


def _with_policy(row: Row) -> tuple[Tenant, OwnPolicy]:
    return _tenant(row), own_policy(row[-len(POLICY_VALUES) :])


def key_of_row(row: Row) -> ApiKey:
    # The row has `KEY_COLUMNS`.
    return ApiKey(
        id=row.id,
        tenant_id=TenantId(row.tenant_id),
        name=row.name,
        hint=row.hint,
        created_at=row.created_at,
        disabled_at=row.disabled_at,
        dialect=row.dialect or DEFAULT_DIALECT,
        project_id=row.project_id and ProjectId(row.project_id),
        terms=key_terms(row),
        last_used_at=row.last_used_at,
        replaced_by=row.replaced_by,
        created_by=row.created_by,
    )


async def _change(
    database: Database,
    tenant_id: UUID,
    statement: Statement,
    parameters: Mapping[str, Any],
    event: AuditEvent,
) -> Row:
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement, parameters)).one()
        await audit_log.record(connection, tenant_id, event)
        return row


async def insert_tenant(
    database: Database, tenant_id: TenantId, name: str, author: Author = COMMAND_LINE
) -> Tenant:
    """Insert a tenant. Raises `StoreConflict` (uq_tenants_name)."""
    event = author.event("harmony.tenant.created", str(tenant_id), data={"name": name})
    new = {"id": tenant_id, "name": name}
    return _tenant(await _change(database, tenant_id, _INSERT_TENANT, new, event))


async def all_tenants(database: Database) -> list[Tenant]:
    async with database.runs_transaction() as connection:
        return [_tenant(row) for row in await connection.execute(_ALL_TENANTS)]


async def tenant_named(database: Database, name: str, *, is_purged: bool = False) -> Tenant:
    """Return a tenant. One that was purged, whose later rows nothing would remove, is refused
    unless `is_purged`.
    """
    tenant, _ = await find_policy(database, name)
    if tenant.purged_at is not None and not is_purged:
        raise InvalidRequest(
            f"Tenant {name!r} was deleted and purged; its name cannot be used again.",
            param="tenant",
        )
    return tenant


async def find_policy(database: Database, name: str) -> tuple[Tenant, OwnPolicy]:
    async with database.runs_transaction() as connection:
        for row in await connection.execute(_FIND_POLICY, {"name": name}):
            return _with_policy(row)
    names = [tenant.name for tenant in await all_tenants(database)]
    close = " or ".join(map(repr, get_close_matches(name, names)))
    hint = f" Did you mean {close}?" if close else ""
    raise ResourceNotFound(f"There is no tenant {shown(name)!r}.{hint}", param="tenant")


async def disable_tenant(database: Database, name: str, author: Author = COMMAND_LINE) -> Tenant:
    id_ = (await tenant_named(database, name)).id
    event = author.event("harmony.tenant.disabled", str(id_))
    return _tenant(await _change(database, id_, _DISABLE_TENANT, {"id": id_}, event))


async def set_policy(
    database: Database, name: str, changes: PolicyChanges, author: Author = COMMAND_LINE
) -> tuple[Tenant, OwnPolicy]:
    """Change a tenant's own policy; `changes` must not be empty.

    Raises `StoreConflict` for a value that the table refuses.
    """
    id_ = (await tenant_named(database, name)).id
    changed = ", ".join(f"{name} = :{name}" for name in POLICY_VALUES if name in changes)
    statement = Statement(_SET_POLICY.format(changes=changed))
    event = author.event("harmony.tenant.updated", str(id_), changes_requested=dict(changes))
    return _with_policy(await _change(database, id_, statement, {**changes, "id": id_}, event))


async def insert_key(database: Database, new: NewKey, author: Author = COMMAND_LINE) -> ApiKey:
    """Insert a key. Raises `StoreConflict` when the tenant is unknown."""
    event = author.event(
        "api_key.created", ids.api_key_id(new.id), new.project_id, data={"scopes": []}
    )
    return key_of_row(await _change(database, new.tenant_id, _INSERT_KEY, asdict(new), event))


async def keys(database: Database, tenant_id: TenantId | None) -> list[ApiKey]:
    async with database.owner_transaction() as connection:
        return [
            key_of_row(row) for row in await connection.execute(_KEYS, {"tenant_id": tenant_id})
        ]


async def note_uses(
    database: Database,
    tenant_id: TenantId,
    key_ids: Sequence[UUID],
    hashed: Mapping[UUID, tuple[bytes, int]],
    *,
    interval_s: float,
) -> None:
    """Record that these keys were used now, unless that was done within half an `interval_s`.

    Keys in `hashed` get a new hash, under the pepper of that id.
    """
    noted = {"tenant": tenant_id, "ids": list(key_ids), "interval_s": interval_s / 2}
    async with database.transaction(tenant_id) as connection:
        await connection.execute(_NOTE_USES, noted)
        for key_id, (new_hash, pepper_id) in hashed.items():
            changed = {"hash": new_hash, "pepper_id": pepper_id, "id": key_id}
            await connection.execute(_HASH_AGAIN, {"tenant": tenant_id, **changed})


async def disable_key(database: Database, key: ApiKey, author: Author = COMMAND_LINE) -> ApiKey:
    # If it is not already.
    event = author.event("api_key.deleted", ids.api_key_id(key.id))
    named = {"tenant_id": key.tenant_id, "id": key.id}
    return key_of_row(await _change(database, key.tenant_id, _DISABLE_KEY, named, event))
