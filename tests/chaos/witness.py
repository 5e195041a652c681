"""What the database itself notes of conversations while everything around it is killed.

Triggers write down who takes a conversation, what is added and erased, and how its turns end.
Whatever is done to the items of a conversation is done under the lock of its row, so that the
notes on one conversation are numbered in the order of their commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import asyncpg
import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

_INSTALL: Final = """
CREATE TABLE chaos_notes (
    number bigserial, at timestamptz DEFAULT clock_timestamp(),
    transaction text DEFAULT pg_current_xact_id()::text,
    kind text, conversation uuid, response uuid, status text, position bigint, item bytea
);
CREATE FUNCTION chaos_note_taken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.chaos_notes (kind, conversation, response)
    VALUES ('taken', NEW.id, NEW.writer);
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_note_item() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE one record := coalesce(NEW, OLD);
BEGIN
    INSERT INTO public.chaos_notes (kind, conversation, position, item)
    VALUES (TG_ARGV[0], one.conversation_id, one.position, one.item);
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_note_ended() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.chaos_notes (kind, conversation, response, status)
    VALUES ('ended', NEW.conversation_id, NEW.id, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_taken AFTER UPDATE ON conversations FOR EACH ROW
    WHEN (NEW.writer IS DISTINCT FROM OLD.writer) EXECUTE FUNCTION chaos_note_taken();
CREATE TRIGGER chaos_added AFTER INSERT ON conversation_items FOR EACH ROW
    EXECUTE FUNCTION chaos_note_item('added');
CREATE TRIGGER chaos_erased AFTER DELETE ON conversation_items FOR EACH ROW
    EXECUTE FUNCTION chaos_note_item('erased');
CREATE TRIGGER chaos_ended AFTER UPDATE OF status ON responses FOR EACH ROW
    WHEN (NEW.conversation_id IS NOT NULL AND NEW.status NOT IN ('queued', 'in_progress'))
    EXECUTE FUNCTION chaos_note_ended();
"""
_NOTES: Final = """
SELECT at, transaction, kind, conversation, response, status, position, item
FROM chaos_notes ORDER BY number
"""
_LEFT: Final = """
SELECT conversation_id, item FROM conversation_items ORDER BY conversation_id, position
"""
_OWN: Final = "SELECT response_id, item FROM messages ORDER BY response_id, position"

Item = dict[str, Any]


class Note(NamedTuple):
    """Something was `taken` (by a response), `added`, `erased` or `ended` (a response)."""

    at: datetime
    transaction: str
    kind: str
    conversation: UUID
    response: UUID | None = None
    status: str | None = None
    position: int | None = None
    item: Item | None = None


class Witnessed(NamedTuple):
    """All notes in their order; the items of conversations as they are now, and of responses."""

    notes: Sequence[Note]
    items: Mapping[UUID, Sequence[Item]]
    own_items: Mapping[UUID, Sequence[Item]]


async def install(url: str) -> None:
    """Take notes from now on."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_INSTALL)
    finally:
        await connection.close()


async def heard(url: str) -> Witnessed:
    """Everything so far, as of one snapshot."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            notes = [
                Note(*columns)._replace(item=orjson.loads(item) if item else None)
                for *columns, item in await connection.fetch(_NOTES)
            ]
            items = _grouped(await connection.fetch(_LEFT))
            return Witnessed(notes, items, _grouped(await connection.fetch(_OWN)))
    finally:
        await connection.close()


def _grouped(rows: Sequence[Any]) -> dict[UUID, list[Item]]:
    groups: dict[UUID, list[Item]] = {}
    for key, item in rows:
        groups.setdefault(key, []).append(orjson.loads(item))
    return groups
