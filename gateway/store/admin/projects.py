"""Projects of a tenant. All is done inside a transaction of the caller's, for that tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.admin.pages import PagedStatement
from gateway.store.postgres.statements import Statement
from gateway.store.tenants import found_controls
from gateway.tenancy import (
    DEFAULT_PROJECT_NAME,
    ModelPermissions,
    Project,
    ProjectId,
    TenantId,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gateway.store.admin.pages import Page, PagePosition
    from gateway.store.postgres.database import Connection, Row

_COLUMNS: Final = (
    "tenant_id, id, name, created_at, archived_at, models_mode, models, tools_off, service_tiers,"
    " service_tier_default"
)
# The default project need not have been written: a tenant may be older than projects.
_ADD_DEFAULT: Final = Statement("""
INSERT INTO projects (tenant_id, id, name, created_at)
SELECT id, id, CAST(:name AS text), created_at FROM tenants WHERE id = :tenant
ON CONFLICT (tenant_id, id) DO NOTHING
""")
_INSERT: Final = Statement(f"""
INSERT INTO projects (tenant_id, id, name, created_at) VALUES (:tenant, :id, :name, now())
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_COUNT: Final = Statement("SELECT count(*) FROM projects WHERE tenant_id = :tenant")
_FIND: Final = Statement(f"""
SELECT {_COLUMNS} FROM projects WHERE tenant_id = :tenant AND id = :id
""")  # noqa: S608 - constants only
_RENAME: Final = Statement(f"""
UPDATE projects SET name = :name WHERE tenant_id = :tenant AND id = :id RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_ARCHIVE: Final = Statement(f"""
UPDATE projects SET archived_at = coalesce(archived_at, now())
WHERE tenant_id = :tenant AND id = :id
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_SET_MODELS: Final = Statement(f"""
UPDATE projects SET models_mode = :mode, models = CAST(:models AS text[])
WHERE tenant_id = :tenant AND id = :id
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_SET_CONTROLS: Final = Statement(f"""
UPDATE projects SET tools_off = CAST(:tools_off AS text[]), service_tiers = CAST(:tiers AS text[]),
                    service_tier_default = :tier_default
WHERE tenant_id = :tenant AND id = :id
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only


def _project(row: Row) -> Project:
    permissions = None
    if row.models_mode is not None:
        permissions = ModelPermissions(row.models_mode, tuple(row.models or ()))
    return Project(
        ProjectId(row.id),
        TenantId(row.tenant_id),
        row.name,
        row.created_at,
        row.archived_at,
        permissions,
        found_controls(row),
    )


_LIST: Final = PagedStatement(
    "projects",
    _COLUMNS,
    "(CAST(:with_archived AS boolean) OR archived_at IS NULL)",
    _project,
)


async def add_default(connection: Connection, tenant_id: TenantId) -> None:
    """Write the row of the default project where there is none yet."""
    parameters = {"tenant": tenant_id, "name": DEFAULT_PROJECT_NAME}
    await connection.execute(_ADD_DEFAULT, parameters)


async def insert(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId, name: str
) -> Project:
    """A new project."""
    row = {"tenant": tenant_id, "id": project_id, "name": name}
    return _project((await connection.execute(_INSERT, row)).one())


async def count(connection: Connection, tenant_id: TenantId) -> int:
    """How many there are, archived ones included."""
    found: int = await connection.scalar(_COUNT, {"tenant": tenant_id})
    return found


async def find(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId
) -> Project | None:
    """The project; None: unknown, or another tenant's."""
    return await _one(connection, _FIND, _of(tenant_id, project_id))


async def rename(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId, name: str
) -> Project | None:
    """Call it something else. None: unknown."""
    return await _one(connection, _RENAME, _of(tenant_id, project_id) | {"name": name})


async def archive(
    connection: Connection, tenant_id: TenantId, project_id: ProjectId
) -> Project | None:
    """None of its keys works from now on. None: unknown."""
    return await _one(connection, _ARCHIVE, _of(tenant_id, project_id))


async def set_models(
    connection: Connection,
    tenant_id: TenantId,
    project_id: ProjectId,
    permissions: ModelPermissions | None,
) -> Project | None:
    """Which models it may ask for; None takes the list away. None: unknown."""
    changed: dict[str, Any] = {"mode": None, "models": None}
    if permissions is not None:
        changed = {"mode": permissions.mode, "models": list(permissions.models)}
    return await _one(connection, _SET_MODELS, _of(tenant_id, project_id) | changed)


async def set_controls(connection: Connection, project: Project) -> Project | None:
    """Which tools and tiers it gives, as `project.controls` has them. None: unknown."""
    controls = project.controls
    changed = {
        "tools_off": sorted(controls.tools_off),
        "tiers": None if controls.tiers is None else list(controls.tiers),
        "tier_default": controls.tier_default,
    }
    return await _one(connection, _SET_CONTROLS, _of(project.tenant_id, project.id) | changed)


async def page(
    connection: Connection, tenant_id: TenantId, place: PagePosition, *, with_archived: bool
) -> Page[Project]:
    """A page of them. Raises `InvalidRequest` for an `after` that is none of them."""
    asked = {"tenant": tenant_id, "with_archived": with_archived}
    return await _LIST.page(connection, asked, place)


def _of(tenant_id: TenantId, project_id: ProjectId) -> dict[str, Any]:
    return {"tenant": tenant_id, "id": project_id}


async def _one(
    connection: Connection, statement: Statement, parameters: Mapping[str, Any]
) -> Project | None:
    row = (await connection.execute(statement, parameters)).one_or_none()
    return None if row is None else _project(row)
