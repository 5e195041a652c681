"""Issuers of tokens that tenants trust, and the rules of their tokens.

What makes and lists them is inside a transaction for their tenant; what finds them for a token is
not, since whose a token is it has yet to say (`find_issuers`, `find_federated`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.store.admin.pages import PagedStatement
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
from gateway.tenancy.federation import (
    FederationRule,
    IdentityProvider,
    KeySource,
    TokenTerms,
    Transformation,
    organizations_named,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.admin.pages import Page, PagePosition
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import TenantPolicy

ISSUER_CHANGEABLE: Final = (
    *("name", "description", "issuer", "audience", "discovery_url", "jwks_url", "jwks"),
    *("transformations", "algorithms", "clock_skew_s", "lifetime_max_s", "enabled"),
)
"""Columns of issuers, whether tenants trust them or operators."""
_CHANGEABLE: Final = (*ISSUER_CHANGEABLE, "bearer", "named_bearer")
_PROVIDER: Final = f"tenant_id, id, {', '.join(_CHANGEABLE)}, created_at, updated_at"
_RULE_CHANGEABLE: Final = ("name", "description", "matchers", "scopes", "enabled")
_RULE: Final = (
    "tenant_id, id, provider_id, project_id, service_account_id,"
    f" {', '.join(_RULE_CHANGEABLE)}, created_at, updated_at"
)
_IS_THERE: Final = "deleted_at IS NULL"
_OF_PROVIDER: Final = (
    "provider_id = :provider AND deleted_at IS NULL"
    " AND (CAST(:account AS uuid) IS NULL OR service_account_id = CAST(:account AS uuid))"
)


def insert_returning(table: str, columns: str) -> Statement:
    names = columns.removesuffix(", created_at, updated_at")
    values = ", ".join(f":{name}" for name in names.split(", "))
    return Statement(
        f"INSERT INTO {table} ({columns}) VALUES ({values}, now(), now()) RETURNING {columns}"  # noqa: S608
    )


def change_returning(table: str, changeable: Sequence[str], columns: str) -> Statement:
    changes = ", ".join(f"{name} = :{name}" for name in changeable)
    return Statement(
        f"UPDATE {table} SET {changes}, updated_at = now()"  # noqa: S608 - constants only
        f" WHERE tenant_id = :tenant_id AND id = :id AND deleted_at IS NULL RETURNING {columns}"
    )


_INSERT: Final = insert_returning("identity_providers", _PROVIDER)
_INSERT_RULE: Final = insert_returning("federation_rules", _RULE)
_CHANGE: Final = change_returning("identity_providers", _CHANGEABLE, _PROVIDER)
_CHANGE_RULE: Final = change_returning("federation_rules", _RULE_CHANGEABLE, _RULE)
# What it was trusted for stays its tenant's (`uq_identity_providers_bearer`), who may use it again,
# until an operator gives it to another one: only they see rows of several tenants here.
_GIVE_WAY: Final = Statement("""
UPDATE identity_providers SET bearer = false
WHERE issuer = :issuer AND audience = :audience AND deleted_at IS NOT NULL AND bearer
""")
_COUNT: Final = Statement("""
SELECT count(*) FROM identity_providers WHERE tenant_id = :tenant AND deleted_at IS NULL
""")
_COUNT_RULES: Final = Statement("""
SELECT count(*) FROM federation_rules
WHERE tenant_id = :tenant AND provider_id = :provider AND deleted_at IS NULL
""")
_FIND: Final = Statement(f"""
SELECT {_PROVIDER} FROM identity_providers WHERE tenant_id = :tenant AND id = :id AND {_IS_THERE}
""")  # noqa: S608 - constants only
_FIND_RULE: Final = Statement(f"""
SELECT {_RULE} FROM federation_rules
WHERE tenant_id = :tenant AND id = :id AND provider_id = :provider AND {_IS_THERE}
""")  # noqa: S608 - constants only
_DELETE: Final = Statement("""
WITH ended AS (
    UPDATE federation_rules SET deleted_at = now()
    WHERE tenant_id = :tenant AND provider_id = :id AND deleted_at IS NULL
)
UPDATE identity_providers SET deleted_at = now()
WHERE tenant_id = :tenant AND id = :id AND deleted_at IS NULL
RETURNING id
""")
_DELETE_RULE: Final = Statement("""
UPDATE federation_rules SET deleted_at = now()
WHERE tenant_id = :tenant AND id = :id AND provider_id = :provider AND deleted_at IS NULL
RETURNING id
""")
_FIND_ISSUERS: Final = Statement(f"""
SELECT {_PROVIDER}
FROM find_issuers(CAST(:id AS uuid), CAST(:issuer AS text), CAST(:audiences AS text[]))
""")  # noqa: S608 - constants only
_FIND_BEARERS: Final = Statement(f"""
SELECT {_PROVIDER}
FROM find_bearers(CAST(:issuer AS text), CAST(:audiences AS text[]), CAST(:tenant AS uuid),
                  CAST(:name AS text))
