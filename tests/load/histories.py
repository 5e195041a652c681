"""Stored conversations to go on with: chains of responses, and Conversations with their copies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway import ids
from gateway.store.tables.responses import conversation_items, messages, responses
from tests.load import copying, texts
from tests.load.asking import asking
from tests.load.tape import FRAMING_TOKENS, MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection, Record

    from tests.load.processes import Child
    from tests.load.stack import Stack

ADDED_AT_ONCE: Final = 20
"""Items that one request may add to a Conversation."""
READS: Final = 20
_COLUMNS: Final = "kind, role, phase, item_id, call_id, name, complete, ids"
_OF_CHAIN: Final = f"""
SELECT {_COLUMNS} FROM messages
WHERE tenant_id = $1 AND response_id = ANY($2::uuid[]) ORDER BY response_id, position
"""
_OF_CONVERSATION: Final = f"""
SELECT {_COLUMNS} FROM conversation_items
WHERE tenant_id = $1 AND conversation_id = ANY($2::uuid[]) ORDER BY position
"""
_OTHERS: Final = ", ".join(
    column.name
    for column in conversation_items.c
    if column.name not in {"tenant_id", "conversation_id", "position"}
)
_COPY: Final = """
INSERT INTO conversations (tenant_id, id, created_at, metadata, next_position)
SELECT tenant_id, copy, created_at, metadata, next_position
FROM conversations, unnest($2::uuid[]) AS copy WHERE id = $1
"""
_COPY_ITEMS: Final = f"""
INSERT INTO conversation_items (tenant_id, conversation_id, position, {_OTHERS})
SELECT tenant_id, copy, position, {_OTHERS}
FROM conversation_items, unnest($2::uuid[]) AS copy WHERE conversation_id = $1
"""
_WITH_OWN_ID: Final = _OTHERS.replace("item_id", "item_id || convert_to(more::text, 'UTF8')")
_REPEAT: Final = f"""
INSERT INTO conversation_items (tenant_id, conversation_id, position, {_OTHERS})
SELECT tenant_id, conversation_id, more, {_WITH_OWN_ID}
FROM conversation_items, generate_series(1, $2 - 1) AS more
WHERE conversation_id = $1 AND position = 0
"""
_MOVE_END: Final = "UPDATE conversations SET next_position = $2 WHERE id = $1"

_MAKE: Final = """
CREATE TEMPORARY TABLE made AS
SELECT id, parent_id FROM unnest($1::uuid[], $2::uuid[]) AS one (id, parent_id)
"""
_COPY_RESPONSES: Final = copying.copy_of(
    responses, "id", {"id": "made.id", "parent_id": "made.parent_id"}
)
_COPY_MESSAGES: Final = copying.copy_of(
    messages, "response_id", {"response_id": "made.id", "item_id": copying.ITEM_ID}
)


@dataclass(frozen=True, slots=True)
class History:
    """What there is to go on with. `responses` are those of a chain, the oldest one first."""

    responses: tuple[UUID, ...] = ()
    conversation: UUID | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """How long: so many messages, of so many words each."""

    messages: int
    words: int


def chain(stack: Stack, child: Child, size: Size) -> History:
    """A chain of stored responses, each of which is two messages: what was said, and the answer.

    The first one is asked for, the others are copies of it.
    """
    said = texts.text(texts.words_of(stack.tape), size.words)
    body = {"model": MODEL, "input": said, "max_output_tokens": size.words + FRAMING_TOKENS}
    with asking(child.port, stack.key) as client:
        first = _uuid(client.post("/v1/responses", body).json()["id"])
    return History(responses=copy_chain(stack.database_url, first, size.messages // 2))


def copy_chain(url: str, first: UUID, count: int) -> tuple[UUID, ...]:
    """A chain of so many responses: the first one, and copies of it with its messages."""
    chained = [first, *(ids.new_uuid() for _ in range(count - 1))]
    copying.execute(
        url, (_MAKE, chained[1:], chained[:-1]), (_COPY_RESPONSES, first), (_COPY_MESSAGES, first)
    )
    return tuple(chained)


def conversation(stack: Stack, child: Child, size: Size) -> History:
    """A Conversation of messages."""
    words = texts.words_of(stack.tape)
    said = [texts.message(words, size.words, number=number) for number in range(size.messages)]
    with asking(child.port, stack.key) as client:
        name = client.post("/v1/conversations", {}).json()["id"]
        for start in range(0, len(said), ADDED_AT_ONCE):
            items = {"items": said[start : start + ADDED_AT_ONCE]}
            client.post(f"/v1/conversations/{name}/items", items)
    return History(conversation=_uuid(name))


def copies(url: str, of: UUID, count: int) -> list[UUID]:
    """Conversations with the same items: one for each turn, since a turn makes its own longer."""
    made = [ids.new_uuid() for _ in range(count)]
    copying.execute(url, (_COPY, of, made), (_COPY_ITEMS, of, made))
    return made


def repeat_item(url: str, of: UUID, count: int) -> None:
    """Make a Conversation of one item one of `count` such items, under ids of their own."""
    copying.execute(url, (_REPEAT, of, count), (_MOVE_END, of, count))


def bare_read_ms(stack: Stack, history: History) -> float:
    """CPU of this process for what cannot be left out: asyncpg fetches the same rows by their keys,
    and nothing is done with them. ms a read."""
    query = _OF_CHAIN if history.conversation is None else _OF_CONVERSATION
    holders = history.responses if history.conversation is None else (history.conversation,)

    async def read(connection: Connection[Record]) -> float:
        tenant = await copying.tenant_id(connection)
        await _fetch(connection, query, tenant, holders)
        before = time.process_time()
        for _ in range(READS):
            await _fetch(connection, query, tenant, holders)
        return (time.process_time() - before) * 1e3 / READS

    return copying.on_database(stack.database_url, read)


async def _fetch(
    connection: Connection[Record], query: str, tenant: UUID, holders: Sequence[UUID]
) -> None:
    async with connection.transaction():
        await connection.fetch(query, tenant, list(holders))


def _uuid(name: str) -> UUID:
    return UUID(name.partition("_")[2])
