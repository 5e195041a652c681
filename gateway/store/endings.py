"""The end of a response: status, body, last log row, items and usage, in one transaction.

One conditional UPDATE decides, so exactly one of several attempts wins, on any replica.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import ClaimLost
from gateway.store import content, conversations, events, flushes, messages, responses, usage_lines
from gateway.store.claims import Claim
from gateway.store.postgres.database import turn_to, usable_groups
from gateway.store.postgres.statements import Batch, Rows, Statement
from gateway.store.schema import TERMINAL
from gateway.store.tables.ledger import COUNTS, METERED
from gateway.store.tables.responses import ENDED, LOGGED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.generation import TokenUsage
    from gateway.protocol.context_item import StoredItem
    from gateway.store.events import LogRow
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId


ANSWERED: Final = frozenset({"completed", "incomplete"})


@dataclass(frozen=True, slots=True)
class FinishedResponse:
    """A response that ends. `body` is the final `Response` object, byte for byte as it is shown.

    `entries` is the last row of a durable log. `recoveries` is JSON for operators: which rules
    repaired the output, how often. `items` are those not stored yet. `tokens` None writes no usage
    line. `free_key`: it failed before any output, so its idempotency key may be used again.
    `tool_state` None leaves what was accepted.
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
    has_secrets: bool = False
    tool_state: bytes | None = None
    placement: bytes | None = None
    timeline: bytes | None = None
    metered: usage_lines.Metered = usage_lines.UNKNOWN


_END: Final = Statement("""
UPDATE responses
SET status = :status, completed_at = :completed_at, body = :body, recoveries = :recoveries,
    tool_state = coalesce(:tool_state, tool_state), placement = :placement,
    timeline = :timeline, epoch = :epoch,
    next_entry = coalesce(:next_entry, next_entry),
    plan = NULL, prompt = NULL, owner = NULL, lease_until = NULL
WHERE tenant_id = :tenant AND id = :id AND status IN ('queued', 'in_progress')
  AND epoch = :held_epoch AND next_entry = coalesce(:first_entry, next_entry)
RETURNING key_id, project_id, model, background, created_at, conversation_id
""")
# The owner adds its output to a response that another process ended. It can do so only once,
# because the epoch moves on.
_DEPOSIT: Final = Statement("""
UPDATE responses
SET body = :body, recoveries = :recoveries, tool_state = coalesce(:tool_state, tool_state),
    timeline = :timeline, epoch = :epoch + 2
WHERE tenant_id = :tenant AND id = :id AND NOT durable AND status = :status AND status = 'failed'
  AND epoch = :epoch + 1
RETURNING key_id, project_id, model, background
""")
_FIND_LEFT: Final = Statement("""
SELECT request FROM responses
WHERE tenant_id = :tenant AND id = :id AND status IN ('queued', 'in_progress')
  AND (owner IS NULL OR lease_until < clock_timestamp())
FOR NO KEY UPDATE
""")
_END_SEALED: Final = Statement("""
UPDATE responses
SET status = 'failed', completed_at = clock_timestamp(), epoch = epoch + 1,
    plan = NULL, prompt = NULL, owner = NULL, lease_until = NULL
WHERE tenant_id = :tenant AND id = :id
""")
_LINE: Final = "tenant_id, response_id, key_id, project_id, model, at, status, background"
_COUNTS: Final = ", ".join((*METERED, *COUNTS))
_ENDS: Final = Rows("sent", {**ENDED, **LOGGED, **METERED, **COUNTS})
# Several `_END`s in one statement, with their usage and logs. Rows that others have locked are left
# out, because waiting for one would delay all the others; so are turns of a conversation, which
# lock it.
_END_ALL: Final = Batch(
    f"""
WITH sent AS MATERIALIZED (
    SELECT * FROM {{sent}} ORDER BY id
), held AS MATERIALIZED (
    SELECT sent.*, head.key_id, head.project_id, head.model, head.background, head.created_at
    FROM sent, LATERAL (
        SELECT one.key_id, one.project_id, one.model, one.background, one.created_at
        FROM responses AS one
        WHERE one.tenant_id = :tenant AND one.id = sent.id AND one.epoch = sent.epoch
          AND one.status IN ('queued', 'in_progress')
          AND one.next_entry = coalesce(sent.first_entry, one.next_entry)
          AND one.conversation_id IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
), ended AS (
    UPDATE responses AS one
    SET status = held.status, completed_at = held.completed_at, body = held.body,
        recoveries = held.recoveries, tool_state = held.tool_state, placement = held.placement,
        timeline = held.timeline,
        next_entry = coalesce(held.first_entry + held.entry_count, one.next_entry),
        plan = NULL, prompt = NULL, owner = NULL, lease_until = NULL
    FROM held
    WHERE one.tenant_id = :tenant AND one.id = ANY(CAST(:ids AS uuid[])) AND one.id = held.id
    RETURNING one.id
), logged AS (
    INSERT INTO events (tenant_id, response_id, day, epoch, first_entry, entry_count, entries)
    SELECT CAST(:tenant AS uuid), id, CAST(created_at AT TIME ZONE 'UTC' AS date), epoch,
           first_entry, entry_count, entries
    FROM held WHERE entries IS NOT NULL
), said AS (
    INSERT INTO messages (tenant_id, {messages.ADDED.names})
    SELECT CAST(:tenant AS uuid), item.*
    FROM {{item}} JOIN held ON held.id = item.response_id
), metered AS (
    INSERT INTO usage ({_LINE}, {_COUNTS})
    SELECT CAST(:tenant AS uuid), id, key_id, project_id, model, completed_at, status, background,
        {_COUNTS}
    FROM held WHERE input_tokens IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id FROM ended
""",  # noqa: S608 - constants only
    _ENDS,
    messages.ADDED,
)


