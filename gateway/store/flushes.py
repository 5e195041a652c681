"""Flushes: rows in which a process commits entries of all runs of one tenant at once.

The log of a response is what `events` has of it, up to the head in `responses`, and then what the
flushes of its owner have under its epoch, until `settle` moves it into `events`.

No head moves with a flush, so the fence is the row of `writers` for tenant and owner. A process
adds a flush only under the fence that it knows, and locks that row; one that takes a response from
its owner first locks the head, then moves the fence (`settle`), and sees all that was committed
before. A process whose fence has moved reads the heads to learn which responses are still its own
(`eventlog.log_batches`).

Locks are taken in one order everywhere: heads by tenant and id, writers by tenant and owner, rows.

`members` has 36 bytes for each response: its id, and as 32-bit big-endian numbers epoch, first
entry, number of entries, and their offset and size in `entries`.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from gateway.encryption.cipher import FRAMES, plain_frame
from gateway.store import events
from gateway.store.events import LogRow
from gateway.store.locks import removing
from gateway.store.postgres.statements import Statement
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import date
    from uuid import UUID

    from gateway.store.events import LogBatch
    from gateway.store.postgres.database import Connection, Database, Row


@dataclass(frozen=True, slots=True)
class LockedResponse:
    """A response whose head the caller has locked. `epoch` is that under which `owner` wrote."""

    tenant_id: TenantId
    uuid: UUID
    owner: str
    epoch: int
    next_entry: int
    day: date


_MEMBER: Final = struct.Struct(">16s5I")
MEMBER_BYTES: Final = _MEMBER.size
SOUGHT_MAX: Final = 32
READ_AT_ONCE: Final = 500
"""Parts of logs between turns of the event loop: a process may have left a hundred thousand."""

_ADD: Final = Statement("""
WITH turn AS (
    UPDATE writers SET number = number + 1, used_at = clock_timestamp()
    WHERE tenant_id = CAST(:tenant AS uuid) AND owner = CAST(:owner AS text)
      AND fence = CAST(:fence AS bigint)
    RETURNING number
)
INSERT INTO flushes (tenant_id, owner, number, members, entries)
SELECT CAST(:tenant AS uuid), CAST(:owner AS text), number, CAST(:members AS bytea),
       CAST(:entries AS bytea)
FROM turn
RETURNING number
""")
_CUT_OFF: Final = Statement("""
WITH held AS (
    SELECT one.tenant_id, one.owner
    FROM writers AS one
    JOIN (
        SELECT DISTINCT * FROM unnest(CAST(:tenants AS uuid[]), CAST(:owners AS text[]))
        AS asked (tenant_id, owner)
    ) AS asked ON one.tenant_id = asked.tenant_id AND one.owner = asked.owner
    ORDER BY one.tenant_id, one.owner
    FOR NO KEY UPDATE OF one
)
UPDATE writers SET fence = fence + 1
FROM held
WHERE writers.tenant_id = held.tenant_id AND writers.owner = held.owner
RETURNING writers.tenant_id, writers.owner
""")
_ROWS: Final = Statement("""
SELECT tenant_id, owner, members, entries
FROM flushes
WHERE tenant_id = ANY(CAST(:tenants AS uuid[])) AND owner = ANY(CAST(:owners AS text[]))
ORDER BY tenant_id, owner, number
""")
_SETTLE: Final = Statement("""
WITH piece AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:tenants AS uuid[]), CAST(:responses AS uuid[]), CAST(:epochs AS integer[]),
        CAST(:days AS date[]), CAST(:firsts AS integer[]), CAST(:counts AS integer[]),
        CAST(:entries AS bytea[])
    ) AS piece (tenant_id, response_id, epoch, day, first_entry, entry_count, entries)
), added AS (
    INSERT INTO events (tenant_id, response_id, epoch, day, first_entry, entry_count, entries)
    SELECT tenant_id, response_id, epoch, day, first_entry, entry_count, entries FROM piece
)
UPDATE responses SET next_entry = piece.first_entry + piece.entry_count
FROM piece
WHERE responses.tenant_id = ANY(CAST(:tenants AS uuid[]))
  AND responses.id = ANY(CAST(:responses AS uuid[]))
  AND responses.tenant_id = piece.tenant_id AND responses.id = piece.response_id
