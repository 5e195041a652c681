"""The log of a response: rows of packed entries, appended under a fence, read in order.

A row holds the entries of one flush. Rows are never changed; `responses.next_entry` is the number
of the entry that comes next, so whoever moves it owns the numbers it moved over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Final

from sqlalchemy import insert, text

from gateway.store.tables import events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime
    from uuid import UUID

    from gateway.store.execution import Connection

    from gateway.store.claims import Claim
    from gateway.store.engine import Database
    from gateway.tenancy import TenantId

ROW_BYTES: Final = 100
"""What a row counts for when it is read, beside its entries: about what it costs in memory."""
_UNBOUNDED: Final = 2**62


@dataclass(frozen=True, slots=True)
class Parcel:
    """`count` entries of one response, packed: the next ones of its log, if its claim holds.

    `first_entry` is the number of the first of them, `day` that of `day_of`.
    """

    claim: Claim
    day: date
    first_entry: int
    count: int
    entries: bytes


@dataclass(frozen=True, slots=True)
class LogRow:
    """`count` entries from number `first_entry` on, packed by `log.pack`."""

    first_entry: int
    count: int
    entries: bytes


# Locking the heads is the fence. A takeover that commits while this statement waits for a lock is
# seen then, because what is locked is compared again; a join that takes no lock would insert beside
# it. Whatever locks several heads does so in this order: appends and heartbeats never deadlock. The
# lateral query takes them one by one, by key, whatever the planner thinks of their number.
_APPEND: Final = text("""
WITH held AS (
    SELECT parcel.*
    FROM (
        SELECT * FROM unnest(
            CAST(:tenants AS uuid[]), CAST(:responses AS uuid[]), CAST(:epochs AS integer[]),
            CAST(:days AS date[]), CAST(:firsts AS integer[]), CAST(:counts AS integer[]),
            CAST(:entries AS bytea[])
        ) AS sent (tenant_id, response_id, epoch, day, first_entry, entry_count, entries)
        ORDER BY tenant_id, response_id
    ) AS parcel, LATERAL (
        SELECT FROM responses AS head
        WHERE head.tenant_id = parcel.tenant_id AND head.id = parcel.response_id
          AND head.epoch = parcel.epoch AND head.next_entry = parcel.first_entry
          AND head.status = 'in_progress'
        FOR NO KEY UPDATE
    ) AS head
), moved AS (
    UPDATE responses AS head SET next_entry = held.first_entry + held.entry_count
    FROM held
    WHERE head.tenant_id = held.tenant_id AND head.id = held.response_id
    RETURNING held.*
)
INSERT INTO events (tenant_id, response_id, epoch, day, first_entry, entry_count, entries)
SELECT tenant_id, response_id, epoch, day, first_entry, entry_count, entries FROM moved
RETURNING response_id
""")

_READ: Final = text("""
SELECT first_entry, entry_count, entries
FROM (
    SELECT first_entry, entry_count, entries,
           sum(octet_length(entries) + :row_bytes) OVER (ORDER BY first_entry)
           - octet_length(entries) - :row_bytes AS bytes_before
    FROM events
    WHERE tenant_id = :tenant AND response_id = :response AND day = :day
      AND first_entry >= (
          SELECT coalesce(max(first_entry), 0) FROM events
          WHERE tenant_id = :tenant AND response_id = :response AND day = :day
            AND first_entry <= :from_entry
      )
) AS log
WHERE bytes_before < :bytes_max
ORDER BY first_entry
""")
_ADD: Final = insert(events)


def day_of(created_at: datetime) -> date:
    """The day whose partition holds the log of a response that was created then (aware)."""
    return created_at.astimezone(UTC).date()


async def append(database: Database, parcels: Sequence[Parcel]) -> frozenset[UUID]:
    """Commit parcels, at most one for a response; the responses whose parcels are in the log now.

    The others were fenced off: their claim is lost, their run has ended, or the log goes on
    elsewhere. Raises `StoreUnavailable`, after which `claims.heads` tells what became of each.
    """
    columns = {
        "tenants": [parcel.claim.tenant_id for parcel in parcels],
        "responses": [parcel.claim.uuid for parcel in parcels],
        "epochs": [parcel.claim.epoch for parcel in parcels],
        "days": [parcel.day for parcel in parcels],
        "firsts": [parcel.first_entry for parcel in parcels],
        "counts": [parcel.count for parcel in parcels],
        "entries": [parcel.entries for parcel in parcels],
    }
    async with database.runs_transaction() as connection:
        return frozenset(await connection.scalars(_APPEND, columns))


async def read(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    day: date,
    *,
    from_entry: int = 0,
    bytes_max: int,
) -> list[LogRow]:
    """Rows of a log in order, from the one that holds `from_entry` on; [] when there is none yet.

    Stops with the row that reaches `bytes_max`, each row counting `ROW_BYTES` beside its entries.
    """
    async with database.transaction(tenant_id) as connection:
        return await rows(
            connection, tenant_id, uuid, day, from_entry=from_entry, bytes_max=bytes_max
        )


async def rows(
    connection: Connection,
    tenant_id: TenantId,
    uuid: UUID,
    day: date,
    *,
    from_entry: int = 0,
    bytes_max: int = _UNBOUNDED,
) -> list[LogRow]:
    """The same inside a transaction of the caller's; without bounds the whole log."""
    parameters = {
        "tenant": tenant_id,
        "response": uuid,
        "day": day,
        "from_entry": from_entry,
        "bytes_max": bytes_max,
        "row_bytes": ROW_BYTES,
    }
    return [LogRow(*row) for row in await connection.execute(_READ, parameters)]


async def add(connection: Connection, claim: Claim, created_at: datetime, row: LogRow) -> None:
    """A row of the log, inside a transaction of the caller's that has locked and moved the head."""
    await connection.execute(
        _ADD,
        {
            "tenant_id": claim.tenant_id,
            "response_id": claim.uuid,
            "first_entry": row.first_entry,
            "day": day_of(created_at),
            "epoch": claim.epoch,
            "entry_count": row.count,
            "entries": row.entries,
        },
    )
