"""Keys as the admin API makes, shows and ends them. All inside a transaction for their tenant.

No statement here reads a hash: the role of tenants may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.store.admin.pages import PagedStatement
from gateway.store.postgres.statements import Statement
from gateway.store.tenants import KEY_COLUMNS, key_of_row

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.admin.pages import Page, PagePosition
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import ApiKey, Dialect, KeyTerms, ProjectId, TenantId


@dataclass(frozen=True, slots=True)
class KeyMade:
    """A key that is made: `hash` is the keyed hash of its secret, under the pepper of that id.

    It lives for `expires_in_s` from now by the database's clock; None: until it is ended. What
    `terms` say of its expiry does not count.
    """

    id: UUID
    tenant_id: TenantId
    name: str
    hint: str
    hash: bytes
    pepper_id: int
    terms: KeyTerms
    project_id: ProjectId | None = None
    expires_in_s: int | None = None
    created_by: UUID | None = None
    dialect: Dialect = "openai"


_INSERT: Final = Statement(f"""
INSERT INTO api_keys (tenant_id, id, name, hint, hash, pepper_id, dialect, kind, project_id,
                      owner_type, owner_id, scopes, allowed_cidrs, allowed_models, created_by,
                      created_at, expires_at)
VALUES (:tenant, :id, :name, :hint, :hash, :pepper_id, :dialect, :kind, :project,
        :owner_type, :owner_id, CAST(:scopes AS text[]), CAST(:cidrs AS cidr[]),
        CAST(:models AS text[]), :created_by,
        now(), now() + make_interval(secs => CAST(:expires_in_s AS integer)))
RETURNING {KEY_COLUMNS}
""")  # noqa: S608 - constants only
_ALIVE: Final = "disabled_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
_OF_PROJECT: Final = (
    "kind = 'project' AND coalesce(project_id, tenant_id) = CAST(:project AS uuid)"
    " AND disabled_at IS NULL"
)
_OF_ADMINS: Final = "kind = 'admin' AND disabled_at IS NULL"
_IS_MEANT: Final = (
    "CASE WHEN CAST(:project AS uuid) IS NULL THEN kind = 'admin' ELSE kind = 'project'"
    " AND coalesce(project_id, tenant_id) = CAST(:project AS uuid) END AND disabled_at IS NULL"
)
_COUNT: Final = Statement(f"""
SELECT count(*) FROM api_keys WHERE tenant_id = :tenant AND {_ALIVE}
""")  # noqa: S608 - constants only
_FIND: Final = Statement(f"""
SELECT {KEY_COLUMNS} FROM api_keys WHERE tenant_id = :tenant AND id = :id AND {_IS_MEANT}
""")  # noqa: S608 - constants only
_CHANGE: Final = Statement(f"""
UPDATE api_keys
SET scopes = CASE WHEN CAST(:sets_scopes AS boolean) THEN CAST(:scopes AS text[]) ELSE scopes END,
    expires_at = coalesce(
        now() + make_interval(secs => CAST(:expires_in_s AS integer)), expires_at
    )
WHERE tenant_id = :tenant AND id = :id AND {_IS_MEANT} AND replaced_by IS NULL AND {_ALIVE}
RETURNING {KEY_COLUMNS}
""")  # noqa: S608 - constants only
_END: Final = Statement(f"""
UPDATE api_keys SET disabled_at = now()
WHERE tenant_id = :tenant AND id = :id AND {_IS_MEANT}
RETURNING {KEY_COLUMNS}
""")  # noqa: S608 - constants only
# It ends when the overlap does, or before, as it would have.
_REPLACE: Final = Statement(f"""
UPDATE api_keys
SET replaced_by = :replaced_by,
    expires_at = least(
        expires_at, now() + make_interval(secs => CAST(:overlap_s AS integer))
    )
WHERE tenant_id = :tenant AND id = :id AND replaced_by IS NULL AND {_ALIVE}
RETURNING {KEY_COLUMNS}
""")  # noqa: S608 - constants only
_PROJECT_KEYS: Final = PagedStatement("api_keys", KEY_COLUMNS, _OF_PROJECT, key_of_row)
_ADMIN_KEYS: Final = PagedStatement("api_keys", KEY_COLUMNS, _OF_ADMINS, key_of_row)


async def insert(connection: Connection, new: KeyMade) -> ApiKey:
    """Insert a key. Raises `StoreConflict` when its tenant is unknown."""
    terms = new.terms
    row = {
        "tenant": new.tenant_id,
        "id": new.id,
        "name": new.name,
        "hint": new.hint,
        "hash": new.hash,
        "pepper_id": new.pepper_id,
        "dialect": new.dialect,
        "kind": terms.kind,
        "project": new.project_id,
        "owner_type": terms.owner_type,
        "owner_id": terms.owner_id,
        "scopes": sorted(terms.scopes),
        "cidrs": list(terms.networks),
        "models": list(terms.models),
        "created_by": new.created_by,
        "expires_in_s": new.expires_in_s,
    }
    return key_of_row((await connection.execute(_INSERT, row)).one())


async def count(connection: Connection, tenant_id: TenantId) -> int:
    """Count a tenant's keys that work."""
    found: int = await connection.scalar(_COUNT, {"tenant": tenant_id})
    return found


async def find(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId | None, key_id: UUID
) -> ApiKey | None:
    """Return a key of a project, or an admin key if `project_id` is None.

    Return None if it is unknown, ended, or of another project.
    """
    return await _one(connection, _FIND, _of(tenant_id, project_id, key_id))


async def change(
    connection: Connection,
    key: ApiKey,
    *,
    scopes: frozenset[str] | None,
    expires_in_s: int | None,
) -> ApiKey | None:
    """Change what is not None. Return None if the key has ended or has been replaced."""
    changed = {
        "sets_scopes": scopes is not None,
        "scopes": sorted(scopes or ()),
        "expires_in_s": expires_in_s,
    }
    return await _one(connection, _CHANGE, _of(key.tenant_id, key.project, key.id) | changed)


async def end(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId | None, key_id: UUID
) -> ApiKey | None:
    """End a key. Return None if it is unknown, ended, or of another project."""
    return await _one(connection, _END, _of(tenant_id, project_id, key_id))


async def replace(
    connection: Connection, key: ApiKey, replaced_by: UUID, *, overlap_s: int
) -> ApiKey | None:
    """Let the key work for `overlap_s` seconds beside the one that replaces it.

    Return None if it has ended or has been replaced before.
    """
    changed = {"replaced_by": replaced_by, "overlap_s": overlap_s}
    return await _one(connection, _REPLACE, _of(key.tenant_id, None, key.id) | changed)


async def page(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId | None, place: PagePosition
) -> Page[ApiKey]:
    """Return keys of a project, or admin keys if `project_id` is None, expired ones included.

    Raises `InvalidRequest` for an unknown `after`.
    """
    listed = _ADMIN_KEYS if project_id is None else _PROJECT_KEYS
    asked = {"tenant": tenant_id} | ({} if project_id is None else {"project": project_id})
    return await listed.page(connection, asked, place)


def _of(tenant_id: TenantId, project_id: ProjectId | None, key_id: UUID) -> dict[str, Any]:
    return {"tenant": tenant_id, "project": project_id, "id": key_id}


async def _one(
    connection: Connection, statement: Statement, parameters: dict[str, Any]
) -> ApiKey | None:
    row = (await connection.execute(statement, parameters)).one_or_none()
    return None if row is None else key_of_row(row)
