"""Idempotency keys: under which key of its client's a response was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.errors import KeyTaken
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key as it is kept: SHA-256 of it, and of the body that came with it.

    It stands for the response it was first sent for until it is `ttl_s` old.
    """

    key_hash: bytes
    fingerprint: bytes
    ttl_s: float


class KeyUse(NamedTuple):
    """Use of a key: the response that it stands for, and the fingerprint of its body."""

    fingerprint: bytes
    uuid: UUID


_FIND: Final = Statement("""
SELECT fingerprint, response_id
FROM idempotency_keys
WHERE tenant_id = :tenant AND key_hash = :key_hash
  AND created_at > clock_timestamp() - make_interval(secs => :ttl_s)
""")
_TAKE: Final = Statement("""
INSERT INTO idempotency_keys AS key (tenant_id, key_hash, fingerprint, response_id, created_at)
VALUES (:tenant, :key_hash, :fingerprint, :response, clock_timestamp())
ON CONFLICT (tenant_id, key_hash) DO UPDATE
SET fingerprint = excluded.fingerprint, response_id = excluded.response_id,
    created_at = excluded.created_at
WHERE key.created_at <= clock_timestamp() - make_interval(secs => :ttl_s)
RETURNING true
""")
_FREE: Final = Statement("""
DELETE FROM idempotency_keys WHERE tenant_id = :tenant AND response_id = :response
""")


async def find_key(
    database: Database, tenant_id: TenantId, key_hash: bytes, *, ttl_s: float
) -> KeyUse | None:
    """Return the response that the key stands for, or None if the key is free."""
    parameters = {"tenant": tenant_id, "key_hash": key_hash, "ttl_s": ttl_s}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_FIND, parameters)).one_or_none()
    return None if row is None else KeyUse(*row)


async def check(connection: Connection, tenant_id: TenantId, key: IdempotencyKey) -> None:
    """Raise `KeyTaken` if the key stands for a response, inside the caller's transaction."""
    parameters = {"tenant": tenant_id, "key_hash": key.key_hash, "ttl_s": key.ttl_s}
    if (await connection.execute(_FIND, parameters)).one_or_none() is not None:
        raise KeyTaken


async def take(
    connection: Connection, tenant_id: TenantId, uuid: UUID, key: IdempotencyKey
) -> None:
    """Bind the key to a response, inside the transaction that inserts it.

    Waits for another transaction that binds it. Raises `KeyTaken`.
    """
    parameters = {
        "tenant": tenant_id,
        "key_hash": key.key_hash,
        "fingerprint": key.fingerprint,
        "response": uuid,
        "ttl_s": key.ttl_s,
    }
    if not await connection.scalar(_TAKE, parameters):
        raise KeyTaken


async def free(connection: Connection, tenant_id: TenantId, uuid: UUID) -> None:
    # The key stands for the response no more.
    await connection.execute(_FREE, {"tenant": tenant_id, "response": uuid})
