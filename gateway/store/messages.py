from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import ids
from gateway.errors import InvalidRequest, PreviousResponseNotFound
from gateway.protocol.context_item import ContextItem, StoredItem
from gateway.protocol.items import INCLUDABLE, included_json
from gateway.protocol.request_errors import unknown_place
from gateway.store import content
from gateway.store.packing import PACKED, PackedItems, pack_ids, pack_text, unpack_ids, unpack_text
from gateway.store.postgres.statements import Rows, Statement, insert_into
from gateway.store.tables.columns import typed
from gateway.store.tables.responses import ITEM, messages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import TenantId

LISTED_DEPTH_MAX: Final = 10_000
"""Responses that a list of inputs goes back. The setting's bound applied when they were created."""

ROWS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """The items of a response's whole chain, oldest first.

    `tool_state` is of the last response that used hosted tools (`protocol.grants`), `placement` of
    the last one that was generated where routing chose.
    """

    items: PackedItems
    status: str
    root_created_at: datetime
    tool_state: bytes | None = None
    placement: bytes | None = None


class NeededJson(NamedTuple):
    """Items that are read with their `json`; others only with ids (`NEEDED_ITEM`).

    `with_all`: all are shown, not only continued; `repeated`: item ids.
    """

    with_all: bool = True
    with_tool_lists: bool = False
    repeated: Collection[str] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        return self._asdict() | {"repeated": [*map(pack_text, self.repeated)]}

    def includes(self, item: ContextItem) -> bool:
        return (
            self.with_all
            or (self.with_tool_lists and item.kind == "mcp_list_tools")
            or item.item_id in self.repeated
        )


ALL_JSON: Final = NeededJson()


_COLUMNS: Final = ", ".join(ITEM)
_CONTENT: Final = ("call_id", "name", "item", "ids", "includable")

# For a prompt an item is its ids. Instructions may have to be put in front as text, a question to
# the user may have to be answered, or be missing before its call, tools that an item brought are
# offered, and of the tools of a server it must be known which were listed. What a client sends
# again is compared with the item that it was.
NEEDED_ITEM: Final = """
CASE WHEN :with_all OR i.ids IS NULL OR i.role IN ('system', 'developer')
          OR i.kind IN ('mcp_approval_request', 'mcp_approval_response')
          OR i.kind = 'mcp_call' AND i.call_id IS NOT NULL
          OR i.kind IN ('tool_search_output', 'additional_tools')
          OR :with_tool_lists AND i.kind = 'mcp_list_tools'
          OR i.item_id IN (SELECT unnest(CAST(:repeated AS bytea[])))
     THEN i.item ELSE '' END AS item"""

# A chain may begin in a conversation: with its items as far as it had come then. They stand one
# level above the first response. OFFSET keeps the planner from making another join of a look-up by
# key: while it knows nothing of a table, it would read all of a tenant's rows at every step.
_CHAIN: Final = """
WITH RECURSIVE chain AS (
    SELECT id, parent_id, conversation_id, conversation_end, status, root_created_at, tool_state,
           placement, 0 AS depth
    FROM responses
    WHERE tenant_id = :tenant AND id = :response
    UNION ALL
    SELECT parent.id, parent.parent_id, parent.conversation_id, parent.conversation_end,
           parent.status, parent.root_created_at, parent.tool_state, parent.placement,
           chain.depth + 1
    FROM chain
    CROSS JOIN LATERAL (
        SELECT * FROM responses
        WHERE tenant_id = :tenant AND id = chain.parent_id
        OFFSET 0
    ) AS parent
    WHERE chain.depth < :depth_max
), root AS (
    SELECT depth, parent_id, conversation_id, conversation_end
    FROM chain ORDER BY depth DESC LIMIT 1
)"""
_OF_RESPONSES: Final = """
    FROM chain
    JOIN messages AS m ON m.tenant_id = :tenant AND m.response_id = chain.id
"""
_OF_CONVERSATION: Final = """
    FROM root
    JOIN conversation_items AS c ON c.tenant_id = :tenant
                                AND c.conversation_id = root.conversation_id
                                AND c.position < root.conversation_end
"""

