"""Items of responses: the history a request continues, the list of inputs, and look-ups by id.

A chain is walked parent by parent in one recursive query. Its order is that of the conversation:
the oldest response first, in each its items by position.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import insert, text

from gateway import ids
from gateway.errors import InvalidRequest, PreviousResponseNotFound
from gateway.protocol.context import ContextItem, StoredItem
from gateway.store.tables import messages
from gateway.store.types import pack_text, unpack_ids, unpack_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.store.engine import Database
    from gateway.tenancy import TenantId

LISTED_DEPTH_MAX: Final = 10_000
"""How many responses back a list of inputs goes; what was created kept to the setting's bound."""

ROWS_AT_ONCE: Final = 500
"""Rows in one insert: making thousands ready would hold up the event loop."""


@dataclass(frozen=True, slots=True)
class History:
    """What a response leaves to its successors.

    `items` are those of its whole chain, oldest first, its own output last. `status` is its own;
    `root_created_at` is when the first response of the chain was created.
    """

    items: tuple[ContextItem, ...]
    status: str
    root_created_at: datetime


class ItemPage(NamedTuple):
    """A page of a list of items, each the JSON that is shown."""

    items: list[bytes]
    has_more: bool


_CHAIN: Final = """
WITH RECURSIVE chain AS (
    SELECT id, parent_id, status, root_created_at, 0 AS depth
    FROM responses
    WHERE tenant_id = :tenant AND id = :response
    UNION ALL
    SELECT parent.id, parent.parent_id, parent.status, parent.root_created_at, chain.depth + 1
    FROM chain
    JOIN responses AS parent ON parent.tenant_id = :tenant AND parent.id = chain.parent_id
    WHERE chain.depth < :depth_max
)"""

# The first row tells how far the walk came, the last row is of the response itself: a response
# without items has a row of nulls.
_HISTORY: Final = text(f"""{_CHAIN}
SELECT chain.depth, chain.parent_id, chain.status, chain.root_created_at,
       m.kind, m.role, m.phase, m.item_id, m.call_id, m.name, m.complete, m.item, m.ids
FROM chain
LEFT JOIN messages AS m ON m.tenant_id = :tenant AND m.response_id = chain.id
ORDER BY chain.depth DESC, m.position
LIMIT :row_limit
""")  # noqa: S608 - constants only

# An item that clients sent again with its id is listed once, at its latest place: otherwise a page
# that ends with it could not say where the next one begins.
_LIST: Final = f"""{_CHAIN}, listed AS (
    SELECT m.item_id, m.response_id, m.position,
           row_number() OVER (ORDER BY chain.depth DESC, m.position) AS place,
           row_number() OVER (
               PARTITION BY m.item_id ORDER BY chain.depth, m.position DESC
           ) = 1 AS is_latest
    FROM chain
    JOIN messages AS m ON m.tenant_id = :tenant AND m.response_id = chain.id
    WHERE chain.depth > 0 OR NOT m.is_output
)
SELECT EXISTS (SELECT FROM chain) AS is_known, start.place AS start, page.item
FROM (
    SELECT (SELECT place FROM listed WHERE is_latest AND item_id = CAST(:after AS bytea)) AS place
) AS start
LEFT JOIN LATERAL (
    SELECT m.item, listed.place
    FROM listed
    JOIN messages AS m ON m.tenant_id = :tenant AND m.response_id = listed.response_id
                      AND m.position = listed.position
    WHERE listed.is_latest
      AND (CAST(:after AS bytea) IS NULL OR listed.place {{beyond}} start.place)
    ORDER BY listed.place {{direction}}
    LIMIT :row_limit
) AS page ON true
ORDER BY page.place {{direction}}
"""  # noqa: S608 - constants only
_LISTS: Final = {
    "asc": text(_LIST.format(beyond=">", direction="ASC")),
    "desc": text(_LIST.format(beyond="<", direction="DESC")),
}

_FIND: Final = text("""
SELECT DISTINCT ON (item_id) kind, role, phase, item_id, call_id, name, complete, item, ids
FROM messages
WHERE tenant_id = :tenant AND sha256(item_id) = ANY(CAST(:digests AS bytea[]))
ORDER BY item_id, response_id DESC, position DESC
""")
_ADD: Final = insert(messages)


