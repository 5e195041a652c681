"""Keys of operators: who runs the gateway may look after all tenants, and sees no content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import ids
from gateway.errors import AuthenticationError, ResourceNotFound
from gateway.store.admin import operators as rows
from gateway.tenancy.secrets import is_mistyped, kind_of

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.services.credentials.secrets import Peppers
    from gateway.store.admin.operators import OperatorKey
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Operator


class Operators:
    """Makes, lists and ends their keys, and tells whose one is. Nothing is cached: they are few."""

    def __init__(self, database: Database, peppers: Peppers) -> None:
        self._database = database
        self._peppers = peppers

    async def create(self, name: str, expires_in_s: int | None) -> tuple[OperatorKey, str]:
        """A key and its secret. Only who owns the tables may: it is for the command line."""
        secret = self._peppers.new_secret("operator")
        new = rows.NewOperatorKey(
            ids.new_uuid(), name, secret.hint, secret.hash, secret.pepper_id, expires_in_s
        )
        return await rows.insert(self._database, new), secret.value

    async def list(self) -> list[OperatorKey]:
        """All of them, the oldest first."""
        return await rows.all_keys(self._database)

    async def disable(self, key_id: UUID) -> OperatorKey:
        """It works no more. Raises `ResourceNotFound`."""
        found = await rows.disable(self._database, key_id)
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
