"""Count the background responses in the scope of a limit, queued or generated, by their rows.

The process that accepts a response counts before it queues the response, in turn with others of its
tenant; the process that claims counts the generated ones (`store.claims`). There is no counter, so
none has to be decreased.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.limits.accounting import BUSY_WAIT_S
from gateway.limits.refusal import ReachedLimit, too_many
from gateway.store.limits.key_terms import IN_SCOPE
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from gateway.limits.rules import Limit, Terms, What
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

_STATES: Final[Mapping[str, str]] = {
    "background_queued": "status = 'queued'",
    "background_running": "status = 'in_progress' AND durable AND background",
}
_COUNTS: Final = {
    (what, scope): Statement(f"""
SELECT count(*) FROM (
    SELECT FROM responses AS one
    WHERE tenant_id = :tenant AND {state} AND {of_scope} LIMIT :value
) AS found
""")  # noqa: S608 - constants only
    for what, state in _STATES.items()
    for scope, of_scope in IN_SCOPE.items()
}


async def count(connection: Connection, tenant_id: UUID, limit: Limit) -> int:
    """Count background responses of the limit's scope, up to the limit."""
    parameters = {"tenant": tenant_id, "scope_id": limit.scope_id, "value": limit.value}
    found: int = await connection.scalar(_COUNTS[limit.what, limit.scope], parameters)
    return found


async def check_queue(
    connection: Connection, tenant_id: TenantId, terms: Terms, *, in_turn: bool
) -> None:
    """Raise `RateLimited` if one more response may not be queued.

    With `in_turn` the caller's transaction queues it, and others of the tenant that do the same
    wait until the transaction ends.
    """
    binding = _queues(terms, "enforce")
    if binding and in_turn:
        await take_turns(connection, tenant_id, TenantLock.BACKGROUND)
    for limit in binding:
        used = await count(connection, tenant_id, limit)
        if used >= limit.value:
            raise too_many(ReachedLimit(limit, terms, ""), used=used, wait_s=BUSY_WAIT_S)


async def observed(database: Database, tenant_id: TenantId, terms: Terms) -> list[Limit]:
    """Return the observed limits that would refuse one more. Raises `StoreError`."""
    observing = _queues(terms, "observe")
    if not observing:
        return []
    async with database.transaction(tenant_id) as connection:
        return [
            limit for limit in observing if await count(connection, tenant_id, limit) >= limit.value
        ]


def _queues(terms: Terms, mode: str) -> list[Limit]:
    queued: What = "background_queued"
    return [one for one in terms.background if (one.what, one.mode) == (queued, mode)]
