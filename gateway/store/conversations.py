"""Conversations and their items.

A conversation has one writer: the response that was accepted last, while it is running. There is no
lock: `next_position` moves with every change of the items and every new writer, and a request that
has read the items takes the conversation only if it has not moved since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway import ids
from gateway.errors import ConversationLocked, InvalidRequest
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.conversation_bodies import Conversation, unknown_conversation
from gateway.store import content, holds
from gateway.store.messages import (
    ALL_JSON,
    NEEDED_ITEM,
    NeededJson,
    context_of,
    digests,
    item_columns,
    opened_tool_state,
    page_of,
    page_parameters,
    shown_item,
)
from gateway.store.packing import PACKED, PackedItems, pack_text
from gateway.store.postgres.statements import Statement, insert_into
from gateway.store.tables.responses import ACCEPTED, ITEM

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import ProjectId, TenantId


class ItemLookup(NamedTuple):
    """JSON of an item, None if there is none."""

    json: bytes | None


_COLUMNS: Final = "id, created_at, metadata"
_LOAD: Final = Statement(f"""
SELECT {_COLUMNS} FROM conversations WHERE tenant_id = :tenant AND id = :conversation
""")  # noqa: S608 - constants only
_SET_METADATA: Final = Statement(f"""
UPDATE conversations SET metadata = :metadata
WHERE tenant_id = :tenant AND id = :conversation
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_INSERT: Final = Statement(
    insert_into(
        "conversations",
        ["tenant_id", "id", "created_at", "metadata", "next_position", "project_id"],
    )
)
_INSERT_ITEMS: Final = Statement(
    insert_into("conversation_items", ["tenant_id", "conversation_id", "position", *ITEM])
)

# Two statements: one that waits for a row sees the other rows as they were before it waited.
_LOCK: Final = Statement("""
SELECT next_position, writer FROM conversations
WHERE tenant_id = :tenant AND id = :conversation
FOR NO KEY UPDATE
""")
_STATE: Final = Statement("""
SELECT
    EXISTS (
        SELECT FROM responses
        WHERE tenant_id = :tenant AND id = :writer AND status IN ('queued', 'in_progress')
    ) AS is_locked,
    EXISTS (
        SELECT FROM conversation_items
        WHERE tenant_id = :tenant AND conversation_id = :conversation
          AND sha256(item_id) = ANY(CAST(:digests AS bytea[]))
    ) AS is_taken,
    (SELECT count(*) FROM (
        SELECT FROM conversation_items
        WHERE tenant_id = :tenant AND conversation_id = :conversation
        LIMIT :items_max
    ) AS counted) AS items
""")
_MOVE: Final = Statement(f"""
UPDATE conversations SET next_position = next_position + :count
WHERE tenant_id = :tenant AND id = :conversation
RETURNING {_COLUMNS}
""")  # noqa: S608 - constants only
_DELETE: Final = Statement("""
DELETE FROM conversations WHERE tenant_id = :tenant AND id = :conversation
""")
_DELETE_ITEM: Final = Statement("""
DELETE FROM conversation_items
WHERE tenant_id = :tenant AND conversation_id = :conversation
  AND sha256(item_id) = sha256(:item)
RETURNING true
""")

_FIND_ITEMS: Final = Statement(f"""
SELECT {", ".join(ITEM)} FROM conversation_items
WHERE tenant_id = :tenant AND conversation_id = :conversation
  AND sha256(item_id) = ANY(CAST(:digests AS bytea[]))
  -- Only rows of conversations are seen by their project.
  AND EXISTS (SELECT FROM conversations WHERE tenant_id = :tenant AND id = :conversation)
""")  # noqa: S608 - constants only
_FIND_ITEM: Final = Statement("""
SELECT found.item, found.includable, found.item_id
FROM conversations AS one
LEFT JOIN conversation_items AS found
    ON found.tenant_id = one.tenant_id AND found.conversation_id = one.id
       AND sha256(found.item_id) = sha256(:item)
WHERE one.tenant_id = :tenant AND one.id = :conversation
""")
_LIST: Final = """
SELECT start.position AS start, page.item, page.includable, page.item_id
FROM conversations AS one
LEFT JOIN LATERAL (
    SELECT position FROM conversation_items
    WHERE tenant_id = one.tenant_id AND conversation_id = one.id
      AND sha256(item_id) = sha256(CAST(:after AS bytea))
) AS start ON true
LEFT JOIN LATERAL (
    SELECT position, item, item_id, CASE WHEN :with_includable THEN includable END AS includable
    FROM conversation_items
    WHERE tenant_id = one.tenant_id AND conversation_id = one.id
      AND position {beyond} coalesce(start.position, {before_all})
    ORDER BY position {direction}
    LIMIT :row_limit
) AS page ON true
WHERE one.tenant_id = :tenant AND one.id = :conversation
ORDER BY page.position {direction}
"""
_LISTS: Final = {
    "asc": Statement(_LIST.format(beyond=">", before_all="-1", direction="ASC")),
    "desc": Statement(_LIST.format(beyond="<", before_all="9223372036854775807", direction="DESC")),
}