_INHERITED: Final = f"""
SELECT chain.depth, m.position, {_COLUMNS}
FROM chain
CROSS JOIN LATERAL (
    SELECT position, {_COLUMNS} FROM messages
    WHERE tenant_id = :tenant AND response_id = chain.id
    OFFSET 0
) AS m
UNION ALL
SELECT root.depth + 1, c.position, {_COLUMNS}
FROM root
CROSS JOIN LATERAL (
    SELECT position, {_COLUMNS} FROM conversation_items
    WHERE tenant_id = :tenant AND conversation_id = root.conversation_id
      AND position < root.conversation_end
    OFFSET 0
) AS c
"""  # noqa: S608 - constants only
_HISTORY: Final = Statement(f"""{_CHAIN}
SELECT root.depth, root.parent_id, root.conversation_id, asked.status, asked.root_created_at,
       root.conversation_id IS NOT NULL AND one.id IS NULL AS lost_conversation,
       (SELECT tool_state FROM chain WHERE tool_state IS NOT NULL ORDER BY depth LIMIT 1)
           AS tool_state,
       (SELECT id FROM chain WHERE tool_state IS NOT NULL ORDER BY depth LIMIT 1) AS tool_state_of,
       (SELECT placement FROM chain WHERE placement IS NOT NULL ORDER BY depth LIMIT 1)
           AS placement,
       inherited.*
FROM root
JOIN chain AS asked ON asked.depth = 0
LEFT JOIN LATERAL (
    SELECT id FROM conversations WHERE tenant_id = :tenant AND id = root.conversation_id
    OFFSET 0
) AS one ON true
CROSS JOIN (
    SELECT {PACKED}
    FROM (
        SELECT i.kind, i.role, i.phase, i.item_id, i.call_id, i.name, i.complete, {NEEDED_ITEM},
               i.ids
        FROM (
            {_INHERITED}
        ) AS i
        ORDER BY i.depth DESC, i.position
        LIMIT :row_limit
    ) AS ordered
) AS inherited
""")  # noqa: S608 - constants only

# An item that clients sent again with its id is listed once, at its latest place: otherwise a page
# that ends with it could not say where the next one begins.
_LIST: Final = f"""{_CHAIN}, listed AS (
    SELECT item_id, response_id, conversation_id, position,
           row_number() OVER (ORDER BY depth DESC, position) AS place,
           row_number() OVER (PARTITION BY item_id ORDER BY depth, position DESC) = 1 AS is_latest
    FROM (
        SELECT m.item_id, m.response_id, NULL AS conversation_id, m.position, chain.depth
        {_OF_RESPONSES}
        WHERE chain.depth > 0 OR NOT m.is_output
        UNION ALL
        SELECT c.item_id, NULL, c.conversation_id, c.position, root.depth + 1
        {_OF_CONVERSATION}
    ) AS every
)
SELECT EXISTS (SELECT FROM chain) AS is_known, start.place AS start, page.item, page.includable,
       page.item_id
FROM (
    SELECT (SELECT place FROM listed WHERE is_latest AND item_id = CAST(:after AS bytea)) AS place
) AS start
LEFT JOIN LATERAL (
    SELECT coalesce(m.item, c.item) AS item, listed.place, listed.item_id,
           CASE WHEN :with_includable THEN coalesce(m.includable, c.includable) END AS includable
    FROM listed
    LEFT JOIN messages AS m ON m.tenant_id = :tenant AND m.response_id = listed.response_id
                           AND m.position = listed.position
    LEFT JOIN conversation_items AS c ON c.tenant_id = :tenant
                                     AND c.conversation_id = listed.conversation_id
                                     AND c.position = listed.position
    WHERE listed.is_latest
      AND (CAST(:after AS bytea) IS NULL OR listed.place {{beyond}} start.place)
    ORDER BY listed.place {{direction}}
    LIMIT :row_limit
) AS page ON true
ORDER BY page.place {{direction}}
"""  # noqa: S608 - constants only
_LISTS: Final = {
    "asc": Statement(_LIST.format(beyond=">", direction="ASC")),
    "desc": Statement(_LIST.format(beyond="<", direction="DESC")),
}

