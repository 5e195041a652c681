"""`/admin/v1/operators`: keys of operators, and authentication on their listener.

The owner of the tables makes them; the serving role can only find one by the hash of its secret.
They are few, and not cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import bindparam, func, insert, select, update

from gateway import ids
from gateway.admin.routes import OPERATOR_BASE, audited, changed, read, whole_page
from gateway.admin.transactions import CoreStatement, in_seconds, named, owning
from gateway.api.access.authentication import (
    ADMIN_PATHS,
    PUBLIC_PATHS,
    check_address,
    check_named,
    credentials_of,
    require_admin,
)
from gateway.api.client_connection import connection_of
from gateway.errors import AuthenticationError, ResourceNotFound, shown
from gateway.protocol.admin_bodies import DisplayName, Lifetime, NoBody, seconds_of
from gateway.protocol.base import NullableModel
from gateway.store import audit_log
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE, EVERYONE
from gateway.store.tables import TABLES
from gateway.tenancy import Operator
from gateway.tenancy.permissions import OperatorRole
from gateway.tenancy.secrets import is_mistyped, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.admin.routes import AdminRoute
    from gateway.audit import Author
    from gateway.services.access import Access, Peppers
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import Network

OPERATOR_KEYS: Final = TABLES["operator_keys"]


class OperatorCreate(NullableModel):
    """`POST /admin/v1/operators`: a key of the operator plane."""

    name: DisplayName
    role: OperatorRole = "owner"
    expires_in_seconds: Lifetime | None = None


_TAKE_ROLE: Final = Statement("SELECT set_config('role', :role, true)")
# Functions of the schema, so that who serves can read no other row.
_FIND: Final = Statement("""
SELECT key_id, name, role FROM find_operator(:key_hash)
""")
_INSERT: Final = CoreStatement(
    insert(OPERATOR_KEYS)
    .values(
        tenant_id=EVERYONE,
        **named("id", "name", "hint", "hash", "pepper_id", "role"),
        created_at=func.now(),
        expires_at=in_seconds("expires_in_s"),
    )
    .returning(OPERATOR_KEYS)
)
_ALL: Final = CoreStatement(
    select(OPERATOR_KEYS).order_by(OPERATOR_KEYS.c.created_at, OPERATOR_KEYS.c.id)
)
_DISABLE: Final = CoreStatement(
    update(OPERATOR_KEYS)
    .where(OPERATOR_KEYS.c.id == bindparam("id"))
    .values(disabled_at=func.coalesce(OPERATOR_KEYS.c.disabled_at, func.now()))
    .returning(OPERATOR_KEYS)
)


def role_of_row(row: Row) -> OperatorRole:
    # Keys from before roles existed are owners' keys.
    role: OperatorRole = row.role or "owner"
    return role


class Operators:
    def __init__(self, database: Database, peppers: Peppers) -> None:
        self._database = database
        self._peppers = peppers

    async def create(self, author: Author, body: OperatorCreate) -> tuple[Row, str]:
        secret = self._peppers.new_secret("operator")
        values = {
            "id": ids.new_uuid(),
            "name": body.name,
            "hint": secret.hint,
            "hash": secret.hash,
            "pepper_id": secret.pepper_id,
            "role": body.role,
            "expires_in_s": body.expires_in_seconds,
        }
        async with owning(self._database) as connection:
            key = (await connection.execute(_INSERT, values)).one()
            data = {**audited(body), "role": body.role}
            event = author.event("harmony.operator.created", str(key.id), data=data)
            await audit_log.record(connection, None, event)
        return key, secret.value

    async def list(self) -> list[Row]:
        async with owning(self._database) as connection:
            return await connection.execute(_ALL)

    async def disable(self, author: Author, key_id: str) -> Row:
        try:
            uuid = UUID(key_id)
        except ValueError:
            raise _unknown_key(key_id) from None
        async with owning(self._database) as connection:
            row = (await connection.execute(_DISABLE, {"id": uuid})).one_or_none()
            if row is None:
                raise _unknown_key(key_id)
            event = author.event("harmony.operator.disabled", str(uuid))
            await audit_log.record(connection, None, event)
        return row

    async def authenticate(self, secret: str) -> Operator:
        operator = None
        if kind_of(secret) == "operator" and not is_mistyped(secret):
            peppers = (self._peppers.current, self._peppers.previous)
            for pepper in (one for one in peppers if one is not None):
                operator = operator or await self._find(pepper.hash(secret))
        if operator is None:
            raise AuthenticationError(
                "Incorrect key: /admin/v1 takes an operator's key. 'harmony-gateway operators "
                "create' makes one.",
                code="invalid_api_key",
            )
        return operator

    async def _find(self, key_hash: bytes) -> Operator | None:
        async with self._database.owner_transaction() as connection:
            await connection.execute(_TAKE_ROLE, {"role": APP_ROLE})
            row = (await connection.execute(_FIND, {"key_hash": key_hash})).one_or_none()
        return None if row is None else Operator(row.key_id, row.name, role_of_row(row))


def _unknown_key(key_id: str) -> ResourceNotFound:
    return ResourceNotFound(f"There is no operator's key '{shown(key_id)}'.", param="id")


def operator_key_body(key: Row) -> dict[str, Any]:
    return {
        "id": str(key.id),
        "object": "operator_key",
        "name": key.name,
        "role": role_of_row(key),
        "redacted_value": f"***{key.hint}",
        "created_at": seconds_of(key.created_at),
        "disabled_at": seconds_of(key.disabled_at),
        "expires_at": seconds_of(key.expires_at),
    }


def routes(operators: Operators) -> list[AdminRoute]:
    def shown_all(keys: Sequence[Row]) -> dict[str, Any]:
        return whole_page(list(map(operator_key_body, keys)))

    def shown_once(made: tuple[Row, str]) -> dict[str, Any]:
        key, value = made
        return {**operator_key_body(key), "value": value}

    may_write: Final = "operators.write"
    disable = "/operators/{id}/disable"
    return [
        read("/operators", "operators.read", operators.list, shown_all),
        changed("/operators", may_write, operators.create, shown_once, OperatorCreate),
        changed(disable, may_write, operators.disable, operator_key_body, NoBody),
    ]


class AdminAuthentication:
    """Middleware of the admin listener: puts a `Principal` or an `Operator` into the scope."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        operators: Operators,
        *,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._app = app
        self._access = access
        self._operators = operators
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            credentials = credentials_of(scope)
            if credentials.secret is None:
                raise AuthenticationError(
                    "You didn't provide a key. Send an admin key, or an operator's, in the "
                    "Authorization header, as in 'Authorization: Bearer YOUR_KEY'."
                )
            if scope["path"].startswith(f"{OPERATOR_BASE}/"):
                scope["operator"] = await self._operators.authenticate(credentials.secret)
            else:
                secret = credentials.secret
                principal = self._access.cached(secret) or await self._access.authenticate(secret)
                if scope["path"].startswith(ADMIN_PATHS):
                    require_admin(principal)
                check_named(principal, credentials)
                if principal.key.networks:
                    check_address(principal, scope, self._trusted_proxies)
                scope["principal"], scope["dialect"] = principal, "openai"
            if (connection := connection_of(scope)) is not None:
                connection.trust()
        await self._app(scope, receive, send)
