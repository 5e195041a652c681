"""Conversations and their items, as clients make, read and erase them.

What responses read of a conversation and add to it is in `turns`, where it is said, too, who may
write when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson

from gateway.errors import ConversationLocked, InvalidRequest
from gateway.protocol.conversations import Conversation
from gateway.protocol.items import INCLUDABLE
from gateway.store import content, holds
from gateway.store.messages import (
    ItemPage,
    context_of,
    digests,
    item_columns,
    page_of,
    shown_item,
)
from gateway.store.packing import pack_text
from gateway.store.postgres.statements import Statement, insert_into
from gateway.store.tables.responses import ITEM

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.protocol.context_item import ContextItem
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import ProjectId, TenantId

    Order = Literal["asc", "desc"]


class FoundItem(NamedTuple):
    """An item of a conversation that there is, as JSON, with what was asked for of it; None: it has
    no such item.
    """

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
    """Insert a conversation of a project with its first items, whose ids must differ."""
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
    """Return the conversation, or None if it is unknown, deleted, or another tenant's."""
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_LOAD, _of(tenant_id, uuid))
        return _conversation(rows.one_or_none(), connection.cipher(tenant_id))


async def set_metadata(
    database: Database, tenant_id: TenantId, uuid: UUID, metadata: dict[str, str]
) -> Conversation | None:
    """Replace the metadata of a conversation. Return None if it is unknown."""
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
    """Erase a conversation with its items. Return False if it is unknown.

    Raises `DataHeld`, and `ConversationLocked` while a response that is not in `despite` is being
    added. Nothing is added of a response in `despite`.
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
    """Return items of the conversation by id; unknown ids are absent."""
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
    """Append items, whose ids must differ. Return False if the conversation is unknown.

    Raises `ConversationLocked`, also when an id was taken meanwhile, and `InvalidRequest` when the
    conversation would have more than `items_max` items.
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
    """Erase an item; return the conversation and whether it had the item.

    Return None if the conversation is unknown. Raises `ConversationLocked` and `DataHeld`.
    """
    of_it = _of(tenant_id, uuid)
    async with database.transaction(tenant_id) as connection:
        await holds.check(connection, tenant_id)
        if await _lock(connection, tenant_id, uuid) is None:
            return None
        parameters = of_it | {"item": pack_text(item_id)}
        deleted = await connection.scalar(_DELETE_ITEM, parameters)
        # Whoever has read the item and is about to write must not be let in.
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
) -> FoundItem | None:
    """Return an item by id with what `include` names, or None if the conversation is unknown."""
    parameters = _of(tenant_id, uuid) | {"item": pack_text(item_id)}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_FIND_ITEM, parameters)).one_or_none()
        cipher = connection.cipher(tenant_id)
    if row is None or row.item is None:
        return None if row is None else FoundItem(None)
    return FoundItem(shown_item(row, cipher, include))


async def list_items(  # noqa: PLR0913 - which page, and what is shown of it
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    *,
    limit: int,
    order: Order,
    after: str | None,
    include: Collection[str] = (),
) -> ItemPage | None:
    """Return a page of items with what `include` names, or None if the conversation is unknown.

    Raises `InvalidRequest` when `after` is not an item of it.
    """
    parameters = _of(tenant_id, uuid) | {
        "after": None if after is None else pack_text(after),
        "row_limit": limit + 1,
        "with_includable": not INCLUDABLE.isdisjoint(include),
    }
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_LISTS[order], parameters)
        cipher = connection.cipher(tenant_id)
    if not rows:
        return None
    return page_of(rows, cipher, limit=limit, after=after, include=include)


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
