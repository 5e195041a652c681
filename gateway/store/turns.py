"""Responses that continue a conversation: what they read of it, and what they add to it.

A conversation has one writer: the response that was accepted last, for as long as that one is
running. Nobody unlocks it, so nobody can forget to. `next_position` moves with everything that is
done to a conversation's items and with every writer that it takes: who has read the items takes the
conversation only if it has not moved since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import ConversationLocked, InvalidRequest
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.conversations import unknown_conversation
from gateway.store.messages import NEEDED_ITEM, opened_tool_state
from gateway.store.packing import PACKED, PackedItems, pack_text
from gateway.store.postgres.statements import Statement
from gateway.store.tables.responses import ACCEPTED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime
    from typing import Any
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a conversation: all items, oldest first, and the place that it had reached.

    `is_locked`: a response will be added to it. `tool_state` is that of the last response that was
    to be added, which has that of the one before until it ends with its own
    (`protocol.grants`); `placement` is where it was generated.
    """

    place: ConversationPlace
    items: PackedItems
    created_at: datetime
    is_locked: bool
    tool_state: bytes | None = None
    placement: bytes | None = None


_READ: Final = Statement(f"""
SELECT one.created_at, one.next_position, one.writer, writer.tool_state, writer.placement,
       coalesce(writer.status IN ('queued', 'in_progress'), false) AS is_locked, kept.*
FROM conversations AS one
LEFT JOIN LATERAL (
    SELECT status, tool_state, placement FROM responses
    WHERE tenant_id = :tenant AND id = one.writer
    OFFSET 0
) AS writer ON true
CROSS JOIN (
    SELECT {PACKED}
    FROM (
        SELECT i.kind, i.role, i.phase, i.item_id, i.call_id, i.name, i.complete, {NEEDED_ITEM},
               i.ids
        FROM conversation_items AS i
        WHERE i.tenant_id = :tenant AND i.conversation_id = :conversation
        ORDER BY i.position
        LIMIT :row_limit
    ) AS ordered
) AS kept
WHERE one.tenant_id = :tenant AND one.id = :conversation
""")  # noqa: S608 - constants only

_NAMES: Final = ", ".join(ACCEPTED)
_VALUES: Final = ", ".join(f"CAST(:{name} AS {kind})" for name, kind in ACCEPTED.items())
_IS_LOCKED: Final = """EXISTS (
    SELECT FROM responses AS running
    WHERE running.tenant_id = conversations.tenant_id AND running.id = conversations.writer
      AND running.status IN ('queued', 'in_progress')
)"""
_INSERT_WRITER: Final = Statement(f"""
WITH taken AS (
    UPDATE conversations SET writer = :id, next_position = next_position + 1
    WHERE tenant_id = :tenant_id AND id = :conversation_id AND next_position = :conversation_end
      AND NOT {_IS_LOCKED}
    RETURNING id
)
INSERT INTO responses (tenant_id, {_NAMES}, tool_state, lease_until)
SELECT CAST(:tenant_id AS uuid), {_VALUES}, CAST(:tool_state AS bytea),
       clock_timestamp() + CAST(:lease AS interval)
FROM taken
RETURNING id
""")  # noqa: S608 - constants only
_STATE: Final = Statement(f"""
SELECT next_position, {_IS_LOCKED} AS is_locked
FROM conversations
WHERE tenant_id = :tenant AND id = :conversation
""")  # noqa: S608 - constants only

# The positions of a response's items in the conversation are those in the response, moved on.
_APPEND: Final = Statement("""
WITH said AS (
    SELECT coalesce(max(position) + 1, 0) AS length FROM messages
    WHERE tenant_id = :tenant AND response_id = :response
), moved AS (
    UPDATE conversations SET next_position = next_position + said.length
    FROM said
    WHERE tenant_id = :tenant AND id = :conversation AND writer = :response
    RETURNING next_position - said.length AS start
)
INSERT INTO conversation_items (tenant_id, conversation_id, position, kind, role, phase, item_id,
                                call_id, name, complete, item, ids, includable)
SELECT m.tenant_id, :conversation, moved.start + m.position, m.kind, m.role, m.phase, m.item_id,
       m.call_id, m.name, m.complete, m.item, m.ids, m.includable
FROM moved, messages AS m
WHERE m.tenant_id = :tenant AND m.response_id = :response
""")


async def read(  # noqa: PLR0913 - what is read of it
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    *,
    items_max: int,
    with_json: bool = True,
    with_tool_lists: bool = False,
    with_calls: bool = False,
    repeated: Collection[str] = (),
) -> Contents | None:
    """Return everything that a response inherits from this conversation, or None if it is unknown.

    `messages.history` tells which items have their `json`. Raises `InvalidRequest` for a
    conversation of more than `items_max` items.
    """
    parameters = {
        "tenant": tenant_id,
        "conversation": uuid,
        "row_limit": items_max + 1,
        "with_json": with_json,
        "with_tool_lists": with_tool_lists,
        "with_calls": with_calls,
        "repeated": [*map(pack_text, repeated)],
    }
    async with database.bulk_transaction(tenant_id) as connection:
        row = (await connection.execute(_READ, parameters)).one_or_none()
        cipher = connection.cipher(tenant_id)
    if row is None:
        return None
    items = PackedItems(row, cipher)
    if len(items) > items_max:
        raise InvalidRequest(
            f"The conversation has more than {items_max} items. Delete some of them, or create a"
            " new one with the items that still matter.",
            code="invalid_value",
            param="conversation",
        )
    return Contents(
        place=ConversationPlace(uuid, row.next_position),
        items=items,
        created_at=row.created_at,
        is_locked=row.is_locked,
        tool_state=opened_tool_state(cipher, row.writer, row.tool_state),
        placement=row.placement,
    )


async def insert_writer(connection: Connection, row: Mapping[str, Any]) -> None:
    """Insert a row of `responses` as the writer of its conversation, in one statement.

    Raises `ConversationLocked` when another response is the writer, or the conversation has moved
    past `conversation_end`, and `ResourceNotFound` when it is unknown. Nothing is inserted then.
    """
    if await connection.scalar(_INSERT_WRITER, row):
        return
    place = ConversationPlace(row["conversation_id"], row["conversation_end"])
    await check(connection, row["tenant_id"], place)
    # It has become free since it was not.
    raise ConversationLocked


async def check(connection: Connection, tenant_id: TenantId, place: ConversationPlace) -> None:
    """Raise what `insert_writer` would raise now for a response that begins at this place."""
    of_it = {"tenant": tenant_id, "conversation": place.uuid}
    row = (await connection.execute(_STATE, of_it)).one_or_none()
    if row is None:
        raise unknown_conversation(ids.conversation_id(place.uuid))
    if row.is_locked or row.next_position != place.end:
        raise ConversationLocked


async def append(
    connection: Connection, tenant_id: TenantId, conversation: UUID, response: UUID
) -> None:
    """Add a response's items to its conversation, in the transaction that ends the response.

    Nothing is added if the response is not the writer.
    """
    parameters = {"tenant": tenant_id, "conversation": conversation, "response": response}
    await connection.execute(_APPEND, parameters)
