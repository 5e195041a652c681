"""`/admin/v1/operators`: keys of those who run the gateway, and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from gateway.api.admin.pages import whole_page
from gateway.api.admin.routes import AdminRoute
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.admin.requests import NoBody, OperatorCreate
from gateway.services.admin.operators import operator_key_body

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.operators import Operators


def routes(operators: Operators) -> list[AdminRoute]:
    """Those of keys of operators, which an owner among them alone has."""
    answers = OperatorKeyEndpoints(operators)
    disable = "/operators/{id}/disable"
    return [
        AdminRoute("GET", "/operators", "operators.read", answers.list, "operator"),
        AdminRoute(
            "POST", "/operators", "operators.write", answers.create, "operator", body=OperatorCreate
        ),
        AdminRoute("POST", disable, "operators.write", answers.disable, "operator", body=NoBody),
    ]


class OperatorKeyEndpoints:
    """Endpoints of keys of operators."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def list(self, _: AdminCall) -> dict[str, Any]:
        """The oldest first, those that work no more included."""
        return whole_page(list(map(operator_key_body, await self._operators.list())))

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """A key with a role; its value is shown this once."""
        asked = await call.body(OperatorCreate)
        key, value = await self._operators.create(
            asked.name, asked.expires_in_seconds, asked.role, call.author
        )
        return {**operator_key_body(key), "value": value}

    async def disable(self, call: AdminCall) -> dict[str, Any]:
        """It works no more, from the next request on."""
        await call.body(NoBody)
        try:
            key_id = UUID(call.path["id"])
        except ValueError:
            raise ResourceNotFound(
                f"There is no operator's key '{shown(call.path['id'])}'.", param="id"
            ) from None
        return operator_key_body(await self._operators.disable(key_id, call.author))
