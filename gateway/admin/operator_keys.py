"""`/admin/v1/operators`: keys of those who run the gateway, and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from gateway import ids
from gateway.admin.pages import whole_page
from gateway.admin.routes import AdminRoute
from gateway.errors import AuthenticationError, ResourceNotFound, shown
from gateway.governance.audit import COMMAND_LINE
from gateway.protocol.admin.requests import NoBody, OperatorCreate
from gateway.store.admin import operators as rows
from gateway.tenancy.secrets import is_mistyped, kind_of

if TYPE_CHECKING:
    from gateway.admin.routes import AdminCall
    from gateway.governance.audit import Author
    from gateway.services.credentials.secrets import Peppers
    from gateway.store.admin.operators import OperatorKey
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Operator
    from gateway.tenancy.permissions import OperatorRole


class Operators:
    """Makes, lists and ends their keys, and tells whose one is. Nothing is cached: they are few."""

    def __init__(self, database: Database, peppers: Peppers) -> None:
        self._database = database
        self._peppers = peppers

    async def create(
        self,
        name: str,
        expires_in_s: int | None,
        role: OperatorRole = "owner",
        author: Author = COMMAND_LINE,
    ) -> tuple[OperatorKey, str]:
        """A key and its secret. Only who owns the tables may, here and below."""
        secret = self._peppers.new_secret("operator")
        new = rows.NewOperatorKey(
            ids.new_uuid(), name, secret.hint, secret.hash, secret.pepper_id, expires_in_s, role
        )
        return await rows.insert(self._database, new, author), secret.value

    async def list(self) -> list[OperatorKey]:
        """All of them, the oldest first."""
        return await rows.all_keys(self._database)

    async def disable(self, key_id: UUID, author: Author = COMMAND_LINE) -> OperatorKey:
        """Disable a key of an operator: from now on it is refused. Raises `ResourceNotFound`."""
        found = await rows.disable(self._database, key_id, author)
        if found is None:
            raise ResourceNotFound(f"There is no operator's key {key_id}.", param="key")
        return found

    async def authenticate(self, secret: str) -> Operator:
        """Whose key this is. Raises `AuthenticationError` for every other kind of key, too."""
        found = None
        if kind_of(secret) == "operator" and not is_mistyped(secret):
            peppers = (self._peppers.current, self._peppers.previous)
            for pepper in (one for one in peppers if one is not None):
                found = found or await rows.find(self._database, pepper.hash(secret))
        if found is None:
            raise AuthenticationError(
                "Incorrect key: /admin/v1 takes an operator's key. 'harmony-gateway operators "
                "create' makes one.",
                code="invalid_api_key",
            )
        return found


def operator_key_body(key: OperatorKey) -> dict[str, Any]:
    """A key of an operator as JSON, without its secret."""
    ended, expires = key.disabled_at, key.expires_at
    return {
        "id": str(key.id),
        "object": "operator_key",
        "name": key.name,
        "role": key.role,
        "redacted_value": f"***{key.hint}",
        "created_at": int(key.created_at.timestamp()),
        "disabled_at": None if ended is None else int(ended.timestamp()),
        "expires_at": None if expires is None else int(expires.timestamp()),
    }


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
