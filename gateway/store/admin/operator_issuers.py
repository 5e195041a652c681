"""Issuers that operators trust. The owner of the tables makes them; whoever serves finds those of a
token, and the tenant that the token names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.store.admin.federation import (
    ISSUER_CHANGEABLE,
    change_returning,
    insert_returning,
    issuer_of,
    issuer_row,
)
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE
from gateway.store.tenants import (
    FOUND_POLICY,
    FOUND_TERMS,
    TAKE_ROLE,
    found_policy,
    found_project,
)
from gateway.tenancy import KeyTerms, NarrowedPolicy, Principal, ProjectId, TenantId
from gateway.tenancy.federation import OperatorIssuer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import TenantPolicy

_CHANGEABLE: Final = (*ISSUER_CHANGEABLE, "tenants", "roles")
_COLUMNS: Final = f"tenant_id, id, {', '.join(_CHANGEABLE)}, created_at, updated_at"
_INSERT: Final = insert_returning("operator_issuers", _COLUMNS)
_CHANGE: Final = change_returning("operator_issuers", _CHANGEABLE, _COLUMNS)
_ALL: Final = Statement(f"""
SELECT {_COLUMNS} FROM operator_issuers WHERE deleted_at IS NULL ORDER BY created_at, id
""")  # noqa: S608 - constants only
_ONE: Final = Statement(f"""
SELECT {_COLUMNS} FROM operator_issuers WHERE deleted_at IS NULL AND id = :id
""")  # noqa: S608 - constants only
_KNOWN: Final = Statement("SELECT name FROM tenants WHERE name = ANY(CAST(:names AS text[]))")
UNIQUE: Final = "uq_operator_issuers_issuer"
"""The index of their issuers and audiences."""
_DELETE: Final = Statement("""
UPDATE operator_issuers SET deleted_at = now() WHERE id = :id AND deleted_at IS NULL
""")
_FIND: Final = Statement(f"""
SELECT {_COLUMNS} FROM find_operator_issuers(CAST(:issuer AS text), CAST(:audiences AS text[]))
""")  # noqa: S608 - constants only
_FIND_NAMED: Final = Statement(f"""
SELECT (tenant).id AS tenant_id, {FOUND_TERMS}, {FOUND_POLICY}
FROM find_named(CAST(:tenant AS uuid), CAST(:name AS text), CAST(:project AS uuid))
""")  # noqa: S608 - constants only


def _issuer(row: Row) -> OperatorIssuer:
    roles = {name: tuple(scopes) for name, scopes in orjson.loads(row.roles).items()}
    return OperatorIssuer(issuer_of(row), tuple(row.tenants), roles)


def _row(issuer: OperatorIssuer) -> dict[str, Any]:
    return issuer_row(issuer.provider) | {
        "tenants": list(issuer.tenants),
        "roles": orjson.dumps(dict(issuer.roles)),
    }


async def insert(connection: Connection, issuer: OperatorIssuer) -> OperatorIssuer:
    """Insert an issuer and return it with the database's times.

    Raises `StoreConflict` (uq_operator_issuers_issuer) if its issuer and audience are taken.
    """
    return _issuer((await connection.execute(_INSERT, _row(issuer))).one())


async def change(connection: Connection, issuer: OperatorIssuer) -> OperatorIssuer | None:
    """Overwrite an issuer. Return None if it was deleted meanwhile. Raises as `insert` does."""
    row = (await connection.execute(_CHANGE, _row(issuer))).one_or_none()
    return None if row is None else _issuer(row)


async def all_issuers(connection: Connection) -> list[OperatorIssuer]:
    """Return all issuers that are not deleted, oldest first."""
    return [_issuer(row) for row in await connection.execute(_ALL)]


async def find(connection: Connection, issuer_id: UUID) -> OperatorIssuer | None:
    """Return an issuer by its id, or None if it is unknown or deleted."""
    row = (await connection.execute(_ONE, {"id": issuer_id})).one_or_none()
    return None if row is None else _issuer(row)


async def delete(connection: Connection, issuer_id: UUID) -> None:
    await connection.execute(_DELETE, {"id": issuer_id})


async def unknown_tenants(connection: Connection, names: Sequence[str]) -> list[str]:
    """Return the names that no tenant has."""
    known = {row.name for row in await connection.execute(_KNOWN, {"names": list(names)})}
    return [name for name in names if name not in known]


async def find_for(
    connection: Connection, issuer: str, audiences: Sequence[str]
) -> list[OperatorIssuer]:
    """Return the issuers of this name for one of these audiences.

    Disabled ones are included, because their tokens are no tenant's either.
    """
    asked = {"issuer": issuer, "audiences": list(audiences)}
    return [_issuer(row) for row in await connection.execute(_FIND, asked)]


async def find_for_token(
    database: Database, issuer: str, audiences: Sequence[str]
) -> list[OperatorIssuer]:
    """Return the issuers that `find_for` does, for a token whose tenant is not resolved yet."""
    async with database.owner_transaction() as connection:
        await connection.execute(TAKE_ROLE, {"role": APP_ROLE})
        return await find_for(connection, issuer, audiences)


async def find_principal(
    database: Database,
    issuer: OperatorIssuer,
    tenant: str,
    project_id: UUID | None,
    defaults: TenantPolicy,
) -> Principal | None:
    """Return the principal of an issuer's token that names this tenant and project.

    `tenant` is an id or a name; `project_id` None is the default project. Return None if the tenant
    is unknown, disabled or deleted, or if the project is unknown, archived or another tenant's.
    Policies are as `tenants.find_principal` returns them.
    """
    tenant_id = ids.parse_tenant_id(tenant)
    name = tenant if tenant_id is None else None
    async with database.owner_transaction() as connection:
        await connection.execute(TAKE_ROLE, {"role": APP_ROLE})
        asked = {"tenant": tenant_id, "name": name, "project": project_id}
        row = (await connection.execute(_FIND_NAMED, asked)).one_or_none()
    if row is None:
        return None
    project = found_project(row)
    return Principal(
        TenantId(row.tenant_id),
        row.tenant_name,
        issuer.provider.id,
        NarrowedPolicy.of(found_policy(row, defaults), project.models, controls=project.controls),
        project_id=None if project_id is None else ProjectId(project_id),
        key=KeyTerms(),
        project_terms=project,
        retention_type=row.tenant_retention_type,
    )