def row_of(stored: StoredItem) -> dict[str, Any]:
    """The columns of an item, its response's key left out."""
    context = stored.context
    return {
        "position": stored.position,
        "is_output": stored.is_output,
        "kind": context.kind,
        "role": context.role,
        "phase": context.phase,
        "item_id": context.item_id,
        "call_id": context.call_id,
        "name": context.name,
        "complete": context.complete,
        "item": context.json,
        "ids": context.ids,
    }


async def add(
    connection: AsyncConnection, tenant_id: TenantId, uuid: UUID, items: Sequence[StoredItem]
) -> None:
    """Items of a response, inside a transaction of the caller's."""
    key = {"tenant_id": tenant_id, "response_id": uuid}
    for start in range(0, len(items), ROWS_AT_ONCE):
        rows = [key | row_of(stored) for stored in items[start : start + ROWS_AT_ONCE]]
        await connection.execute(_ADD, rows)


def _context(row: Row[*tuple[Any, ...]]) -> ContextItem:
    return ContextItem(
        kind=row.kind,
        item_id=unpack_text(row.item_id),
        json=row.item,
        role=row.role,
        phase=row.phase,
        call_id=None if row.call_id is None else unpack_text(row.call_id),
        name=None if row.name is None else unpack_text(row.name),
        complete=row.complete,
        ids=None if row.ids is None else unpack_ids(row.ids),
    )


async def history(
    database: Database, tenant_id: TenantId, uuid: UUID, *, depth_max: int, items_max: int
) -> History | None:
    """All that a successor of this response inherits; None when it is unknown.

    Raises `PreviousResponseNotFound` naming an ancestor that was deleted, and `InvalidRequest` for
    a chain of more than `depth_max` responses or `items_max` items.
    """
    parameters = {
        "tenant": tenant_id,
        "response": uuid,
        "depth_max": depth_max,
        # Enough for a row of nulls from each response, and one item too many.
        "row_limit": items_max + depth_max + 2,
    }
    async with database.transaction(tenant_id) as connection:
        rows = (await connection.execute(_HISTORY, parameters)).all()
    if not rows:
        return None
    _check_depth(rows[0], depth_max)
    items = tuple(_context(row) for row in rows if row.kind is not None)
    if len(items) > items_max:
        raise _too_long(f"more than {items_max} items")
    return History(items=items, status=rows[-1].status, root_created_at=rows[-1].root_created_at)


def _check_depth(oldest: Row[*tuple[Any, ...]], depth_max: int) -> None:
    if oldest.depth >= depth_max:
        raise _too_long(f"more than {depth_max} responses")
    if oldest.parent_id is not None:
        ancestor = ids.response_id(oldest.parent_id)
        raise PreviousResponseNotFound(
            ancestor,
            f"Previous response with id '{ancestor}' not found: the conversation that"
            " 'previous_response_id' continues goes back to it, and it was deleted.",
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
    *,
    limit: int,
    order: Literal["asc", "desc"],
    after: str | None,
) -> ItemPage | None:
    """The context of a response: everything of its ancestors that is left, then its own input.

    None when the response is unknown. Raises `InvalidRequest` when `after` is not an item of it.
    """
    parameters = {
        "tenant": tenant_id,
        "response": uuid,
        "depth_max": LISTED_DEPTH_MAX,
        "after": None if after is None else pack_text(after),
        "row_limit": limit + 1,
    }
    async with database.transaction(tenant_id) as connection:
        rows = (await connection.execute(_LISTS[order], parameters)).all()
    if not rows[0].is_known:
        return None
    if after is not None and rows[0].start is None:
        raise InvalidRequest(
            "'after' is not the id of an item of this list.", code="invalid_value", param="after"
        )
    items = [row.item for row in rows if row.item is not None]
    return ItemPage(items=items[:limit], has_more=len(items) > limit)


async def find_items(
    database: Database, tenant_id: TenantId, item_ids: Iterable[str]
) -> dict[str, ContextItem]:
    """Stored items by id, those of the latest response where several have one; unknown: absent."""
    digests = [hashlib.sha256(pack_text(item_id)).digest() for item_id in item_ids]
    if not digests:
        return {}
    async with database.transaction(tenant_id) as connection:
        rows: Sequence[Row[*tuple[Any, ...]]] = (
            await connection.execute(_FIND, {"tenant": tenant_id, "digests": digests})
        ).all()
    return {item.item_id: item for item in map(_context, rows)}
