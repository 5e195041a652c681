"""Keys of operators: who runs the gateway may look after all tenants, and sees no content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.errors import AuthenticationError, ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.store.admin import operators as rows
from gateway.tenancy.secrets import is_mistyped, kind_of

if TYPE_CHECKING:
    from uuid import UUID

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
