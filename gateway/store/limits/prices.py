"""Read the prices of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.limits.money import COMPONENTS, Price
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from gateway.limits.money import Component
    from gateway.store.postgres.database import Database, Row

PRICES_MAX: Final = 100_000
"""Rows of prices that are read at once."""

_VALID: Final = Statement("""
SELECT * FROM prices
WHERE valid_until IS NULL OR valid_until > now() - interval '1 day'
ORDER BY valid_from, id LIMIT :rows_max
""")


async def valid(database: Database) -> list[Price]:
    """Return the prices that are valid now or will be. Raises `StoreError`."""
    async with database.runs_transaction() as connection:
        return prices_of(await connection.execute(_VALID, {"rows_max": PRICES_MAX}))


def prices_of(rows: Iterable[Row]) -> list[Price]:
    # Rows are one per component; the rows of one id become one price.
    found: dict[tuple[UUID, UUID], tuple[Row, dict[Component, int]]] = {}
    for row in rows:
        nano: dict[Any, int] = found.setdefault((row.tenant_id, row.id), (row, {}))[1]
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
        for row, nano in found.values()
    ]
