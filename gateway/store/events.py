"""The log of a response: rows of packed entries, appended under a fence, read in order.

Rows are never changed. The statement that moves `responses.next_entry` owns the numbers in between.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TYPE_CHECKING, Final, Protocol

from gateway.encryption.cipher import FRAMES
from gateway.errors import ContentSealed
from gateway.store.postgres.statements import Statement, insert_into
from gateway.store.tables.responses import LOGGED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import date, datetime
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

ROW_BYTES: Final = 20
"""Bytes that a row counts when it is read, beside its entries: it takes time to find."""
SHORT_ROW_BYTES: Final = 64
"""Bound on rows of a paced stream: a few ids."""
SHORT_ROWS_MIN: Final = 1000
"""Rows of a page from which a statement of its own for short rows pays."""
_UNBOUNDED: Final = 2**62


class WriteClaim(Protocol):
    """A `claims.Claim`."""

    @property
    def tenant_id(self) -> TenantId: ...

    @property
    def uuid(self) -> UUID: ...

    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The next entries of a log, packed, if its claim holds."""

    claim: WriteClaim
    day: date
    first_entry: int
    count: int
    entries: bytes


@dataclass(frozen=True, slots=True)
class LogRow:
    """Entries of a log, packed by `entries.pack`."""

    first_entry: int
    count: int
    entries: bytes


# Locking the heads is the fence. A takeover that commits while this statement waits for a lock is
# seen then, because what is locked is compared again; a join that takes no lock would insert beside
# it. Every statement that locks several heads does so in this order, so appends and heartbeats
# never deadlock. The lateral query takes them one by one, by key, whatever the planner thinks of
# their number. The update repeats the arrays, because only then it finds its rows by key in a hash
# join. The result is the entries that were fenced off: hardly ever any, so there is nothing to send
# or to read. Arrays come as text and all entries as one string, because the driver takes far longer
# to encode an array than both sides take for the same as text.
_APPEND: Final = Statement("""
WITH sent AS MATERIALIZED (
    SELECT tenant_id, response_id, epoch, day, first_entry, entry_count,
           substring(CAST(:entries AS bytea) FROM place + 1 FOR size) AS entries
    FROM unnest(
        CAST(CAST(:tenants AS text) AS uuid[]), CAST(CAST(:responses AS text) AS uuid[]),
        CAST(CAST(:epochs AS text) AS integer[]), CAST(CAST(:days AS text) AS date[]),
        CAST(CAST(:firsts AS text) AS integer[]), CAST(CAST(:counts AS text) AS integer[]),
        CAST(CAST(:places AS text) AS integer[]), CAST(CAST(:sizes AS text) AS integer[])
    ) AS sent (tenant_id, response_id, epoch, day, first_entry, entry_count, place, size)
    ORDER BY tenant_id, response_id
), held AS MATERIALIZED (
    SELECT sent.*
    FROM sent, LATERAL (
        SELECT FROM responses AS head
        WHERE head.tenant_id = sent.tenant_id AND head.id = sent.response_id
          AND head.epoch = sent.epoch AND head.next_entry = sent.first_entry
          AND head.status = 'in_progress'
        FOR NO KEY UPDATE
    ) AS head
), moved AS (
    UPDATE responses AS head SET next_entry = held.first_entry + held.entry_count
    FROM held
    WHERE head.tenant_id = ANY(CAST(CAST(:tenants AS text) AS uuid[]))
      AND head.id = ANY(CAST(CAST(:responses AS text) AS uuid[]))
      AND head.tenant_id = held.tenant_id AND head.id = held.response_id
), added AS (
    INSERT INTO events (tenant_id, response_id, epoch, day, first_entry, entry_count, entries)
    SELECT tenant_id, response_id, epoch, day, first_entry, entry_count, entries FROM held
)
SELECT sent.response_id
FROM sent LEFT JOIN held USING (tenant_id, response_id)
WHERE held.epoch IS NULL
""")

_SENT: Final = (
    "tenants", "responses", "epochs", "days", "firsts", "counts", "places", "sizes",
)  # fmt: skip

