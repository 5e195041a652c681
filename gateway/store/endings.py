"""The end of a response: status, body, last log row, items and usage, in one transaction.

Whether a response is cancelled, completed or failed is decided here alone: one UPDATE with a
condition, so of several that try exactly one wins, on whatever replica. Its owner finishes it with
its claim; anybody may conclude it, which takes the claim away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import Integer, bindparam, func, or_, update

from gateway.errors import ClaimLost
from gateway.store import events, idempotency, messages, responses, turns, usage
from gateway.store.claims import Claim
from gateway.store.tables import RUNNING, TERMINAL
from gateway.store.tables import responses as table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.store.execution import Connection

    from gateway.generation import TokenUsage
    from gateway.protocol.context import StoredItem
    from gateway.store.engine import Database
    from gateway.store.events import LogRow
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId


ANSWERED: Final = frozenset({"completed", "incomplete"})
"""What is added to the conversation that it continues. Anything else leaves that as it was."""


@dataclass(frozen=True, slots=True)
class FinishedResponse:
    """A response that ends. `body` is the final `Response` object, byte for byte as it is shown.

    `epoch` is that of the claim under which it ends; `conclude` takes one of its own. `entries` is
    the last row of its log (None: it has no durable one). `recoveries` is JSON for operators, never
    shown: which rules repaired its output, how often.

    `items` are those not stored yet, positions ascending. `tokens` None writes no usage line.
    `free_key`: its idempotency key may be used again, because it failed before it said anything.
    """

    uuid: UUID
    epoch: int
    status: str
    completed_at: datetime
    body: bytes
    entries: LogRow | None = None
    recoveries: bytes = b"{}"
    items: Sequence[StoredItem] = ()
    tokens: TokenUsage | None = None
    free_key: bool = False


_END: Final = (
    update(table)
    .where(
        table.c.tenant_id == bindparam("of_tenant"),
        table.c.id == bindparam("of_id"),
        or_(*(table.c.status == status for status in RUNNING)),
        table.c.epoch == bindparam("held_epoch"),
        table.c.next_entry
        == func.coalesce(bindparam("first_entry", type_=Integer), table.c.next_entry),
    )
    .values(
        status=bindparam("status"),
        completed_at=bindparam("completed_at"),
        body=bindparam("body"),
        recoveries=bindparam("recoveries"),
        epoch=bindparam("epoch"),
        next_entry=func.coalesce(bindparam("next_entry", type_=Integer), table.c.next_entry),
        plan=None,
        prompt=None,
        owner=None,
        lease_until=None,
    )
    .returning(table.c.key_id, table.c.model, table.c.created_at, table.c.conversation_id)
)


async def finish(database: Database, tenant_id: TenantId, finished: FinishedResponse) -> None:
    """End a running response under the claim of its owner, all or nothing.

    Safe to repeat when the outcome of a commit was lost. Raises `ClaimLost`, with nothing written,
    when it was deleted, or another goes on with it or has ended it.
    """
    async with database.transaction(tenant_id) as connection:
        claim = Claim(tenant_id, finished.uuid, finished.epoch)
        if await _end(connection, claim, finished, held_epoch=finished.epoch):
            return
        stored = await responses.find(connection, tenant_id, finished.uuid)
    if stored is None or (stored.epoch, stored.status) != (finished.epoch, finished.status):
        raise ClaimLost


async def conclude(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    end: Callable[[StoredResponse, list[LogRow]], Awaitable[FinishedResponse | None]],
    *,
    from_entry: int = 0,
) -> StoredResponse | None:
    """End a response whoever owns it; the response as it is then, None when it is unknown.

    `end` gets the running response, locked, and its log from the row that holds `from_entry` on. It
    must not take long: others wait for the row, and the server gives up on a transaction that
    pauses. What it returns is written under the next epoch, None leaves everything as it is. It is
    not called for one that has ended already. Raises `ValueError` for an end that does not follow
    on the log.
    """
    async with database.transaction(tenant_id) as connection:
        stored = await responses.find(connection, tenant_id, uuid, locked=True)
        if stored is None or stored.is_terminal:
            return stored
        log: list[LogRow] = []
        if stored.durable:
            log = await events.rows(connection, tenant_id, uuid, stored.day, from_entry=from_entry)
        finished = await end(stored, log)
        if finished is None:
            return stored
        claim = Claim(tenant_id, uuid, stored.epoch + 1)
        if not await _end(connection, claim, finished, held_epoch=stored.epoch):
            raise ValueError("the end is not that of this response, or leaves a gap in its log")
        return await responses.find(connection, tenant_id, uuid)


async def _end(
    connection: Connection, claim: Claim, finished: FinishedResponse, *, held_epoch: int
) -> bool:
    """Write the end under `claim`, if `held_epoch` is still the epoch. False: nothing written."""
    if finished.status not in TERMINAL:
        raise ValueError(f"{finished.status} is no end")
    entries = finished.entries
    end = {
        "of_tenant": claim.tenant_id,
        "of_id": claim.uuid,
        "held_epoch": held_epoch,
        "epoch": claim.epoch,
        "first_entry": entries and entries.first_entry,
        "next_entry": entries and entries.first_entry + entries.count,
        "status": finished.status,
        "completed_at": finished.completed_at,
        "body": finished.body,
        "recoveries": finished.recoveries,
    }
    ended = (await connection.execute(_END, end)).one_or_none()
    if ended is None:
        return False
    if entries is not None:
        await events.add(connection, claim, ended.created_at, entries)
    await messages.add(connection, claim.tenant_id, claim.uuid, finished.items)
    if ended.conversation_id is not None and finished.status in ANSWERED:
        await turns.append(connection, claim.tenant_id, ended.conversation_id, claim.uuid)
    if finished.tokens is not None:
        line = usage.UsageLine(
            response=claim.uuid,
            key_id=ended.key_id,
            model=ended.model,
            at=finished.completed_at,
            tokens=finished.tokens,
        )
        await usage.add(connection, claim.tenant_id, line)
    if finished.free_key:
        await idempotency.free(connection, claim.tenant_id, claim.uuid)
    return True
