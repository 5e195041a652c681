"""`/admin/v1/prices`: what models cost, in nano-dollars for one unit of each component."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.admin.pages import whole_page
from gateway.admin.routes import AdminRoute
from gateway.admin.transactions import owned
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.admin.requests import PriceCreate, PriceEnd
from gateway.services.access import check_name
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from gateway.admin.routes import AdminCall
    from gateway.limits.money import Price
    from gateway.services.limits import Limits


def routes(limits: Limits) -> list[AdminRoute]:
    answers = PriceEndpoints(limits)
    return [
        AdminRoute("GET", "/prices", "prices.read", answers.list, "operator"),
        AdminRoute("POST", "/prices", "prices.write", answers.create, "operator", body=PriceCreate),
        AdminRoute("POST", "/prices/end", "prices.write", answers.end, "operator", body=PriceEnd),
    ]


class PriceEndpoints:
    """Endpoints of prices, which are only added to."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def list(self, _: AdminCall) -> dict[str, Any]:
        # Includes prices that have ended.
        with owned():
            return whole_page(list(map(_price, await self._limits.prices())))

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """Set a price from now or from `valid_from` (unix seconds), when the previous one ends."""
        asked = await call.body(PriceCreate)
        begins = asked.valid_from
        with owned():
            price = await self._limits.set_price(
                asked.model,
                asked.nano_per_unit,
                tenant_id=await self._tenant_id(asked.tenant),
                tier=asked.tier,
                valid_from=None if begins is None else datetime.fromtimestamp(begins, UTC),
                author=call.author,
            )
        return _price(price)

    async def end(self, call: AdminCall) -> dict[str, Any]:
        """End a price now: another one applies, or none. 404 if there is no such price."""
        asked = await call.body(PriceEnd)
        with owned():
            has_ended = await self._limits.end_price(
                asked.model,
                tenant_id=await self._tenant_id(asked.tenant),
                tier=asked.tier,
                author=call.author,
            )
        if not has_ended:
            raise ResourceNotFound(
                f"'{shown(asked.model)}' has no such price. GET /admin/v1/prices lists them.",
                code="price_not_found",
                param="model",
            )
        return {"object": "price.ended", "model": asked.model, "tier": asked.tier}

    async def _tenant_id(self, name: str | None) -> TenantId | None:
        if name is None:
            return None
        check_name(name, param="tenant")
        return await self._limits.tenant(name)


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