# Consecutive rows, packed in one version, are read as one `piece`: a stream that was written token
# by token has thousands, and each row would cost more than the entry in it.
_LOG: Final = """
    SELECT first_entry, entry_count, entries, substring(entries FROM 1 FOR 1) AS version
    FROM events
    WHERE tenant_id = :tenant AND response_id = :response AND day = :day
      AND first_entry >= (
          SELECT coalesce(max(first_entry), 0) FROM events
          WHERE tenant_id = :tenant AND response_id = :response AND day = :day
            AND first_entry <= :from_entry
      )
    ORDER BY first_entry
    LIMIT :row_limit
"""
# Nearly always a page is one piece of short rows, which plain sums can tell in a quarter of the
# time of windows: as many rows as cannot reach `bytes_max`. A longer row is not joined, which
# bounds what the server joins for nothing. No row: it is not one piece, or there are no rows.
_READ_PIECE: Final = Statement(f"""
SELECT first_entry, entry_count, set_byte(CAST(' ' AS bytea), 0, version) || entries
FROM (
    SELECT min(first_entry) AS first_entry, CAST(sum(entry_count) AS integer) AS entry_count,
           string_agg(
               CASE WHEN octet_length(entries) <= :short_bytes THEN substring(entries FROM 2) END,
               CAST('' AS bytea) ORDER BY first_entry
           ) AS entries,
           min(get_byte(nullif(entries, ''), 0)) AS version,
           bool_and(octet_length(entries) BETWEEN 1 AND :short_bytes)
           AND min(get_byte(nullif(entries, ''), 0)) = max(get_byte(nullif(entries, ''), 0))
           AND max(first_entry + entry_count) - min(first_entry) = sum(entry_count) AS is_whole
    FROM ({_LOG}) AS log
) AS piece
WHERE is_whole
""")  # noqa: S608 - constants only
# Only the order of the key occurs in the windows, so nothing is sorted; `row_limit` is as many as
# `bytes_max` could let through, so that a page costs only its own rows.
_READ: Final = Statement(f"""
SELECT min(first_entry), CAST(sum(entry_count) AS integer),
       version || string_agg(substring(entries FROM 2), CAST('' AS bytea) ORDER BY first_entry)
FROM (
    SELECT *, count(*) FILTER (WHERE is_first) OVER (ORDER BY first_entry ROWS UNBOUNDED PRECEDING)
              AS piece
    FROM (
        SELECT first_entry, entry_count, entries, version,
               (lag(first_entry + entry_count) OVER one_by_one, lag(version) OVER one_by_one)
               IS DISTINCT FROM (first_entry, version) AS is_first,
               sum(octet_length(entries) + :row_bytes) OVER one_by_one
               - octet_length(entries) - :row_bytes AS bytes_before
        FROM ({_LOG}) AS log
        WINDOW one_by_one AS (ORDER BY first_entry ROWS UNBOUNDED PRECEDING)
    ) AS marked
    WHERE bytes_before < :bytes_max
) AS page
GROUP BY piece, version
ORDER BY piece
""")  # noqa: S608 - constants only
_ADD: Final = Statement(
    insert_into("events", ["tenant_id", "response_id", "day", "epoch", *LOGGED])
)


def day_of(created_at: datetime) -> date:
    return created_at.astimezone(UTC).date()


