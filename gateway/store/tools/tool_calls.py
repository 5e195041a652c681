"""Calls of hosted tools: their audit, and the approvals of those of MCP servers.

The audit has one row for each attempt at a call that the gateway answered, without arguments and
results. The rows outlive the response, like its usage.

An approval can be used once. Its row may exist for responses that are not stored: it has times and
digests only, made with a key that is not in the database.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.protocol.request_errors import refused_approval
from gateway.store import content
from gateway.store.packing import pack_text
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Batch, Rows, Statement, by_tenant
from gateway.store.tables.columns import typed
from gateway.store.tables.tools import tool_calls

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.protocol.request_errors import ApprovalFault
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import TenantId

_COLUMNS: Final = typed(tool_calls, without="tenant_id")
_CALLS: Final = Rows("call", _COLUMNS)
_ADD_ALL: Final = Batch(
    f"""
INSERT INTO tool_calls (tenant_id, {_CALLS.names})
SELECT CAST(:tenant AS uuid), call.* FROM {{call}}
ON CONFLICT DO NOTHING
""",  # noqa: S608 - constants only
    _CALLS,
)


_SINCE: Final = Statement(f"""
SELECT {_CALLS.names} FROM tool_calls
WHERE tenant_id = :tenant AND at > CAST(:begin AS timestamptz)
ORDER BY at DESC, response_id, ordinal DESC, attempt DESC
LIMIT :rows_max
""")  # noqa: S608 - constants only
_NAMES: Final = ("server", "tool", "approval_request_id", "hosts")


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """Attempt at a call. `server` is the identity of an MCP server, otherwise the `kind`. The
    result's size is that which the model got. `replica` is the name under which the process claims
    responses. `approval`: the `user` approved the call, by the answer to `approval_request_id`, or
    was `never` asked. `hosts` were sent something.
    """

    response: UUID
    ordinal: int
    attempt: int
    kind: str
    server: str
    tool: str
    arguments_hash: bytes
    arguments_bytes: int
    result_bytes: int
    result_ids: int
    outcome: str
    duration_ms: int
    replica: str
    at: datetime
    approval: str | None = None
    approval_request_id: str | None = None
    hosts: tuple[str, ...] = ()


async def record_all(database: Database, calls: Sequence[tuple[TenantId, AuditedCall]]) -> None:
    """Write at least one row, all or none. A second row of an attempt changes nothing."""
    groups = by_tenant(calls)
    await database.keyring.ready([tenant_id for tenant_id, _ in groups])
    async with database.bulk_transaction(groups[0][0], is_only=len(groups) == 1) as connection:
        for tenant_id, group in groups:
            await turn_to(connection, tenant_id)
            cipher = connection.cipher(tenant_id)
            made = [content.sealed(cipher, "tool_calls", _row(call)) for _, call in group]
            statement, rows = _ADD_ALL.of(made)
            await connection.execute(statement, {"tenant": tenant_id, **rows})


def _row(call: AuditedCall) -> dict[str, Any]:
    row = {name: getattr(call, name) for name in _COLUMNS if name != "response_id"}
    row["response_id"] = call.response
    row["hosts"] = " ".join(call.hosts) or None
    # Names of servers and tools may hold characters that PostgreSQL's text refuses.
    for name in _NAMES:
        row[name] = row[name] and row[name].encode("utf-8", "replace")
    return row


async def since(
    database: Database, tenant_id: TenantId, begin: datetime, *, rows_max: int
) -> list[AuditedCall]:
    wanted = {"tenant": tenant_id, "begin": begin, "rows_max": rows_max}
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_SINCE, wanted)
        cipher = connection.cipher(tenant_id)
    return [_call(row, cipher) for row in rows]


def _call(row: Row, cipher: ContentCipher) -> AuditedCall:
    fields = dict(zip(_COLUMNS, row, strict=True))
    fields |= content.opened(cipher, "tool_calls", fields, ("server", "tool", "hosts"))
    for name in _NAMES:
        fields[name] = (
            None if fields[name] is None else bytes(fields[name]).decode("utf-8", "replace")
        )
    fields["response"] = fields.pop("response_id")
    fields["hosts"] = tuple((fields["hosts"] or "").split())
    return AuditedCall(**fields)


Approvals = Sequence[tuple[str, bytes]]
"""Id of each approval request, and the keyed digest of its call."""

_ASK_APPROVAL: Final = Statement("""
INSERT INTO tool_approvals (tenant_id, request_id, digest, asked_at, expires_at)
VALUES (:tenant, :request_id, :digest, now(), now() + make_interval(secs => :ttl_s))
ON CONFLICT (tenant_id, request_id) DO NOTHING
""")
# If two responses use the same approval at once, the second waits for the row, finds it used, and
# changes nothing.
_USE_APPROVAL: Final = Statement("""
UPDATE tool_approvals SET used_by = :used_by, used_at = now()
WHERE tenant_id = :tenant AND request_id = :request_id
  AND digest = :digest
  AND (used_by = :used_by OR used_by IS NULL AND expires_at > now())
""")
_FIND_APPROVAL: Final = Statement("""
SELECT digest, used_by, expires_at > now() FROM tool_approvals
WHERE tenant_id = :tenant AND request_id = :request_id
""")


async def ask_approval(
    database: Database,
    tenant_id: TenantId,
    request_id: str,
    digest: bytes,
    *,
    key: bytes,
    ttl_s: float,
) -> None:
    """Record an approval request, before anybody is shown it.

    `digest` (`gateway.protocol.grants.approval_digest`) is stored under `key`. A repeated request
    changes nothing: a replica that takes the response over asks again.
    """
    row = {"tenant": tenant_id, "request_id": pack_text(request_id), "digest": keyed(digest, key)}
    async with database.transaction(tenant_id) as connection:
        await connection.execute(_ASK_APPROVAL, row | {"ttl_s": ttl_s})


async def use_approvals(
    connection: Connection, tenant_id: TenantId, approvals: Approvals, used_by: UUID
) -> None:
    """Use approvals, granted or denied, in the transaction that accepts the response.

    The same response may use them again. Raises `InvalidRequest`.
    """
    for request_id, digest in sorted(approvals):  # so that no two transactions wait for each other
        parameters = {"tenant": tenant_id, "request_id": pack_text(request_id)}
        used = parameters | {"digest": digest, "used_by": used_by}
        if not await connection.count(_USE_APPROVAL, used):
            row = (await connection.execute(_FIND_APPROVAL, parameters)).one_or_none()
            raise refused_approval(request_id, _why_not(row, digest))


def keyed(digest: bytes, key: bytes) -> bytes:
    return hmac.digest(key, digest, "sha256")


def _why_not(row: Row | None, digest: bytes) -> ApprovalFault:
    if row is None:
        return "unknown"
    requested_digest, used_by, is_valid = row
    if used_by is not None:
        return "used"
    if not is_valid:
        return "expired"
    return "unknown" if requested_digest == digest else "mismatch"
