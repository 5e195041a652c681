"""Prices of models: only added to. One that is over keeps its row, for lines that have its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.limits.money import COMPONENTS, Price
from gateway.store import audit_log
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from gateway.governance.audit import AuditEvent
    from gateway.limits.money import Component
    from gateway.store.postgres.database import Database, Row

PRICES_MAX: Final = 100_000
"""Rows of prices that are read at once."""

_COLUMNS: Final = (
    "tenant_id, id, component, model, service_tier, nano_per_unit, valid_from, valid_until"
)
_VALID: Final = Statement(f"""
SELECT {_COLUMNS} FROM prices
WHERE valid_until IS NULL OR valid_until > now() - interval '1 day'
ORDER BY valid_from, id LIMIT :rows_max
""")  # noqa: S608 - constants only
_ALL: Final = Statement(f"""
SELECT {_COLUMNS} FROM prices ORDER BY model, tenant_id, service_tier, valid_from, id
LIMIT :rows_max
""")  # noqa: S608 - constants only
_END: Final = Statement("""
UPDATE prices SET valid_until = :at
WHERE tenant_id = :tenant AND model = CAST(:model AS text)
  AND service_tier = CAST(:tier AS text)
  AND (valid_until IS NULL OR valid_until > :at)
  AND valid_from <= :at
""")
# Until the next one that was set for a later time: when that was ended, this one is over, too.
_ADD: Final = Statement(f"""
INSERT INTO prices ({_COLUMNS})
VALUES (:tenant, :id, :component, :model, :tier, :nano, :valid_from, (
    SELECT min(later.valid_from) FROM prices AS later
    WHERE later.tenant_id = :tenant AND later.model = CAST(:model AS text)
      AND later.service_tier = CAST(:tier AS text)
      AND later.valid_from > CAST(:valid_from AS timestamptz)
))
""")  # noqa: S608 - constants only


async def valid(database: Database) -> list[Price]:
    """Return the prices that are valid now or will be. Raises `StoreError`."""
    async with database.runs_transaction() as connection:
        return _prices(await connection.execute(_VALID, {"rows_max": PRICES_MAX}))


async def every(database: Database) -> list[Price]:
    async with database.owner_transaction() as connection:
        return _prices(await connection.execute(_ALL, {"rows_max": PRICES_MAX}))


async def add(database: Database, price: Price, event: AuditEvent) -> bool:
    """Add a price; return True if it ends an earlier one.

    The earlier price of the same tenant, model and tier ends when this one begins, and this one
    ends when the next begins.
    """
    place = {"tenant": price.tenant_id, "model": price.model, "tier": price.tier}
    async with database.owner_transaction() as connection:
        ended = await connection.count(_END, {**place, "at": price.valid_from})
        for component, nano in price.nano.items():
            row = {**place, "id": price.id, "component": component, "nano": nano}
            await connection.execute(_ADD, {**row, "valid_from": price.valid_from})
        await audit_log.record(connection, _chain(price.tenant_id), event)
    return bool(ended)


async def end(
    database: Database, tenant_id: UUID, model: str, tier: str, at: datetime, event: AuditEvent
) -> bool:
    """End the price of a model. Return False if there is none."""
    place = {"tenant": tenant_id, "model": model, "tier": tier, "at": at}
    async with database.owner_transaction() as connection:
        is_over = bool(await connection.count(_END, place))
        if is_over:
            await audit_log.record(connection, _chain(tenant_id), event)
    return is_over


def _chain(tenant_id: UUID) -> UUID | None:
    # Prices for all tenants are in no tenant's audit log.
    return None if tenant_id == EVERYONE else tenant_id


def _prices(rows: Iterable[Row]) -> list[Price]:
    # Rows are one per component; the rows of one id become one price.
    found: dict[tuple[UUID, UUID], tuple[Row, dict[Component, int]]] = {}
    for row in rows:
        nano: dict[Any, int] = found.setdefault((row.tenant_id, row.id), (row, {}))[1]
        if row.component in COMPONENTS:
            nano[row.component] = row.nano_per_unit
    return [
        Price(
            id=row.id,
            tenant_id=row.tenant_id,
            model=row.model,
            tier=row.service_tier,
            nano=nano,
            valid_from=row.valid_from,
            valid_until=row.valid_until,
        )
        for row, nano in found.values()
    ]
