"""The principals of keys and tokens.

No tenant is resolved yet, so all of it runs as the tenants' role without a tenant, which can read
only what functions of the schema return for a key or token.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE
from gateway.tenancy import (
    DEFAULT_PROJECT_NAME,
    KeyTerms,
    Principal,
    ProjectId,
    ProjectTerms,
    TenantId,
)
from gateway.tenancy.issuers import FederationRule, IdentityProvider, Transformation
from gateway.tenancy.policy import (
    DEFAULT_POLICY,
    POLICY_VALUES,
    ModelPermissions,
    NarrowedPolicy,
    ProjectControls,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import Dialect
    from gateway.tenancy.policy import OwnPolicy, TenantPolicy

DEFAULT_DIALECT: Final[Dialect] = "openai"
_TAKE_ROLE: Final = Statement("SELECT set_config('role', :role, true)")
_TERMS_COLUMNS: Final = (
    "(tenant).name AS tenant_name, (project).name AS project_name, (project).models_mode,"
    " (project).models AS project_models, (project).retention_type, (project).tools_off,"
    " (project).service_tiers, (project).service_tier_default,"
    " (tenant).retention_type AS tenant_retention_type"
)
_POLICY_COLUMNS: Final = ", ".join(f"(tenant).{name} AS policy_{name}" for name in POLICY_VALUES)
"""Columns that decide for the caller; the policy's must be last."""
# Not whole rows: prepared statements would become invalid with a revision that adds a column.
# The default project may have no row.
_FIND_CALLER: Final = Statement(f"""
SELECT (key).id AS key_id, (key).tenant_id, (key).dialect, (key).kind, (key).project_id,
       (key).owner_type, (key).owner_id, (key).scopes, (key).expires_at, (key).allowed_cidrs,
       (key).allowed_models, {_TERMS_COLUMNS},
       (key).disabled_at IS NULL AND (tenant).disabled_at IS NULL
           AND (tenant).deleted_at IS NULL
           AND (project).archived_at IS NULL
           AND coalesce((key).expires_at > now(), true) AS is_enabled,
       {_POLICY_COLUMNS}
FROM find_caller(:key_hash)
""")  # noqa: S608 - constants only
_PROVIDER: Final = tuple(field.name for field in fields(IdentityProvider))
_RULE: Final = tuple(field.name for field in fields(FederationRule))
_FIND_ISSUERS: Final = Statement(f"""
SELECT {", ".join(_PROVIDER)}
FROM find_issuers(CAST(:id AS uuid), CAST(:issuer AS text), CAST(:audiences AS text[]))
""")  # noqa: S608 - constants only
_FIND_BEARERS: Final = Statement(f"""
SELECT {", ".join(_PROVIDER)}
FROM find_bearers(CAST(:issuer AS text), CAST(:audiences AS text[]), CAST(:tenant AS uuid),
                  CAST(:name AS text))
""")  # noqa: S608 - constants only
FIND_OF_OPERATORS: Final = Statement(f"""
SELECT {", ".join(_PROVIDER)}
FROM find_operator_issuers(CAST(:issuer AS text), CAST(:audiences AS text[]))
""")  # noqa: S608 - constants only
_FIND_FEDERATED: Final = Statement(f"""
SELECT {", ".join(f"(rule).{name}" for name in _RULE)}, {_TERMS_COLUMNS}, {_POLICY_COLUMNS}
FROM find_federated(CAST(:tenant AS uuid), CAST(:provider AS uuid), CAST(:rule AS uuid))
""")  # noqa: S608 - constants only
_FIND_NAMED: Final = Statement(f"""
SELECT (tenant).id AS tenant_id, {_TERMS_COLUMNS}, {_POLICY_COLUMNS}
FROM find_named(CAST(:tenant AS uuid), CAST(:name AS text), CAST(:project AS uuid))
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class Federated:
    rule: FederationRule
    principal: Principal


def provider_of_row(row: Row) -> IdentityProvider:
    values: dict[str, Any] = {name: row[name] for name in _PROVIDER}
    values["transformations"] = tuple(
        Transformation(*one) for one in orjson.loads(row.transformations)
    )
    values["algorithms"] = tuple(row.algorithms)
    if row.tenants is not None:
        values["tenants"] = tuple(row.tenants)
        roles = orjson.loads(row.roles)
        values["roles"] = {name: tuple(scopes) for name, scopes in roles.items()}
    return IdentityProvider(**values)


def rule_of_row(row: Row) -> FederationRule:
    values: dict[str, Any] = {name: row[name] for name in _RULE}
    values["matchers"] = orjson.loads(row.matchers)
    values["scopes"] = frozenset(row.scopes or ())
    return FederationRule(**values)


def own_policy(values: Iterable[str | int | None]) -> OwnPolicy:
    # A null column means that the tenant has no value of its own.
    own = zip(POLICY_VALUES, values, strict=True)
    return {name: value for name, value in own if value is not None}


def key_terms(row: Row) -> KeyTerms:
    return KeyTerms(
        kind=row.kind,
        scopes=frozenset(row.scopes or ()),
        expires_at=row.expires_at,
        networks=tuple(row.allowed_cidrs or ()),
        models=tuple(row.allowed_models or ()),
        owner_type=row.owner_type,
        owner_id=row.owner_id,
    )


def controls_of_row(row: Row) -> ProjectControls:
    # The project may have no row, then all columns are null.
    return ProjectControls(
        tools_off=frozenset(row.tools_off or ()),
        tiers=None if row.service_tiers is None else tuple(row.service_tiers),
        tier_default=row.service_tier_default or "standard",
    )


async def _select(database: Database, statement: Statement, **parameters: Any) -> Iterable[Row]:
    async with database.owner_transaction() as connection:
        await connection.execute(_TAKE_ROLE, {"role": APP_ROLE})
        return await connection.execute(statement, parameters)


async def find_principal(
    database: Database, key_hash: bytes, defaults: TenantPolicy = DEFAULT_POLICY
) -> Principal | None:
    for row in await _select(database, _FIND_CALLER, key_hash=key_hash):
        if row.is_enabled:
            project_id = row.project_id and ProjectId(row.project_id)
            dialect = row.dialect or DEFAULT_DIALECT
            return _principal(row, row.key_id, project_id, key_terms(row), defaults, dialect)
    return None


async def find_issuers(
    database: Database,
    provider_id: UUID | None = None,
    issuer: str | None = None,
    audiences: Sequence[str] = (),
) -> list[IdentityProvider]:
    """Return the provider with this id, and those of this issuer and audience, in any tenant, whose
    bearer tokens need not name a tenant.
    """
    rows = await _select(
        database, _FIND_ISSUERS, id=provider_id, issuer=issuer, audiences=list(audiences)
    )
    return [provider_of_row(row) for row in rows]


async def find_bearers(
    database: Database, issuer: str, audiences: Sequence[str], organization: str
) -> list[IdentityProvider]:
    parameters = {"issuer": issuer, "audiences": list(audiences)}
    rows = await _select(database, _FIND_BEARERS, **parameters, **_id_or_name(organization))
    return [provider_of_row(row) for row in rows]


async def find_of_operators(
    database: Database, issuer: str, audiences: Sequence[str]
) -> list[IdentityProvider]:
    """Return operators' issuers, disabled ones too: their tokens are no tenant's either."""
    rows = await _select(database, FIND_OF_OPERATORS, issuer=issuer, audiences=list(audiences))
    return [provider_of_row(row) for row in rows]


async def find_federated(
    database: Database,
    tenant_id: TenantId,
    defaults: TenantPolicy,
    *,
    provider_id: UUID | None = None,
    rule_id: UUID | None = None,
) -> list[Federated]:
    rows = await _select(
        database, _FIND_FEDERATED, tenant=tenant_id, provider=provider_id, rule=rule_id
    )
    federated = []
    for row in rows:
        rule = rule_of_row(row)
        terms = KeyTerms(
            scopes=rule.scopes, owner_type="service_account", owner_id=rule.service_account_id
        )
        principal = _principal(row, rule.id, rule.project_id, terms, defaults)
        federated.append(Federated(rule, principal))
    return federated


async def find_named(
    database: Database,
    issuer_id: UUID,
    tenant: str,
    project_id: UUID | None,
    defaults: TenantPolicy,
) -> Principal | None:
    rows = await _select(database, _FIND_NAMED, project=project_id, **_id_or_name(tenant))
    project = None if project_id is None else ProjectId(project_id)
    for row in rows:
        return _principal(row, issuer_id, project, KeyTerms(), defaults)
    return None


def _id_or_name(tenant: str) -> dict[str, Any]:
    tenant_id = ids.parse_tenant_id(tenant)
    return {"tenant": tenant_id, "name": tenant if tenant_id is None else None}


def _principal(
    row: Row,
    key_id: UUID,
    project_id: ProjectId | None,
    key: KeyTerms,
    defaults: TenantPolicy,
    dialect: Dialect = DEFAULT_DIALECT,
) -> Principal:
    # The row has `_TERMS_COLUMNS`, and ends with `_POLICY_COLUMNS`.
    controls = controls_of_row(row)
    project = ProjectTerms(
        name=row.project_name or DEFAULT_PROJECT_NAME,
        models=None
        if row.models_mode is None
        else ModelPermissions(row.models_mode, tuple(row.project_models or ())),
        retention_type=row.retention_type,
        controls=controls,
    )
    policy = defaults.with_own(own_policy(row[-len(POLICY_VALUES) :]))
    return Principal(
        TenantId(row.tenant_id),
        row.tenant_name,
        key_id,
        NarrowedPolicy.of(policy, project.models, key.permissions, controls=controls),
        dialect,
        project_id=project_id,
        key=key,
        project_terms=project,
        retention_type=row.tenant_retention_type,
    )