async def create(
    database: Database,
    tenant_id: TenantId,
    conversation: Conversation,
    items: Sequence[ContextItem],
    *,
    project_id: ProjectId | None = None,
) -> None:
    """Insert a conversation with its first items, whose ids must differ."""
    row = {
        "tenant_id": tenant_id,
        "id": conversation.uuid,
        "created_at": conversation.created_at,
        "metadata": orjson.dumps(conversation.metadata),
        "next_position": len(items),
        "project_id": project_id,
    }
    async with database.transaction(tenant_id) as connection:
        cipher = connection.cipher(tenant_id)
        await connection.execute(_INSERT, content.sealed(cipher, "conversations", row))
        await _insert_items(connection, tenant_id, conversation.uuid, items, start=0)


async def load(database: Database, tenant_id: TenantId, uuid: UUID) -> Conversation | None:
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_LOAD, _of(tenant_id, uuid))
        return _conversation(rows.one_or_none(), connection.cipher(tenant_id))


async def set_metadata(
    database: Database, tenant_id: TenantId, uuid: UUID, metadata: dict[str, str]
) -> Conversation | None:
    async with database.transaction(tenant_id) as connection:
        cipher = connection.cipher(tenant_id)
        row = {"id": uuid, "metadata": orjson.dumps(metadata)}
        sealed = content.sealed(cipher, "conversations", row)
        parameters = _of(tenant_id, uuid) | {"metadata": sealed["metadata"]}
        rows = await connection.execute(_SET_METADATA, parameters)
        return _conversation(rows.one_or_none(), cipher)


async def delete_conversation(
    database: Database, tenant_id: TenantId, uuid: UUID, *, despite: Collection[UUID] = ()
) -> bool:
    """Erase a conversation.

    Raises `DataHeld`, and `ConversationLocked` while a response that is not in `despite` is being
    added. Nothing is added of one in `despite`.
    """
    async with database.transaction(tenant_id) as connection:
        await holds.check(connection, tenant_id)
        if await _lock(connection, tenant_id, uuid, despite=despite) is None:
            return False
        await connection.execute(_DELETE, _of(tenant_id, uuid))
    return True


async def find_items(
    database: Database, tenant_id: TenantId, uuid: UUID, item_ids: Collection[str]
) -> dict[str, ContextItem]:
    if not item_ids:
        return {}
    parameters = _of(tenant_id, uuid) | {"digests": digests(item_ids)}
    async with database.transaction(tenant_id) as connection:
        rows: Sequence[Row] = await connection.execute(_FIND_ITEMS, parameters)
        cipher = connection.cipher(tenant_id)
    return {item.item_id: item for item in (context_of(row, cipher) for row in rows)}


async def add_items(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    items: Sequence[ContextItem],
    *,
    items_max: int,
) -> bool:
    """Append items, whose ids must differ.

    Raises `ConversationLocked`, also when an id was taken meanwhile.
    """
    async with database.transaction(tenant_id) as connection:
        state = await _lock(connection, tenant_id, uuid, items, items_max=items_max)
        if state is None:
            return False
        if state.items + len(items) > items_max:
            raise InvalidRequest(
                f"A conversation has at most {items_max} items. Delete some of this one's, or"
                " create a new one with the items that still matter.",
                code="invalid_value",
                param="items",
            )
        await _insert_items(connection, tenant_id, uuid, items, start=state.next_position)
        await connection.execute(_MOVE, _of(tenant_id, uuid) | {"count": len(items)})
    return True


async def delete_item(
    database: Database, tenant_id: TenantId, uuid: UUID, item_id: str
) -> tuple[Conversation, bool] | None:
    """Erase an item; return the conversation, and True if it had the item.

    Raises `ConversationLocked` and `DataHeld`.
    """
    of_it = _of(tenant_id, uuid)
    async with database.transaction(tenant_id) as connection:
        await holds.check(connection, tenant_id)
        if await _lock(connection, tenant_id, uuid) is None:
            return None
        parameters = of_it | {"item": pack_text(item_id)}
        deleted = await connection.scalar(_DELETE_ITEM, parameters)
        # A request that has read the item must not become the writer now.
        moved = await connection.execute(_MOVE, of_it | {"count": 1 if deleted else 0})
        conversation = _conversation(moved.one(), connection.cipher(tenant_id))
        assert conversation is not None, "it is locked, so it is there"
        return conversation, bool(deleted)


async def find_item(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    item_id: str,
    *,
    include: Collection[str] = (),
) -> ItemLookup | None:
    parameters = _of(tenant_id, uuid) | {"item": pack_text(item_id)}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_FIND_ITEM, parameters)).one_or_none()
        cipher = connection.cipher(tenant_id)
    if row is None or row.item is None:
        return None if row is None else ItemLookup(None)
    return ItemLookup(shown_item(row, cipher, include))