""")  # noqa: S608 - constants only
_FIND_FEDERATED: Final = Statement(f"""
SELECT {", ".join(f"(rule).{name}" for name in _RULE.split(", "))}, {FOUND_TERMS}, {FOUND_POLICY}
FROM find_federated(CAST(:tenant AS uuid), CAST(:provider AS uuid), CAST(:rule AS uuid))
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class Federated:
    """A rule that holds, and who a token is that it admits."""

    rule: FederationRule
    principal: Principal


def issuer_of(row: Row, *, bearer: bool = True, is_confirmed: bool = False) -> IdentityProvider:
    """Make an identity provider from a row with `ISSUER_CHANGEABLE`."""
    transformations = orjson.loads(row.transformations)
    return IdentityProvider(
        id=row.id,
        tenant_id=TenantId(row.tenant_id),
        name=row.name,
        description=row.description,
        issuer=row.issuer,
        audience=row.audience,
        keys=KeySource(row.discovery_url, row.jwks_url, row.jwks),
        transformations=tuple(Transformation(*one) for one in transformations),
        terms=TokenTerms(bearer, tuple(row.algorithms), row.clock_skew_s, row.lifetime_max_s),
        enabled=row.enabled,
        confirmed=is_confirmed,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _provider(row: Row) -> IdentityProvider:
    return issuer_of(row, bearer=row.named_bearer, is_confirmed=row.bearer)


def _rule(row: Row) -> FederationRule:
    return FederationRule(
        id=row.id,
        tenant_id=TenantId(row.tenant_id),
        provider_id=row.provider_id,
        project_id=ProjectId(row.project_id),
        service_account_id=row.service_account_id,
        name=row.name,
        description=row.description,
        matchers=orjson.loads(row.matchers),
        scopes=frozenset(row.scopes or ()),
        enabled=row.enabled,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


_LIST: Final = PagedStatement("identity_providers", _PROVIDER, _IS_THERE, _provider)
_LIST_RULES: Final = PagedStatement("federation_rules", _RULE, _OF_PROVIDER, _rule)


def _row(provider: IdentityProvider) -> dict[str, Any]:
    bearer = provider.terms.bearer
    needs_no_name = provider.confirmed or bool(organizations_named(provider.audience))
    told = {"bearer": bearer and needs_no_name, "named_bearer": bearer}
    return issuer_row(provider) | told


def issuer_row(provider: IdentityProvider) -> dict[str, Any]:
    """Return the columns `ISSUER_CHANGEABLE` and the key of a provider."""
    keys, terms = provider.keys, provider.terms
    return {
        "tenant_id": provider.tenant_id,
        "id": provider.id,
        "name": provider.name,
        "description": provider.description,
        "issuer": provider.issuer,
        "audience": provider.audience,
        "discovery_url": keys.discovery_url,
        "jwks_url": keys.jwks_url,
        "jwks": keys.jwks,
        "transformations": orjson.dumps(
            [(one.attribute, one.expression) for one in provider.transformations]
        ),
        "algorithms": list(terms.algorithms),
        "clock_skew_s": terms.clock_skew_s,
        "lifetime_max_s": terms.lifetime_max_s,
        "enabled": provider.enabled,
    }


def _rule_row(rule: FederationRule) -> dict[str, Any]:
    return {
        "tenant_id": rule.tenant_id,
        "id": rule.id,
        "provider_id": rule.provider_id,
        "project_id": rule.project_id,
        "service_account_id": rule.service_account_id,
        "name": rule.name,
        "description": rule.description,
        "matchers": orjson.dumps(dict(rule.matchers)),
        "scopes": sorted(rule.scopes),
        "enabled": rule.enabled,
    }


async def insert(connection: Connection, provider: IdentityProvider) -> IdentityProvider:
    """Insert a provider and return it with the database's times.

    Raises `StoreConflict` when a provider that takes bearer tokens has the same issuer and
    audience: another of this tenant (uq_identity_providers_named), or of any tenant if tokens need
    not name theirs (uq_identity_providers_bearer).
    """
    row = _row(provider)
    if row["bearer"]:
        await _give_way(connection, provider)
    return _provider((await connection.execute(_INSERT, row)).one())


async def change(connection: Connection, provider: IdentityProvider) -> IdentityProvider | None:
    """Overwrite a provider. Return None if it was deleted meanwhile. Raises as `insert` does."""
    changed = _row(provider)
    if changed["bearer"]:
        await _give_way(connection, provider)
    row = (await connection.execute(_CHANGE, changed)).one_or_none()
    return None if row is None else _provider(row)


async def _give_way(connection: Connection, provider: IdentityProvider) -> None:
    asked = {"issuer": provider.issuer, "audience": provider.audience}
    await connection.execute(_GIVE_WAY, asked)


async def insert_rule(connection: Connection, rule: FederationRule) -> FederationRule:
    """Insert a rule and return it with the database's times."""
    return _rule((await connection.execute(_INSERT_RULE, _rule_row(rule))).one())


async def change_rule(connection: Connection, rule: FederationRule) -> FederationRule | None:
    """Overwrite a rule. Return None if it was deleted meanwhile."""
    row = (await connection.execute(_CHANGE_RULE, _rule_row(rule))).one_or_none()
    return None if row is None else _rule(row)


async def count(connection: Connection, tenant_id: TenantId) -> int:
    found: int = await connection.scalar(_COUNT, {"tenant": tenant_id})
    return found


async def count_rules(connection: Connection, tenant_id: TenantId, provider_id: UUID) -> int:
    asked = {"tenant": tenant_id, "provider": provider_id}
    found: int = await connection.scalar(_COUNT_RULES, asked)
    return found


async def find(
    connection: Connection, tenant_id: TenantId, provider_id: UUID
) -> IdentityProvider | None:
    """Return an identity provider of the tenant, or None if it is unknown or deleted."""
    asked = {"tenant": tenant_id, "id": provider_id}
    row = (await connection.execute(_FIND, asked)).one_or_none()
    return None if row is None else _provider(row)


async def find_rule(
    connection: Connection, provider: IdentityProvider, rule_id: UUID
) -> FederationRule | None:
    """Return a rule of the provider, or None if it is unknown, deleted, or another provider's."""
    asked = {"tenant": provider.tenant_id, "provider": provider.id, "id": rule_id}
    row = (await connection.execute(_FIND_RULE, asked)).one_or_none()
    return None if row is None else _rule(row)


async def delete(connection: Connection, tenant_id: TenantId, provider_id: UUID) -> bool:
    """Delete a provider with its rules. Return False if it is unknown."""
    asked = {"tenant": tenant_id, "id": provider_id}
    return await connection.scalar(_DELETE, asked) is not None


async def delete_rule(connection: Connection, rule: FederationRule) -> bool:
    """Delete a rule, so that its tokens may do nothing more. Return False if it is unknown."""
    asked = {"tenant": rule.tenant_id, "provider": rule.provider_id, "id": rule.id}
    return await connection.scalar(_DELETE_RULE, asked) is not None


async def page(
    connection: Connection, tenant_id: TenantId, place: PagePosition
) -> Page[IdentityProvider]:
    """Return a page of providers. Raises `InvalidRequest` for an unknown `after`."""
    return await _LIST.page(connection, {"tenant": tenant_id}, place)


async def page_of_rules(
    connection: Connection, provider: IdentityProvider, account_id: UUID | None, place: PagePosition
) -> Page[FederationRule]:
    """Return a page of a provider's rules, or of those of the service account `account_id`."""
    asked = {"tenant": provider.tenant_id, "provider": provider.id, "account": account_id}
    return await _LIST_RULES.page(connection, asked, place)


async def find_issuers(
    database: Database,
    provider_id: UUID | None = None,
    issuer: str | None = None,
    audiences: Sequence[str] = (),
) -> list[IdentityProvider]:
    """Return the providers that a token may belong to, of any tenant.

    These are the one with this id, and those of this issuer and one of these audiences whose bearer
    tokens need not name a tenant.
    """
    asked = {"id": provider_id, "issuer": issuer, "audiences": list(audiences)}
    async with database.owner_transaction() as connection:
        await connection.execute(TAKE_ROLE, {"role": APP_ROLE})
        return [_provider(row) for row in await connection.execute(_FIND_ISSUERS, asked)]


async def find_bearers(
    database: Database, issuer: str, audiences: Sequence[str], organization: str
) -> list[IdentityProvider]:
    """Return the tenant's providers that take bearer tokens of this issuer for these audiences.

    `organization` is the tenant's id or name.
    """
    tenant_id = ids.parse_tenant_id(organization)
    name = organization if tenant_id is None else None
    asked = {"issuer": issuer, "audiences": list(audiences), "tenant": tenant_id, "name": name}
    async with database.owner_transaction() as connection:
        await connection.execute(TAKE_ROLE, {"role": APP_ROLE})
        return [_provider(row) for row in await connection.execute(_FIND_BEARERS, asked)]


async def find_federated(
    database: Database,
    tenant_id: TenantId,
    defaults: TenantPolicy,
    *,
    provider_id: UUID | None = None,
    rule_id: UUID | None = None,
) -> list[Federated]:
    """Return the active rules of a provider, or one rule, oldest first.

    Each comes with its provider, service account, project and tenant. Policies are as
    `find_principal` returns them.
    """
    asked = {"tenant": tenant_id, "provider": provider_id, "rule": rule_id}
    async with database.owner_transaction() as connection:
        await connection.execute(TAKE_ROLE, {"role": APP_ROLE})
        rows = await connection.execute(_FIND_FEDERATED, asked)
        return [_federated(row, defaults) for row in rows]


def _federated(row: Row, defaults: TenantPolicy) -> Federated:
    rule, project = _rule(row), found_project(row)
    terms = KeyTerms(
        scopes=rule.scopes, owner_type="service_account", owner_id=rule.service_account_id
    )
    principal = Principal(
        rule.tenant_id,
        row.tenant_name,
        rule.id,
        NarrowedPolicy.of(found_policy(row, defaults), project.models, controls=project.controls),
        project_id=rule.project_id,
        key=terms,
        project_terms=project,
        retention_type=row.tenant_retention_type,
    )
    return Federated(rule, principal)