async def append(database: Database, batches: Sequence[LogBatch]) -> frozenset[UUID]:
    """Commit batches, at most one per response; return the responses whose batches are in the log.

    The others were fenced off: their claim is lost, their run has ended, or the log continues
    elsewhere. After `StoreUnavailable` `claims.heads` shows what became of each.
    """
    if not batches:
        return frozenset()
    await ready(database, {batch.claim.tenant_id for batch in batches})
    rows, entries, uuids, place = [], [], set(), 0
    for batch in batches:
        claim = batch.claim
        cipher = database.keyring.find(claim.tenant_id)
        if cipher is None:
            # Its tenant's keys are gone: nothing more is written for it, as if it were gone.
            continue
        packed = sealed_entries(cipher, batch)
        numbers = claim.epoch, batch.day, batch.first_entry, batch.count, place, len(packed)
        rows.append((claim.tenant_id.hex, claim.uuid.hex, *map(str, numbers)))
        entries.append(packed)
        uuids.add(claim.uuid)
        place += len(packed)
    if not rows:
        return frozenset()
    # Arrays in PostgreSQL's text form, of words that need no quotes.
    arrays = [f"{{{','.join(column)}}}" for column in zip(*rows, strict=True)]
    sent: dict[str, object] = dict(zip(_SENT, arrays, strict=True))
    sent["entries"] = b"".join(entries)
    async with database.runs_transaction(in_bulk=True) as connection:
        fenced = await connection.scalars(_APPEND, sent)
    return frozenset(uuids.difference(fenced))


async def ready(database: Database, tenants: Collection[TenantId]) -> None:
    """Load the keys of these tenants, of any age, or learn that they are gone.

    Raises `StoreUnavailable` if neither succeeds: writes then have to wait.
    """
    await database.keyring.try_ready(tenants)
    for tenant_id in tenants:
        with suppress(ContentSealed):
            database.keyring.of(tenant_id)


async def read(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    day: date,
    *,
    from_entry: int = 0,
    bytes_max: int,
) -> list[LogRow]:
    """Return rows of a log in order, from the one with `from_entry` on.

    Stops with the row that reaches `bytes_max`, each row counting `ROW_BYTES` more. A long page of
    short rows, which count `SHORT_ROW_BYTES` more, stops earlier.
    """
    async with database.bulk_transaction(tenant_id) as connection:
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
    short_rows = bytes_max // (ROW_BYTES + SHORT_ROW_BYTES)
    parameters = {
        "tenant": tenant_id,
        "response": uuid,
        "day": day,
        "from_entry": from_entry,
        "bytes_max": bytes_max,
        "row_bytes": ROW_BYTES,
        "short_bytes": SHORT_ROW_BYTES,
    }
    log_rows: list[LogRow] = []
    if short_rows >= SHORT_ROWS_MIN:
        short = parameters | {"row_limit": short_rows}
        log_rows = [LogRow(*row) for row in await connection.execute(_READ_PIECE, short)]
    if not log_rows:
        page = parameters | {"row_limit": -(-bytes_max // ROW_BYTES)}
        log_rows = [LogRow(*row) for row in await connection.execute(_READ, page)]
    return opened_rows(await log_cipher(connection, tenant_id, log_rows), uuid, log_rows)


async def log_cipher(
    connection: Connection, tenant_id: TenantId, log_rows: Iterable[LogRow]
) -> ContentCipher:
    await connection.renew(
        tenant_id, lambda cipher: any(cipher.lacks_of_log(row.entries) for row in log_rows)
    )
    return connection.cipher(tenant_id)


def sealed_entries(cipher: ContentCipher, batch: LogBatch) -> bytes:
    if not cipher.seals:
        return batch.entries
    claim = batch.claim
    return cipher.seal_entries(batch.entries, claim.uuid.bytes, claim.epoch, batch.first_entry)


def opened_rows(cipher: ContentCipher, uuid: UUID, rows: list[LogRow]) -> list[LogRow]:
    if not any(row.entries[:1] == FRAMES for row in rows):
        return rows
    return [replace(one, entries=cipher.open_entries(one.entries, uuid.bytes)) for one in rows]


async def add(connection: Connection, claim: WriteClaim, created_at: datetime, row: LogRow) -> None:
    """Add a log row in the caller's transaction, which has locked and moved the head."""
    cipher = connection.cipher(claim.tenant_id)
    entries = cipher.seal_entries(row.entries, claim.uuid.bytes, claim.epoch, row.first_entry)
    await connection.execute(
        _ADD,
        {
            "tenant_id": claim.tenant_id,
            "response_id": claim.uuid,
            "first_entry": row.first_entry,
            "day": day_of(created_at),
            "epoch": claim.epoch,
            "entry_count": row.count,
            "entries": entries,
        },
    )