""")
_OF_ONE: Final = Statement("""
SELECT owner, number, members, entries
FROM flushes
WHERE tenant_id = :tenant AND position(CAST(:id AS bytea) IN members) > 0
ORDER BY owner, number
FOR NO KEY UPDATE
""")
_REPLACE: Final = Statement("""
UPDATE flushes SET members = :members, entries = :entries
WHERE tenant_id = :tenant AND owner = :owner AND number = :number
""")
_TAIL: Final = Statement("""
SELECT head.epoch, head.next_entry, row.members, row.entries
FROM responses AS head
CROSS JOIN LATERAL (
    SELECT members, entries FROM flushes
    WHERE flushes.tenant_id = head.tenant_id AND flushes.owner = head.owner
      AND position(uuid_send(head.id) IN flushes.members) > 0
    ORDER BY flushes.number
    OFFSET 0
) AS row
WHERE head.tenant_id = :tenant AND head.id = :id AND head.status = 'in_progress'
""")
_ONE: Final = Statement("""
SELECT tenant_id, id, owner, epoch, next_entry, CAST(created_at AT TIME ZONE 'UTC' AS date)
FROM responses
WHERE tenant_id = :tenant AND id = :id AND status = 'in_progress' AND durable
  AND owner IS NOT NULL
FOR NO KEY UPDATE
""")
_HELD: Final = Statement("""
SELECT tenant_id, id, owner, epoch, next_entry, CAST(created_at AT TIME ZONE 'UTC' AS date)
FROM responses
WHERE tenant_id = ANY(CAST(:tenants AS uuid[])) AND owner = :owner AND status = 'in_progress'
  AND durable AND id <> ALL(CAST(:but AS uuid[]))
ORDER BY tenant_id, id
FOR NO KEY UPDATE
""")
# Made again after it was swept away, it has neither a fence nor a number that it had before.
_FENCES: Final = Statement("""
INSERT INTO writers (tenant_id, owner, fence, number, used_at)
SELECT tenant_id, CAST(:owner AS text), now_ms, now_ms, clock_timestamp()
FROM (SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) AS now_ms) AS clock,
     unnest(CAST(:tenants AS uuid[])) AS asked (tenant_id)
ORDER BY tenant_id
ON CONFLICT (tenant_id, owner) DO UPDATE SET used_at = excluded.used_at
RETURNING tenant_id, fence
""")
# Never waits for a transaction that erases one of these, so the two cannot deadlock.
_PRUNE: Final = Statement("""
DELETE FROM flushes USING (
    SELECT one.tenant_id, one.number
    FROM unnest(CAST(:tenants AS uuid[]), CAST(:needed AS bigint[]))
         AS of_tenant (id, least_needed)
    JOIN flushes AS one ON one.tenant_id = of_tenant.id
    WHERE one.owner = :owner AND one.number < least_needed
    FOR UPDATE OF one SKIP LOCKED
) AS spare
WHERE flushes.tenant_id = spare.tenant_id AND flushes.owner = :owner
  AND flushes.number = spare.number
