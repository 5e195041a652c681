from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.limits.money import COMPONENTS, Price
from gateway.limits.rules import NO_TERMS, Budget, Limit, Meter, Terms, meter_of
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from gateway.limits.money import Component
    from gateway.limits.rules import Scope
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import Principal, TenantId

_SUCCESSORS: Final = """
        WITH RECURSIVE line AS (
            SELECT CAST(:scope_id AS uuid) AS id
            UNION
            SELECT k.replaced_by FROM line JOIN api_keys AS k
                ON k.tenant_id = :tenant AND k.id = line.id AND k.replaced_by IS NOT NULL
        )
        SELECT id FROM line
"""
IN_SCOPE: Final[Mapping[Scope, str]] = {
    **dict.fromkeys(("tenant", "organization"), "CAST(:scope_id AS uuid) IS NOT NULL"),
    "project": "coalesce(one.project_id, one.tenant_id) = CAST(:scope_id AS uuid)",
    "key": f"one.key_id IN ({_SUCCESSORS})",
}
"""Conditions on a row `one`: it counts for this scope. A key and the keys that replace it share
limits, buckets and meters."""
_KEY_LINE: Final = Statement(_SUCCESSORS)
# Raw SQL: recursive, and run at each look-up of a key.
_OWN: Final = """
    tenant_id = :tenant AND (
        scope IN ('tenant', 'organization') OR scope = 'project' AND scope_id = :project
        OR scope = 'key' AND scope_id IN (
            WITH RECURSIVE line AS (
                SELECT CAST(:key AS uuid) AS id
                UNION
                SELECT older.id FROM api_keys AS older JOIN line ON older.replaced_by = line.id
                WHERE older.tenant_id = :tenant
            )
            SELECT id FROM line
        )
    )
"""
_HAS_TERMS: Final = Statement(f"""
SELECT EXISTS (
    SELECT FROM (
        SELECT tenant_id, scope, scope_id FROM limits
        UNION ALL SELECT tenant_id, scope, scope_id FROM budgets
        UNION ALL SELECT tenant_id, scope, scope_id FROM spend_alerts
    ) AS one WHERE {_OWN}
)
""")  # noqa: S608 - constants only
_LIMITS: Final = Statement(f"SELECT * FROM limits WHERE {_OWN} ORDER BY scope, what, window_s")  # noqa: S608
_BUDGETS: Final = Statement(f"SELECT * FROM budgets WHERE {_OWN} ORDER BY id")  # noqa: S608
_METERS: Final = Statement(f"""
SELECT DISTINCT scope, scope_id, unit, span FROM spend_alerts WHERE {_OWN}
""")  # noqa: S608 - constants only


async def successors(database: Database, tenant_id: TenantId, key_id: UUID) -> list[UUID]:
    """Return a key and the keys that replace it."""
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_KEY_LINE, {"tenant": tenant_id, "scope_id": key_id})
    return [row.id for row in rows]


async def terms_of(database: Database, principal: Principal) -> Terms:
    tenant_id, project = principal.tenant_id, principal.project
    own = {"tenant": tenant_id, "project": project, "key": principal.key_id}
    async with database.transaction(tenant_id) as connection:
        if not await connection.scalar(_HAS_TERMS, own):
            return NO_TERMS
        limits = await connection.execute(_LIMITS, own)
        budgets = await connection.execute(_BUDGETS, own)
        meters = await connection.execute(_METERS, own)
    return Terms(
        tuple(map(limit_of, limits)),
        tuple(map(budget_of, budgets)),
        tuple(
            [
                Meter(meter_of(row.scope, row.scope_id, row.unit, row.span), row.unit, row.span)
                for row in meters
            ]
        ),
        organization=principal.tenant_name,
        project=ids.project_id(project),
    )


def limit_of(row: Row) -> Limit:
    # `row` is one of `limits`.
    return Limit(row.scope, row.scope_id, row.what, row.value, row.window_s, row.model, row.mode)


def budget_of(row: Row) -> Budget:
    # `row` is one of `budgets`.
    return Budget(row.id, row.scope, row.scope_id, row.unit, row.span, row.cap, row.mode)


PRICES_MAX: Final = 100_000

_VALID_PRICES: Final = Statement("""
SELECT * FROM prices
WHERE valid_until IS NULL OR valid_until > now() - interval '1 day'
ORDER BY valid_from, id LIMIT :rows_max
""")


async def valid_prices(database: Database) -> list[Price]:
    async with database.runs_transaction() as connection:
        return prices_of(await connection.execute(_VALID_PRICES, {"rows_max": PRICES_MAX}))


def prices_of(rows: Iterable[Row]) -> list[Price]:
    # Rows are one per component; the rows of one id become one price.
    by_id: dict[tuple[UUID, UUID], tuple[Row, dict[Component, int]]] = {}
    for row in rows:
        nano: dict[Any, int] = by_id.setdefault((row.tenant_id, row.id), (row, {}))[1]
        if row.component in COMPONENTS:
            nano[row.component] = row.nano_per_unit
    return [
        Price(
            row.id,
            row.tenant_id,
            row.model,
            row.service_tier,
            nano,
            row.valid_from,
            row.valid_until,
        )
        for row, nano in by_id.values()
    ]