async def list_items(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    page: PageParams,
    *,
    include: Collection[str] = (),
) -> Page[bytes] | None:
    parameters = _of(tenant_id, uuid) | page_parameters(page, include)
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_LISTS[page.order_from_cursor], parameters)
        cipher = connection.cipher(tenant_id)
    if not rows:
        return None
    return page_of(rows, cipher, page, include)


class _State(NamedTuple):
    next_position: int
    items: int


async def _lock(
    connection: Connection,
    tenant_id: TenantId,
    uuid: UUID,
    new: Sequence[ContextItem] = (),
    *,
    items_max: int = 0,
    despite: Collection[UUID] = (),
) -> _State | None:
    # Counts items up to `items_max`. Raises `ConversationLocked` when a response that is not in
    # `despite` will be added, or an id of `new` is taken.
    of_it = _of(tenant_id, uuid)
    row = (await connection.execute(_LOCK, of_it)).one_or_none()
    if row is None:
        return None
    parameters = {
        "writer": None if row.writer in despite else row.writer,
        "digests": digests(item.item_id for item in new),
        "items_max": items_max,
    }
    is_locked, is_taken, items = (await connection.execute(_STATE, of_it | parameters)).one()
    if is_locked or is_taken:
        raise ConversationLocked
    return _State(row.next_position, items)


async def _insert_items(
    connection: Connection,
    tenant_id: TenantId,
    uuid: UUID,
    items: Sequence[ContextItem],
    *,
    start: int,
) -> None:
    if items:
        key = {"tenant_id": tenant_id, "conversation_id": uuid}
        cipher = connection.cipher(tenant_id)
        rows = [
            key | {"position": position} | item_columns(item, cipher)
            for position, item in enumerate(items, start)
        ]
        await connection.execute(_INSERT_ITEMS, rows)


def _of(tenant_id: TenantId, uuid: UUID) -> dict[str, Any]:
    return {"tenant": tenant_id, "conversation": uuid}


def _conversation(row: Row | None, cipher: ContentCipher) -> Conversation | None:
    if row is None:
        return None
    values = content.opened(cipher, "conversations", row, ("metadata",))
    return Conversation(row.id, row.created_at, orjson.loads(values["metadata"]))


@dataclass(frozen=True, slots=True)
class Contents:
    """Items of a conversation. `is_locked`: a response will be added; `tool_state` and `placement`
    are of the last such one.
    """

    place: ConversationPlace
    items: PackedItems
    created_at: datetime
    is_locked: bool
    tool_state: bytes | None = None
    placement: bytes | None = None


_CONTENTS: Final = Statement(f"""
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

_ACCEPTED_NAMES: Final = ", ".join(ACCEPTED)
_ACCEPTED_VALUES: Final = ", ".join(f"CAST(:{name} AS {kind})" for name, kind in ACCEPTED.items())
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
INSERT INTO responses (tenant_id, {_ACCEPTED_NAMES}, tool_state, lease_until)
SELECT CAST(:tenant_id AS uuid), {_ACCEPTED_VALUES}, CAST(:tool_state AS bytea),
       clock_timestamp() + CAST(:lease AS interval)
FROM taken
RETURNING id
""")  # noqa: S608 - constants only
_WRITER_STATE: Final = Statement(f"""
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


async def read_contents(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    *,
    items_max: int,
    needed: NeededJson = ALL_JSON,
) -> Contents | None:
    parameters = {
        "tenant": tenant_id,
        "conversation": uuid,
        "row_limit": items_max + 1,
        **needed.parameters,
    }
    async with database.bulk_transaction(tenant_id) as connection:
        row = (await connection.execute(_CONTENTS, parameters)).one_or_none()
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

    Raises `ResourceNotFound`, and `ConversationLocked` when another response is the writer, or the
    conversation has moved past `conversation_end`.
    """
    if await connection.scalar(_INSERT_WRITER, row):
        return
    place = ConversationPlace(row["conversation_id"], row["conversation_end"])
    await check_writer(connection, row["tenant_id"], place)
    # It has become free since it was not.
    raise ConversationLocked


async def check_writer(
    connection: Connection, tenant_id: TenantId, place: ConversationPlace
) -> None:
    of_it = {"tenant": tenant_id, "conversation": place.uuid}
    row = (await connection.execute(_WRITER_STATE, of_it)).one_or_none()
    if row is None:
        raise unknown_conversation(ids.conversation_id(place.uuid))
    if row.is_locked or row.next_position != place.end:
        raise ConversationLocked


async def append_items(
    connection: Connection, tenant_id: TenantId, conversation: UUID, response: UUID
) -> None:
    """Add a response's items if it is the writer, in the transaction that ends it."""
    parameters = {"tenant": tenant_id, "conversation": conversation, "response": response}
    await connection.execute(_APPEND, parameters)
