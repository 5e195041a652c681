"""The logs that are followed here and written elsewhere: how far they are, and what is new.

Nearly all news is in flushes, each of which has entries of many logs. So flushes are read first,
and heads, with the next rows, only of logs of which they had nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.errors import ContentSealed, StoreUnavailable
from gateway.store import flushes
from gateway.store.claims import LogHead
from gateway.store.events import LogRow
from gateway.store.postgres.statements import Statement
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import date
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database

Writer = tuple["UUID", str]
Seen = dict[Writer, int]

ROWS_MAX: Final = 4
ROW_BYTES_MAX: Final = 1024
"""Longer rows are left to whoever needs them: one poll reads all logs."""
RENEWAL_S: Final = 0.5
"""Time for the key of one log, in a poll that all share."""
UNKNOWN: Final = 2**31 - 1
"""Value of `LogQuery.entries` if no rows of the log are to be read."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A log that is followed. `owner` wrote it when its head was seen last; `key` are the bytes of
    `uuid`; `is_due`: the head is to be read, whatever flushes bring.
    """

    tenant_id: UUID
    uuid: UUID
    key: bytes
    day: date
    entries: int
    owner: str | None
    is_due: bool = False


Part = tuple[bytes, int, "LogRow"]


@dataclass(frozen=True, slots=True)
class LogChanges:
    """Changes of logs. `heads` are those that had to be read, None if there is no such response. A
    part is committed, whatever a head says.
    """

    heads: dict[UUID, LogHead | None] = field(default_factory=dict)
    owners: dict[UUID, str | None] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)


# Each found by its key, whatever the planner thinks of their number: what has a limit is not joined
# in another way.
_HEADS: Final = Statement("""
SELECT one.id, one.epoch, one.next_entry, one.status, one.owner,
       row.first_entry, row.entry_count, row.entries
FROM unnest(
    CAST(:tenants AS uuid[]), CAST(:responses AS uuid[]), CAST(:days AS date[]),
    CAST(:known AS integer[])
) AS asked (tenant_id, id, day, entries)
CROSS JOIN LATERAL (
    SELECT id, epoch, next_entry, status, owner FROM responses
    WHERE responses.tenant_id = asked.tenant_id AND responses.id = asked.id
    LIMIT 1
) AS one
LEFT JOIN LATERAL (
    SELECT first_entry, entry_count, entries FROM events
    WHERE one.next_entry > asked.entries
      AND events.tenant_id = asked.tenant_id AND events.response_id = asked.id
      AND events.day = asked.day
      AND events.first_entry >= (
          SELECT coalesce(max(first_entry), 0) FROM events
          WHERE events.tenant_id = asked.tenant_id AND events.response_id = asked.id
            AND events.day = asked.day AND events.first_entry <= asked.entries
      )
      AND octet_length(entries) <= :row_bytes_max
    ORDER BY first_entry
    LIMIT :rows_max
) AS row ON true
""")
_NEW: Final = Statement("""
SELECT row.tenant_id, row.owner, row.number, row.members, row.entries
FROM unnest(CAST(:tenants AS uuid[]), CAST(:owners AS text[]), CAST(:numbers AS bigint[]))
     AS seen (tenant_id, owner, number)