async def finish_all(
    database: Database, ends: Sequence[tuple[TenantId, FinishedResponse]]
) -> dict[int, bool]:
    """End several responses as `finish` does, in one transaction.

    Return True by the index of each that ended. Frees no key and erases no secret. After
    `StoreUnavailable` the outcome of all is unknown; after an error of a statement nothing is
    written.
    """
    groups = await usable_groups(database, ends)
    ended: dict[int, bool] = {}
    if not groups:
        return ended
    async with database.bulk_transaction(groups[0][0], is_only=len(groups) == 1) as connection:
        for tenant_id, group in groups:
            await turn_to(connection, tenant_id)
            rows: list[dict[str, Any]] = []
            items: list[dict[str, Any]] = []
            cipher = connection.cipher(tenant_id)
            for _, end in group:
                rows.append(_end_row(end, cipher))
                items += messages.rows_of(end.uuid, end.items, cipher)
            statement, parameters = _END_ALL.of(rows, items)
            parameters |= {"tenant": tenant_id, "ids": [row["id"] for row in rows]}
            ended_ids = frozenset(await connection.scalars(statement, parameters))
            for place, end in group:
                if end.uuid in ended_ids:
                    ended[place] = True
    return ended


def _end_row(end: FinishedResponse, cipher: ContentCipher) -> dict[str, Any]:
    entries, packed = end.entries, None
    if entries is not None:
        place = end.uuid.bytes, end.epoch, entries.first_entry
        packed = cipher.seal_entries(entries.entries, *place)
    row = {
        "id": end.uuid,
        "epoch": end.epoch,
        "status": end.status,
        "completed_at": end.completed_at,
        "body": end.body,
        "recoveries": end.recoveries,
        "tool_state": end.tool_state,
        "placement": end.placement,
        "timeline": end.timeline,
        "first_entry": entries and entries.first_entry,
        "entry_count": entries and entries.count,
        "entries": packed,
        **end.metered.row(),
        **usage_lines.counts(end.tokens),
    }
    return content.sealed(cipher, "responses", row)


async def finish(database: Database, tenant_id: TenantId, finished: FinishedResponse) -> None:
    """End a running response under the claim of its owner, all or nothing.

    Safe to repeat when the outcome of a commit was lost. Raises `ClaimLost`.
    """
    async with database.transaction(tenant_id) as connection:
        claim = Claim(tenant_id, finished.uuid, finished.epoch)
        if await _end(connection, claim, finished, held_epoch=finished.epoch):
            return
        stored = await responses.find(connection, tenant_id, finished.uuid)
    if stored is None or (stored.epoch, stored.status) != (finished.epoch, finished.status):
        raise ClaimLost


async def deposit(database: Database, tenant_id: TenantId, finished: FinishedResponse) -> bool:
    """Store the result of a foreground response that was ended as abandoned, and stays failed.

    Return False if it did not end that way. Safe to repeat when the outcome of a commit was lost.
    """
    async with database.transaction(tenant_id) as connection:
        row = {"tenant": tenant_id, **_end_row(finished, connection.cipher(tenant_id))}
        kept = (await connection.execute(_DEPOSIT, row)).one_or_none()
        if kept is None:
            stored = await responses.find(connection, tenant_id, finished.uuid)
            return stored is not None and stored.epoch == finished.epoch + 2
        await messages.add(connection, tenant_id, finished.uuid, finished.items)
        await _meter(connection, tenant_id, finished, kept)
        return True