_FIND_IN: Final = """
    SELECT {holder} AS holder, position, {columns}
    FROM {table}
    WHERE tenant_id = :tenant AND sha256(item_id) = ANY(CAST(:digests AS bytea[]))
      AND EXISTS (
          SELECT FROM {owner}
          WHERE {owner}.tenant_id = {table}.tenant_id AND {owner}.id = {table}.{holder}
      )
"""
"""Items have no project of their own: their owner's row has it."""
_FIND: Final = Statement(f"""
SELECT DISTINCT ON (item_id) {_COLUMNS}
FROM (
    {_FIND_IN.format(holder="response_id", table="messages", owner="responses", columns=_COLUMNS)}
    UNION ALL
    {
    _FIND_IN.format(
        holder="conversation_id",
        table="conversation_items",
        owner="conversations",
        columns=_COLUMNS,
    )
}
) AS found
ORDER BY item_id, holder DESC, position DESC
""")  # noqa: S608 - constants only
_INCLUDABLE: Final = Statement("""
SELECT item_id, includable FROM messages
WHERE tenant_id = :tenant AND response_id = :response AND is_output AND includable IS NOT NULL
""")
_COUNT_OUTPUT: Final = Statement("""
SELECT count(*) FROM messages
WHERE tenant_id = :tenant AND response_id = :response AND is_output
""")
_ADDED: Final = typed(messages, without="tenant_id")
_ADD: Final = Statement(insert_into("messages", ["tenant_id", *_ADDED]))
ADDED: Final = Rows("item", _ADDED)


def rows_of(uuid: UUID, items: Iterable[StoredItem], cipher: ContentCipher) -> list[dict[str, Any]]:
    rows = []
    for stored in items:
        row = {"response_id": uuid, "position": stored.position, "is_output": stored.is_output}
        rows.append(row | item_columns(stored.context, cipher))
    return rows


def item_columns(context: ContextItem, cipher: ContentCipher) -> dict[str, Any]:
    row = {
        "kind": context.kind,
        "role": context.role,
        "phase": context.phase,
        "item_id": pack_text(context.item_id),
        "call_id": None if context.call_id is None else pack_text(context.call_id),
        "name": None if context.name is None else pack_text(context.name),
        "complete": context.complete,
        "item": context.json,
        "ids": None if context.ids is None else pack_ids(context.ids),
        "includable": context.includable,
    }
    return content.sealed(cipher, "messages", row)


async def add(
    connection: Connection, tenant_id: TenantId, uuid: UUID, items: Sequence[StoredItem]
) -> None:
    cipher = connection.cipher(tenant_id)
    for start in range(0, len(items), ROWS_AT_ONCE):
        rows = rows_of(uuid, items[start : start + ROWS_AT_ONCE], cipher)
        await connection.execute(_ADD, [{"tenant_id": tenant_id, **row} for row in rows])


def context_of(row: Row, cipher: ContentCipher) -> ContextItem:
    kind, role, phase, item_id, *_, complete, _, _, _ = row[-len(ITEM) :]
    values = content.opened(cipher, "messages", row, _CONTENT)
    call_id, name, item, ids, more = map(values.__getitem__, _CONTENT)
    return ContextItem(
        kind,
        unpack_text(item_id),
        item,
        role,
        phase,
        None if call_id is None else unpack_text(call_id),
        None if name is None else unpack_text(name),
        complete,
        None if ids is None else unpack_ids(ids),
        includable=more,
    )


async def history(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    *,
    depth_max: int,
    items_max: int,
    needed: NeededJson = ALL_JSON,
) -> StoredHistory | None:
    """Return everything that a successor of this response inherits.

    Raises `PreviousResponseNotFound` for a deleted ancestor or conversation, and `InvalidRequest`
    for a chain that is too long.
    """
    parameters = {
        "tenant": tenant_id,
        "response": uuid,
        "depth_max": depth_max,
        "row_limit": items_max + 1,
        **needed.parameters,
    }
    async with database.bulk_transaction(tenant_id) as connection:
        row = (await connection.execute(_HISTORY, parameters)).one_or_none()
        cipher = connection.cipher(tenant_id)
    if row is None:
        return None
    _check_root(row, depth_max)
    items = PackedItems(row, cipher)
    if len(items) > items_max:
        raise _too_long(f"more than {items_max} items")
    state = opened_tool_state(cipher, row.tool_state_of, row.tool_state)
    return StoredHistory(items, row.status, row.root_created_at, state, row.placement)