""")
_REMOVE_LEFT: Final = Statement("""
WITH left_behind AS (
    DELETE FROM writers
    WHERE used_at < clock_timestamp() - make_interval(secs => CAST(:silent_s AS integer))
      AND NOT EXISTS (
          SELECT FROM responses
          WHERE responses.tenant_id = writers.tenant_id AND responses.owner = writers.owner
            AND responses.status IN ('queued', 'in_progress')
      )
      AND NOT EXISTS (
          SELECT FROM tenants
          WHERE tenants.id = writers.tenant_id AND tenants.held_at IS NOT NULL
      )
    RETURNING tenant_id, owner
)
DELETE FROM flushes USING left_behind
WHERE flushes.tenant_id = left_behind.tenant_id AND flushes.owner = left_behind.owner
""")


async def add(
    connection: Connection, owner: str, fence: int, batches: Sequence[LogBatch]
) -> int | None:
    """Add batches of one tenant as one row; return its number, or None if the fence has changed."""
    tenant_id = batches[0].claim.tenant_id
    cipher = connection.cipher(tenant_id)
    if cipher.seals:
        batches = [replace(one, entries=events.sealed_entries(cipher, one)) for one in batches]
    row = {
        "tenant": tenant_id,
        "owner": owner,
        "fence": fence,
        "members": members_of(batches),
        "entries": b"".join([batch.entries for batch in batches]),
    }
    number: int | None = await connection.scalar(_ADD, row)
    return number


def members_of(batches: Iterable[LogBatch]) -> bytes:
    members, place = [], 0
    for batch in batches:
        claim, size = batch.claim, len(batch.entries)
        uuid = claim.uuid.int.to_bytes(16, "big")  # `bytes` is that and a call
        of_it = uuid, claim.epoch, batch.first_entry, batch.count, place, size
        members.append(_MEMBER.pack(*of_it))
        place += size
    return b"".join(members)


def part_of(uuid: bytes, members: bytes, entries: bytes) -> tuple[int, LogRow] | None:
    """Return epoch and entries of a member. Searches the bytes, so that most members are not
    parsed.
    """
    at = members.find(uuid)
    while at > 0 and at % _MEMBER.size:
        at = members.find(uuid, at + 1)
    if at < 0:
        return None
    _, epoch, first_entry, count, place, size = _MEMBER.unpack_from(members, at)
    return epoch, LogRow(first_entry, count, entries[place : place + size])


async def fences(
    database: Database, owner: str, tenants: Collection[TenantId]
) -> dict[TenantId, int]:
    async with database.runs_transaction() as connection:
        return await _fences(connection, owner, tenants)


async def _fences(
    connection: Connection, owner: str, tenants: Collection[TenantId]
) -> dict[TenantId, int]:
    rows = await connection.execute(_FENCES, {"tenants": sorted(tenants), "owner": owner})
    return {TenantId(tenant_id): fence for tenant_id, fence in rows}


async def adopt(
    database: Database, owner: str, tenants: Collection[TenantId], *, but: Collection[UUID]
) -> dict[TenantId, int]:
    """Settle what `owner` has in flushes for these tenants, except `but`; return its fences."""
    parameters = {"tenants": sorted(tenants), "owner": owner, "but": list(but)}
    async with database.runs_transaction() as connection:
        held = await connection.execute(_HELD, parameters)
        await settle(connection, list(map(taken, held)))
        return await _fences(connection, owner, tenants)


async def settle(connection: Connection, responses: Sequence[LockedResponse]) -> dict[UUID, int]:
    """Move what flushes have of these responses into their logs and cut their owners off.

    Return the heads that have moved. The caller has locked the heads.
    """
    if not responses:
        return {}
    of_them = {
        "tenants": [one.tenant_id for one in responses],
        "owners": [one.owner for one in responses],
    }
    cut_off = await connection.execute(_CUT_OFF, of_them)
    if not cut_off:
        return {}
    tenants, owners = zip(*cut_off, strict=True)
    rows = await connection.execute(_ROWS, {"tenants": tenants, "owners": owners})
    pieces = await _pieces(responses, rows)
    if pieces:
        await connection.execute(_SETTLE, _columns(pieces))
    return {one.uuid: piece.first_entry + piece.count for one, piece in pieces}


async def _pieces(
    responses: Sequence[LockedResponse], rows: Iterable[Row]
) -> list[tuple[LockedResponse, LogRow]]:
    # Only entries that continue the logs; at most one row for each response.
    by_owner: dict[tuple[UUID, str], dict[bytes, LockedResponse]] = defaultdict(dict)
    for one in responses:
        by_owner[one.tenant_id, one.owner][one.uuid.bytes] = one
    parts: dict[UUID, list[LogRow]] = {}
    for tenant_id, owner, members, entries in rows:
        by_id = by_owner[tenant_id, owner]
        sought = parts_of(by_id, members, entries)
        while some := list(islice(sought, READ_AT_ONCE)):
            for uuid, epoch, part in some:
                one = by_id[uuid]
                if epoch == one.epoch:
                    _append(parts.setdefault(one.uuid, []), part, one.next_entry)
            await asyncio.sleep(0)
    pieces = []
    for one in responses:
        # Not kept to the end: then all of them would be freed at once.
        if own := parts.pop(one.uuid, None):
            pieces.append((one, _as_stored(one, own)))
            await asyncio.sleep(0)
    return pieces


def _append(parts: list[LogRow], part: LogRow, next_entry: int) -> None:
    # Earlier parts are in the log already. Nothing follows on one that is missing, which a standby
    # lacked that became the server.
    end = parts[-1].first_entry + parts[-1].count if parts else next_entry
    if part.first_entry == end:
        parts.append(part)


def _as_stored(one: LockedResponse, parts: Sequence[LogRow]) -> LogRow:
    # Sealed parts stay as they are. If only some are plain, because the tenant got a key meanwhile,
    # these become frames as well.
    if len({part.entries[:1] for part in parts}) > 1:
        parts = [
            part
            if part.entries[:1] == FRAMES
            else replace(part, entries=plain_frame(part.entries, one.epoch, part.first_entry))
            for part in parts
        ]
    return joined(parts)


def parts_of(
    uuids: Collection[bytes], members: bytes, entries: bytes
) -> Iterator[tuple[bytes, int, LogRow]]:
    """Yield id, epoch and entries of each member with one of these ids.

    For many ids all members are parsed: searches would take time quadratic in their number.
    """
    if len(uuids) > SOUGHT_MAX:
        for uuid, epoch, first_entry, count, place, size in _MEMBER.iter_unpack(members):
            if uuid in uuids:
                yield uuid, epoch, LogRow(first_entry, count, entries[place : place + size])
        return
    for uuid in uuids:
        part = part_of(uuid, members, entries)
        if part is not None:
            yield uuid, *part


def _columns(pieces: Sequence[tuple[LockedResponse, LogRow]]) -> dict[str, list[object]]:
    return {
        "tenants": [one.tenant_id for one, _ in pieces],
        "responses": [one.uuid for one, _ in pieces],
        "epochs": [one.epoch for one, _ in pieces],
        "days": [one.day for one, _ in pieces],
        "firsts": [piece.first_entry for _, piece in pieces],
        "counts": [piece.count for _, piece in pieces],
        "entries": [piece.entries for _, piece in pieces],
    }


def joined(parts: Sequence[LogRow]) -> LogRow:
    first = parts[0]
    entries = first.entries + b"".join([part.entries[1:] for part in parts[1:]])
    return LogRow(first.first_entry, sum(part.count for part in parts), entries)


async def settle_one(connection: Connection, tenant_id: TenantId, uuid: UUID) -> int | None:
    held = await connection.execute(_ONE, {"tenant": tenant_id, "id": uuid})
    return (await settle(connection, list(map(taken, held)))).get(uuid)


def taken(row: Row) -> LockedResponse:
    tenant_id, *others = row
    return LockedResponse(TenantId(tenant_id), *others)


async def erase(connection: Connection, tenant_id: TenantId, uuid: UUID) -> None:
    of_it = {"tenant": tenant_id, "id": uuid.bytes}
    for row in await connection.execute(_OF_ONE, of_it):
        members, entries = _without(uuid, row.members, row.entries)
        of_row = {"tenant": tenant_id, "owner": row.owner, "number": row.number}
        await connection.execute(_REPLACE, of_row | {"members": members, "entries": entries})


def rewritten(
    members: bytes, entries: bytes, change: Callable[[bytes, int, LogRow], bytes]
) -> tuple[bytes, bytes]:
    """Replace the entries of each member by `change`. Erased members stay erased."""
    kept, pieces, at = [], [], 0
    for uuid, epoch, first_entry, count, place, size in _MEMBER.iter_unpack(members):
        piece = entries[place : place + size]
        if uuid != bytes(16):
            piece = change(uuid, epoch, LogRow(first_entry, count, piece))
        kept.append(_MEMBER.pack(uuid, epoch, first_entry, count, at, len(piece)))
        pieces.append(piece)
        at += len(piece)
    return b"".join(kept), b"".join(pieces)


def _without(uuid: UUID, members: bytes, entries: bytes) -> tuple[bytes, bytes]:
    # The other members keep their offsets: id and entries of this one become zeros.
    kept, left = [], bytearray(entries)
    for member in _MEMBER.iter_unpack(members):
        *_, place, size = member
        is_it = member[0] == uuid.bytes
        if is_it:
            left[place : place + size] = bytes(size)
        kept.append(_MEMBER.pack(bytes(16) if is_it else member[0], *member[1:]))
    return b"".join(kept), bytes(left)


async def prune(database: Database, owner: str, needed: Mapping[TenantId, int]) -> None:
    numbers = {"tenants": list(needed), "needed": list(needed.values())}
    async with database.runs_transaction(durable=False) as connection:
        await connection.execute(_PRUNE, numbers | {"owner": owner})


async def remove_left(database: Database, *, silent_s: int) -> int:
    """Remove what silent owners without running responses left behind: all of it is settled."""
    async with database.runs_transaction() as connection:
        await removing(connection)
        return await connection.count(_REMOVE_LEFT, {"silent_s": silent_s})


async def read(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    day: date,
    *,
    from_entry: int = 0,
    bytes_max: int,
) -> list[LogRow]:
    """Return rows of a log like `events.read`, then one row of the entries that only flushes have.

    Before that row there may be a gap, if not everything was read, or entries that are read twice.
    """
    async with database.bulk_transaction(tenant_id) as connection:
        # In this order: in the other one, entries that are settled in between would be missed.
        parts = _tail(uuid, await connection.execute(_TAIL, {"tenant": tenant_id, "id": uuid}))
        cipher = await events.log_cipher(connection, tenant_id, parts)
        tail = [joined(events.opened_rows(cipher, uuid, parts))] if parts else []
        rows = await events.rows(
            connection, tenant_id, uuid, day, from_entry=from_entry, bytes_max=bytes_max
        )
        return rows + tail


def _tail(uuid: UUID, rows: Iterable[Row]) -> list[LogRow]:
    parts: list[LogRow] = []
    for row in rows:
        epoch, part = part_of(uuid.bytes, row.members, row.entries) or (None, None)
        if part is not None and epoch == row.epoch:
            _append(parts, part, row.next_entry)
    return parts
