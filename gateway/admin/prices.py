"""`/admin/v1/prices`, in nano-dollars for one unit of each component.

A price that is over keeps its row, for usage lines that have its id.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field
from sqlalchemy import and_, bindparam, func, insert, or_, select, update

from gateway import ids
from gateway.admin.routes import AdminRoute, changed, read, whole_page
from gateway.admin.tenants import check_name
from gateway.admin.transactions import CoreStatement, named, owning
from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.limits.money import ANY_TIER, COMPONENTS, NANO, Component, Price, PriceTier
from gateway.protocol.admin_bodies import (
    SECOND_MAX,
    Json,
    ModelId,
    ShortText,
    moment_of,
    seconds_of,
)
from gateway.protocol.base import AS_INTEGER, NullableModel
from gateway.store import audit_log, tenants
from gateway.store.limits.key_terms import PRICES_MAX, prices_of
from gateway.store.schema import EVERYONE
from gateway.store.tables import TABLES
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.admin.routes import AdminCall
    from gateway.audit import Author
    from gateway.store.postgres.database import Database

PRICES: Final = TABLES["prices"]
NANO_MAX: Final = 10 * NANO
"""Costs of a response and their sums have to fit into 63 bits."""


def routes(prices: Prices) -> list[AdminRoute]:
    def shown_all(rows: Sequence[Price]) -> Json:
        return whole_page(list(map(price_body, rows)))

    async def end(call: AdminCall) -> Json:
        body = await call.body(PriceEnd)
        await prices.end(call.author, body)
        return {"object": "price.ended", "model": body.model, "tier": body.tier}

    return [
        read("/prices", "prices.read", prices.list, shown_all),
        changed("/prices", "prices.write", prices.set, price_body, PriceCreate),
        AdminRoute("POST", "/prices/end", "prices.write", end, PriceEnd),
    ]


class PriceEnd(NullableModel):
    """`POST /admin/v1/prices/end`; without a `tenant` (its name) the price of all."""

    model: ModelId
    tier: PriceTier = ANY_TIER
    tenant: ShortText | None = None


class PriceCreate(PriceEnd):
    """`POST /admin/v1/prices`. `valid_from` is in unix seconds."""

    nano_per_unit: dict[Component, Annotated[int, Field(strict=True)]]
    valid_from: Annotated[int, Field(ge=0, le=SECOND_MAX), AS_INTEGER] | None = None

    def check(self) -> None:
        if not self.nano_per_unit:
            raise InvalidRequest(f"A price has some of: {', '.join(COMPONENTS)}.", param="price")
        if not all(0 <= one <= NANO_MAX for one in self.nano_per_unit.values()):
            raise InvalidRequest("A price is from 0 to ten dollars for a token or a call.")


def price_body(price: Price) -> Json:
    return {
        "id": str(price.id),
        "object": "price",
        "model": price.model,
        "tier": price.tier,
        "tenant_id": ids.tenant_id(TenantId(price.tenant_id)) if price.tenant_id.int else None,
        "nano_per_unit": dict(price.nano),
        "valid_from": seconds_of(price.valid_from),
        "valid_until": seconds_of(price.valid_until),
    }


_ALL: Final = CoreStatement(
    select(PRICES)
    .order_by(*(PRICES.c[name] for name in ("model", "tenant_id", "service_tier", "valid_from")))
    .order_by(PRICES.c.id)
    .limit(PRICES_MAX)
)
_OF_TIER: Final = (
    PRICES.c.tenant_id == bindparam("tenant_id"),
    PRICES.c.model == bindparam("model"),
    PRICES.c.service_tier == bindparam("service_tier"),
)
_AT: Final = bindparam("at", type_=PRICES.c.valid_from.type)
_END: Final = CoreStatement(
    update(PRICES)
    .where(
        and_(*_OF_TIER, PRICES.c.valid_from <= _AT),
        or_(PRICES.c.valid_until.is_(None), PRICES.c.valid_until > _AT),
    )
    .values(valid_until=_AT)
)
# It ends when the next one begins that was set for a later time.
_ADD: Final = CoreStatement(
    insert(PRICES).values(
        **named("tenant_id", "id", "component", "model", "service_tier", "nano_per_unit"),
        valid_from=_AT,
        valid_until=select(func.min(PRICES.c.valid_from))
        .where(*_OF_TIER, PRICES.c.valid_from > _AT)
        .scalar_subquery(),
    )
)


class Prices:
    def __init__(self, database: Database, aliases: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._aliases = aliases or {}

    async def list(self) -> list[Price]:
        async with owning(self._database) as connection:
            return prices_of(await connection.execute(_ALL))

    async def set(self, author: Author, body: PriceCreate) -> Price:
        """Set a price, until a later one begins; the earlier one ends."""
        body.check()
        tier = await self._tier(body)
        begin = _now() if body.valid_from is None else moment_of(body.valid_from)
        price = Price(
            ids.new_uuid(),
            tier["tenant_id"],
            tier["model"],
            body.tier,
            dict(body.nano_per_unit),
            begin,
        )
        changes = {"tier": body.tier, "nano": price.nano, "valid_from": begin.isoformat()}
        event = author.event("harmony.price.changed", price.model, changes_requested=changes)
        async with owning(self._database) as connection:
            await connection.execute(_END, {**tier, "at": begin})
            for component, nano in price.nano.items():
                row = {"id": price.id, "component": component, "nano_per_unit": nano}
                await connection.execute(_ADD, {**tier, **row, "at": begin})
            await audit_log.record(connection, _chain(price.tenant_id), event)
        return price

    async def end(self, author: Author, body: PriceEnd) -> None:
        """End the current price. Another applies then, or none."""
        tier, at = await self._tier(body), _now()
        changes = {"tier": body.tier, "valid_until": at.isoformat()}
        event = author.event("harmony.price.changed", tier["model"], changes_requested=changes)
        async with owning(self._database) as connection:
            if not await connection.count(_END, {**tier, "at": at}):
                raise ResourceNotFound(
                    f"'{shown(body.model)}' has no such price. GET /admin/v1/prices lists them.",
                    code="price_not_found",
                    param="model",
                )
            await audit_log.record(connection, _chain(tier["tenant_id"]), event)

    async def _tier(self, body: PriceEnd) -> dict[str, Any]:
        tenant_id = EVERYONE
        if body.tenant is not None:
            check_name(body.tenant, param="tenant")
            tenant_id = (await tenants.tenant_named(self._database, body.tenant)).id
        model = self._aliases.get(body.model, body.model)
        return {"tenant_id": tenant_id, "model": model, "service_tier": body.tier}


def _now() -> datetime:
    # Responses end at whole seconds.
    return datetime.now(UTC).replace(microsecond=0)


def _chain(tenant_id: UUID) -> UUID | None:
    # Prices for all tenants are in no tenant's audit log.
    return None if tenant_id == EVERYONE else tenant_id
