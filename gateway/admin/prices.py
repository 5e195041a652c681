"""`/admin/v1/prices`: what models cost, in nano-dollars for one unit of each component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.admin.pages import whole_page
from gateway.admin.routes import AdminRoute
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.admin_bodies import PriceCreate, PriceEnd
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from gateway.admin.operations import Operations
    from gateway.admin.routes import AdminCall
    from gateway.limits.money import Price


def routes(operations: Operations) -> list[AdminRoute]:
    answers = PriceEndpoints(operations)
    return [
        AdminRoute("GET", "/prices", "prices.read", answers.list, "operator"),
        AdminRoute("POST", "/prices", "prices.write", answers.create, "operator", body=PriceCreate),
        AdminRoute("POST", "/prices/end", "prices.write", answers.end, "operator", body=PriceEnd),
    ]


class PriceEndpoints:
    """Endpoints of prices, which are only added to."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def list(self, _: AdminCall) -> dict[str, Any]:
        # Includes prices that have ended.
        return whole_page(list(map(_price, await self._operations.prices())))

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """Set a price from now or from `valid_from` (unix seconds), when the previous one ends."""
        asked = await call.body(PriceCreate)
        return _price(await self._operations.set_price(asked, call.author))

    async def end(self, call: AdminCall) -> dict[str, Any]:
        """End a price now: another one applies, or none. 404 if there is no such price."""
        asked = await call.body(PriceEnd)
        if not await self._operations.end_price(asked, call.author):
            raise ResourceNotFound(
                f"'{shown(asked.model)}' has no such price. GET /admin/v1/prices lists them.",
                code="price_not_found",
                param="model",
            )
        return {"object": "price.ended", "model": asked.model, "tier": asked.tier}


def _price(price: Price) -> dict[str, Any]:
    until = price.valid_until
    return {
        "id": str(price.id),
        "object": "price",
        "model": price.model,
        "tier": price.tier,
        "tenant_id": ids.tenant_id(TenantId(price.tenant_id)) if price.tenant_id.int else None,
        "nano_per_unit": dict(price.nano),
        "valid_from": int(price.valid_from.timestamp()),
        "valid_until": None if until is None else int(until.timestamp()),
    }
