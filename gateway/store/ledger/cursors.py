"""Cursors of readers of all lines, in the order of transactions that are over.

A line has the id of the transaction that wrote it. Ids are given when transactions begin to write,
so a line may become visible behind one with a greater id. But of transactions below the horizon
(`pg_snapshot_xmin`) none is under way: what they wrote is there, and nothing more will come. So a
reader that reads lines below the horizon, and continues from there, reads each line once, however
slow a transaction was.

Ids are compared within one cluster. A dump that is restored into another cluster brings lines and
cursors whose ids that cluster has not reached yet (`Horizon.is_foreign`), until an upgrade makes
its ids go on behind those (`store.migration.transaction_ids`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.store.postgres.database import Connection

ROLLUP: Final = "rollup"
"""The cursor of who adds lines up."""
SINK_PREFIX: Final = "sink:"
NIL: Final = UUID(int=0)

_HORIZON: Final = Statement("""
SELECT CAST(CAST(ledger_tx(pg_snapshot_xmin(pg_current_snapshot())) AS text) AS bigint) AS tx,
       CAST(CAST(ledger_tx(pg_snapshot_xmax(pg_current_snapshot())) AS text) AS bigint) AS next_tx
""")
_FIND: Final = Statement(f"""
SELECT name, CAST(CAST(tx AS text) AS bigint) AS tx, of_tenant, response_id, seq, batch, lines
FROM usage_cursors
WHERE tenant_id = '{EVERYONE}' AND name = :name
""")  # noqa: S608 - constants only
_PLACE: Final = Statement(f"""
INSERT INTO usage_cursors (
    tenant_id, name, tx, of_tenant, response_id, seq, batch, lines, moved_at
)
VALUES (
    '{EVERYONE}', :name, CAST(CAST(:tx AS text) AS xid8), :of_tenant, :response_id, :seq, :batch,
    :lines, now()
)
ON CONFLICT (tenant_id, name) DO UPDATE
SET tx = excluded.tx, of_tenant = excluded.of_tenant, response_id = excluded.response_id,
    seq = excluded.seq, batch = excluded.batch, lines = excluded.lines, moved_at = excluded.moved_at
""")  # noqa: S608 - constants only
_LOCK: Final = Statement("SELECT pg_try_advisory_xact_lock(:key, hashtext(:name))")
_LOCK_KEY: Final = 0x4C656467  # "Ledg"
_BEHIND: Final = Statement("""
SELECT CAST(extract(epoch FROM now() - at) AS double precision) FROM usage
WHERE tx >= CAST(CAST(:tx AS text) AS xid8) AND tx IS NOT NULL
ORDER BY tx, tenant_id, response_id, seq
LIMIT 1
""")


_AGE: Final = Statement(
    "SELECT extract(epoch FROM now() - CAST(:at AS timestamptz))::double precision"
)


@dataclass(frozen=True, slots=True, order=True)
class LinePosition:
    """Position behind the line with this key; with `tx` alone: before the first line of `tx`."""

    tx: int = 0
    tenant: UUID = NIL
    response: UUID = NIL
    seq: int = -1


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of one reader: `batch` counts its batches, `lines` the lines in all of them."""

    name: str
    place: LinePosition = LinePosition()
    batch: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Horizon:
    """Bound of finished transactions: all below `tx` are over; `next_tx` is given next."""

    tx: int
    next_tx: int

    def is_foreign(self, place: LinePosition) -> bool:
        # A place after `next_tx` comes from another cluster.
        return place.tx > self.next_tx


async def horizon(connection: Connection) -> Horizon:
    """Return the horizon of this statement. Lines below it do not change any more."""
    row = (await connection.execute(_HORIZON)).one()
    return Horizon(row.tx, row.next_tx)


async def try_lock(connection: Connection, name: str) -> bool:
    """Lock the cursor to the end of the transaction. Return False if another process holds it."""
    return bool(await connection.scalar(_LOCK, {"key": _LOCK_KEY, "name": name}))


async def find(connection: Connection, name: str) -> Cursor | None:
    """Return the cursor of a reader, or None if the reader has not begun."""
    row = (await connection.execute(_FIND, {"name": name})).one_or_none()
    if row is None:
        return None
    place = LinePosition(row.tx, row.of_tenant, row.response_id, row.seq)
    return Cursor(row.name, place, row.batch, row.lines)


async def move(connection: Connection, cursor: Cursor) -> None:
    """Store the cursor, creating it if it is new."""
    place = cursor.place
    await connection.execute(
        _PLACE,
        {
            "name": cursor.name,
            "tx": str(place.tx),
            "of_tenant": place.tenant,
            "response_id": place.response,
            "seq": place.seq,
            "batch": cursor.batch,
            "lines": cursor.lines,
        },
    )


async def behind_s(connection: Connection, place: LinePosition) -> float:
    """Return the age in seconds of the oldest line behind a place, 0.0 if none."""
    seconds = await connection.scalar(_BEHIND, {"tx": str(place.tx)})
    return 0.0 if seconds is None else max(0.0, float(seconds))


async def age_s(connection: Connection, at: datetime) -> float:
    """Return the seconds since `at` by the database's clock, 0.0 for a future time."""
    return max(0.0, float(await connection.scalar(_AGE, {"at": at})))
