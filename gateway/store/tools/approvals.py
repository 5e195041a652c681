"""Approvals of MCP calls: what was asked for, and what came of it. Each can be used once.

A row holds digests and times only, so that it may exist for responses that are not stored: digests
under a key that is not in the database, so that nobody who reads it can try arguments.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final, Literal

from gateway.store.packing import pack_text
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

Consumed = Literal["consumed", "unknown", "expired", "used", "mismatch"]
"""Outcome of the use of an approval: it counts; nobody requested it, or it is long gone; it came
too late; another response used it; it was requested for another call, or its server or tool has
changed."""

_ASK: Final = Statement("""
INSERT INTO tool_approvals (tenant_id, request_id, digest, asked_at, expires_at)
VALUES (:tenant, :request_id, :digest, now(), now() + make_interval(secs => :ttl_s))
ON CONFLICT (tenant_id, request_id) DO NOTHING
""")
# One statement: of two responses that use the same approval at once, the second waits for the row,
# finds it used, and changes nothing.
_CONSUME: Final = Statement("""
UPDATE tool_approvals SET used_by = :used_by, used_at = now()
WHERE tenant_id = :tenant AND request_id = :request_id
  AND digest = :digest
  AND (used_by = :used_by OR used_by IS NULL AND expires_at > now())
""")
_FIND: Final = Statement("""
SELECT digest, used_by, expires_at > now() FROM tool_approvals
WHERE tenant_id = :tenant AND request_id = :request_id
""")


async def ask(
    database: Database,
    tenant_id: TenantId,
    request_id: str,
    digest: bytes,
    *,
    key: bytes,
    ttl_s: float,
) -> None:
    """Record an approval request, before anybody is shown it.

    `digest` is `gateway.protocol.grants.approval_digest`; it is stored under `key`. A
    repeated request changes nothing: a replica that takes the response over asks again.
    """
    row = {"tenant": tenant_id, "request_id": pack_text(request_id), "digest": _keyed(digest, key)}
    async with database.transaction(tenant_id) as connection:
        await connection.execute(_ASK, row | {"ttl_s": ttl_s})


async def consume(
    database: Database,
    tenant_id: TenantId,
    request_id: str,
    digest: bytes,
    used_by: UUID,
    *,
    key: bytes,
) -> Consumed:
    """Use an approval, granted or denied, for a response, once only.

    The same response may use it again, because a request that is retried after a lost commit must
    not fail.
    """
    parameters = {"tenant": tenant_id, "request_id": pack_text(request_id)}
    keyed = _keyed(digest, key)
    async with database.transaction(tenant_id) as connection:
        if await connection.count(_CONSUME, parameters | {"digest": keyed, "used_by": used_by}):
            return "consumed"
        return _why_not((await connection.execute(_FIND, parameters)).one_or_none(), keyed)


def _keyed(digest: bytes, key: bytes) -> bytes:
    return hmac.digest(key, digest, "sha256")


def _why_not(row: Row | None, digest: bytes) -> Consumed:
    if row is None:
        return "unknown"
    asked_for, used_by, is_valid = row
    if used_by is not None:
        return "used"
    if not is_valid:
        return "expired"
    return "unknown" if asked_for == digest else "mismatch"