async def conclude(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    end: Callable[[StoredResponse, list[LogRow]], Awaitable[FinishedResponse | None]],
    *,
    from_entry: int = 0,
) -> StoredResponse | None:
    """End a response, whichever process owns it, and return it as it is then.

    This takes the claim away. `end` gets the running response, locked, and its log from
    `from_entry` on. It must be quick: others wait for the row, and the server aborts a transaction
    that pauses. None leaves the response unchanged. Raises `ValueError` for an end that does not
    continue the log.
    """
    with suppress(_LeftAlone):
        async with database.transaction(tenant_id) as connection:
            stored = await responses.find(connection, tenant_id, uuid, locked=True)
            if stored is None or stored.is_terminal:
                return stored
            log: list[LogRow] = []
            if stored.durable:
                head = await flushes.settle_one(connection, tenant_id, uuid)
                if head is not None:
                    stored = replace(stored, next_entry=head)
                log = await events.rows(
                    connection, tenant_id, uuid, stored.day, from_entry=from_entry
                )
            finished = await end(stored, log)
            if finished is None:
                raise _LeftAlone
            claim = Claim(tenant_id, uuid, stored.epoch + 1)
            if not await _end(connection, claim, finished, held_epoch=stored.epoch):
                raise ValueError("the end is not that of this response, or leaves a gap in its log")
            return await responses.find(connection, tenant_id, uuid)
    return stored


async def end_sealed(database: Database, tenant_id: TenantId, uuid: UUID) -> bool:
    """Fail a response that nobody holds and whose key was destroyed, with neither body nor usage.

    Return False if it is not such a one.
    """
    of_it = {"tenant": tenant_id, "id": uuid}
    async with database.transaction(tenant_id) as connection:
        request = await connection.scalar(_FIND_LEFT, of_it)
        if request is None or not await database.keyring.has_destroyed(tenant_id, request):
            return False
        await flushes.settle_one(connection, tenant_id, uuid)
        await connection.execute(_END_SEALED, of_it)
        await responses.free_key(connection, tenant_id, uuid)
        await responses.erase_secrets(connection, tenant_id, uuid)
    return True


class _LeftAlone(Exception):
    """Signal to undo what `conclude` settled: the owner continues and notices nothing."""


async def _end(
    connection: Connection, claim: Claim, finished: FinishedResponse, *, held_epoch: int
) -> bool:
    # False: `held_epoch` is not the epoch any more, and nothing was written.
    if finished.status not in TERMINAL:
        raise ValueError(f"{finished.status} is no end")
    entries = finished.entries
    row = _end_row(finished, connection.cipher(claim.tenant_id)) | {
        "tenant": claim.tenant_id,
        "id": claim.uuid,
        "held_epoch": held_epoch,
        "epoch": claim.epoch,
        "next_entry": entries and entries.first_entry + entries.count,
    }
    ended = (await connection.execute(_END, row)).one_or_none()
    if ended is None:
        return False
    if entries is not None:
        await events.add(connection, claim, ended.created_at, entries)
    await messages.add(connection, claim.tenant_id, claim.uuid, finished.items)
    if ended.conversation_id is not None and finished.status in ANSWERED:
        await conversations.append_items(
            connection, claim.tenant_id, ended.conversation_id, claim.uuid
        )
    await _meter(connection, claim.tenant_id, finished, ended)
    if finished.free_key:
        await responses.free_key(connection, claim.tenant_id, claim.uuid)
    if finished.has_secrets:
        await responses.erase_secrets(connection, claim.tenant_id, claim.uuid)
    return True


async def _meter(
    connection: Connection, tenant_id: TenantId, finished: FinishedResponse, head: Row
) -> None:
    # `head` has the columns that tell which key, project and model the response is for.
    if finished.tokens is not None:
        line = usage_lines.UsageLine(
            response=finished.uuid,
            key_id=head.key_id,
            model=head.model,
            at=finished.completed_at,
            tokens=finished.tokens,
            project_id=head.project_id,
            status=finished.status,
            background=head.background,
            metered=finished.metered,
        )
        await usage_lines.add(connection, tenant_id, line)