CROSS JOIN LATERAL (
    SELECT * FROM flushes
    WHERE flushes.tenant_id = seen.tenant_id AND flushes.owner = seen.owner
      AND flushes.number > seen.number
    ORDER BY flushes.number
) AS row
""")


async def poll(
    database: Database, queries: Sequence[LogQuery], seen: Seen, wanted: Collection[bytes]
) -> LogChanges:
    """Return what is new of these logs, in flushes after those `seen` and in their rows.

    Updates `seen`: a flush is read once, so entries of all logs in `wanted` are returned now.
    """
    await database.keyring.try_ready({TenantId(one.tenant_id) for one in queries})
    changes, read = LogChanges(), dict(seen)
    writers = {(one.tenant_id, one.owner) for one in queries if one.owner is not None}
    await _bring(database, changes, writers, read, wanted)
    ends = {key: part.first_entry + part.count for key, _, part in changes.parts}
    left = [one for one in queries if one.is_due or ends.get(one.key, 0) <= one.entries]
    if left:
        await _poll_heads(database, changes, left)
        others = {(one.tenant_id, changes.owners.get(one.uuid)) for one in left}
        new_writers = {(tenant_id, owner) for tenant_id, owner in others if owner is not None}
        await _bring(database, changes, new_writers - writers, read, wanted)
    seen.update(read)
    return changes


async def _poll_heads(database: Database, changes: LogChanges, queries: Sequence[LogQuery]) -> None:
    columns = {
        "tenants": [one.tenant_id for one in queries],
        "responses": [one.uuid for one in queries],
        "days": [one.day for one in queries],
        "known": [one.entries for one in queries],
        "row_bytes_max": ROW_BYTES_MAX,
        "rows_max": ROWS_MAX,
    }
    async with database.runs_transaction(in_bulk=True) as connection:
        rows = await connection.execute(_HEADS, columns)
    changes.heads.update(dict.fromkeys(one.uuid for one in queries))
    tenants = {one.uuid: one.tenant_id for one in queries}
    sealed: list[tuple[UUID, Part]] = []
    for uuid, epoch, next_entry, status, owner, first_entry, count, entries in rows:
        changes.heads[uuid] = LogHead(epoch, next_entry, status)
        changes.owners[uuid] = owner if status == "in_progress" else None
        if entries is not None:
            part = uuid.bytes, epoch, LogRow(first_entry, count, entries)
            sealed.append((tenants[uuid], part))
    changes.parts.extend(await _open_parts(database, sealed))


async def _bring(
    database: Database,
    changes: LogChanges,
    writers: Collection[Writer],
    read: Seen,
    wanted: Collection[bytes],
) -> None:
    # Reads the flushes behind the numbers in `read`.
    if not writers:
        return
    columns = {
        "tenants": [tenant_id for tenant_id, _ in writers],
        "owners": [owner for _, owner in writers],
        "numbers": [read.get(writer, 0) for writer in writers],
    }
    async with database.runs_transaction(in_bulk=True) as connection:
        rows = await connection.execute(_NEW, columns)
    members_read = 0
    for tenant_id, owner, number, members, entries in rows:
        if members_read >= flushes.READ_AT_ONCE:
            members_read = 0
            await asyncio.sleep(0)
        parts = flushes.parts_of(wanted, members, entries)
        changes.parts.extend(await _open_parts(database, ((tenant_id, part) for part in parts)))
        read[tenant_id, owner] = number
        members_read += len(members) // flushes.MEMBER_BYTES


async def _open_parts(database: Database, sealed: Iterable[tuple[UUID, Part]]) -> list[Part]:
    # Parts of tenants whose keys are gone or out of reach are left out, as are parts that do not
    # open: followers get the error when they read, and other tenants are not held up.
    keyring, opened = database.keyring, []
    by_tenant: dict[UUID, list[Part]] = defaultdict(list)
    for tenant_id, part in sealed:
        by_tenant[tenant_id].append(part)
    for tenant_id, parts in by_tenant.items():
        if keyring.is_on:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(RENEWAL_S):
                    await keyring.renew(TenantId(tenant_id), partial(_lacks, parts))
        cipher = keyring.find(TenantId(tenant_id))
        if cipher is None:
            continue
        for key, epoch, row in parts:
            with suppress(ContentSealed, ValueError):
                entries = cipher.open_entries(row.entries, key)
                opened.append((key, epoch, LogRow(row.first_entry, row.count, entries)))
    return opened


def _lacks(parts: Iterable[Part], cipher: ContentCipher) -> bool:
    return any(cipher.lacks_of_log(row.entries) for _, _, row in parts)