def opened_tool_state(
    cipher: ContentCipher, uuid: UUID | None, stored: bytes | None
) -> bytes | None:
    return None if uuid is None else cipher.open(stored, "responses.tool_state", uuid)


def _check_root(row: Row, depth_max: int) -> None:
    if row.depth >= depth_max:
        raise _too_long(f"more than {depth_max} responses")
    if row.parent_id is not None:
        ancestor = ids.response_id(row.parent_id)
        raise PreviousResponseNotFound(
            ancestor,
            f"Previous response with id '{ancestor}' not found: the conversation that"
            " 'previous_response_id' continues goes back to it, and it was deleted.",
        )
    if row.lost_conversation:
        conversation = ids.conversation_id(row.conversation_id)
        raise PreviousResponseNotFound(
            conversation,
            f"Conversation with id '{conversation}' not found: the responses that"
            " 'previous_response_id' continues began in it, and it was deleted.",
        )


def _too_long(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The conversation that 'previous_response_id' continues has {what}. Start a new one with"
        " the items that still matter in 'input'.",
        code="invalid_value",
        param="previous_response_id",
    )


async def input_items(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    page: PageParams,
    *,
    include: Collection[str] = (),
) -> Page[bytes] | None:
    """Return a page of a response's context: the remaining items of ancestors, then its own
    input.
    """
    parameters = {
        "tenant": tenant_id,
        "response": uuid,
        "depth_max": LISTED_DEPTH_MAX,
        **page_parameters(page, include),
    }
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_LISTS[page.order_from_cursor], parameters)
        cipher = connection.cipher(tenant_id)
    if not rows[0].is_known:
        return None
    return page_of(rows, cipher, page, include)


async def includable(database: Database, tenant_id: TenantId, uuid: UUID) -> dict[str, bytes]:
    parameters = {"tenant": tenant_id, "response": uuid}
    async with database.transaction(tenant_id) as connection:
        rows: Sequence[Row] = await connection.execute(_INCLUDABLE, parameters)
        cipher = connection.cipher(tenant_id)
    return {
        unpack_text(row.item_id): cipher.open(row.includable, "messages.includable", row.item_id)
        for row in rows
    }


async def count_output(database: Database, tenant_id: TenantId, uuid: UUID) -> int:
    async with database.transaction(tenant_id) as connection:
        count: int = await connection.scalar(_COUNT_OUTPUT, {"tenant": tenant_id, "response": uuid})
    return count


def page_parameters(page: PageParams, include: Collection[str]) -> dict[str, Any]:
    return {
        "after": None if page.cursor is None else pack_text(page.cursor),
        "row_limit": page.limit + 1,
        "with_includable": not INCLUDABLE.isdisjoint(include),
    }


def page_of(
    rows: Sequence[Row], cipher: ContentCipher, page: PageParams, include: Collection[str]
) -> Page[bytes]:
    if page.cursor is not None and rows[0].start is None:
        raise unknown_place(page.cursor_name)
    items = [shown_item(row, cipher, include) for row in rows if row.item is not None]
    return page.of(items)


def shown_item(row: Row, cipher: ContentCipher, include: Collection[str]) -> bytes:
    values = content.opened(cipher, "messages", row, ("item", "includable"))
    return included_json(values["item"], values["includable"], include)


def digests(item_ids: Iterable[str]) -> list[bytes]:
    return [hashlib.sha256(pack_text(item_id)).digest() for item_id in item_ids]


async def find_items(
    database: Database, tenant_id: TenantId, item_ids: Iterable[str]
) -> dict[str, ContextItem]:
    """Return stored items of responses and conversations; of several with one id the latest."""
    parameters = {"tenant": tenant_id, "digests": digests(item_ids)}
    if not parameters["digests"]:
        return {}
    async with database.transaction(tenant_id) as connection:
        rows: Sequence[Row] = await connection.execute(_FIND, parameters)
        cipher = connection.cipher(tenant_id)
    return {item.item_id: item for item in (context_of(row, cipher) for row in rows)}
