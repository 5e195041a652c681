"""Usage lines of all tenants in the order of finished transactions, and cursors of their readers.

A line has the id of its transaction. Ids are given when transactions begin to write, so a line may
become visible behind one with a greater id. But all transactions below the horizon
(`pg_snapshot_xmin`) have ended, so a reader of lines below it reads each line once.

A dump that is restored into another cluster brings ids that it has not reached yet
(`Horizon.is_foreign`), until an upgrade makes its ids go on behind those.

The end of a batch for a sink is stored before it is sent, so that a repetition, after a crash or by
another process, sends the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.store.tables.columns import columns_of
from gateway.store.tables.ledger import usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.postgres.database import Connection, Database, Row

ROLLUP: Final = "rollup"
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


@dataclass(frozen=True, slots=True, order=True)
class LinePosition:
    tx: int = 0
    tenant: UUID = NIL
    response: UUID = NIL
    seq: int = -1


@dataclass(frozen=True, slots=True)
class Cursor:
    name: str
    place: LinePosition = LinePosition()
    batch: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Horizon:
    tx: int
    next_tx: int

    def is_foreign(self, place: LinePosition) -> bool:
        # A place after `next_tx` comes from another cluster.
        return place.tx > self.next_tx


async def read_horizon(connection: Connection) -> Horizon:
    row = (await connection.execute(_HORIZON)).one()
    return Horizon(row.tx, row.next_tx)


async def find(connection: Connection, name: str) -> Cursor | None:
    row = (await connection.execute(_FIND, {"name": name})).one_or_none()
    if row is None:
        return None
    place = LinePosition(row.tx, row.of_tenant, row.response_id, row.seq)
    return Cursor(row.name, place, row.batch, row.lines)


async def of_rollup(connection: Connection) -> Cursor:
    # Before anything was added up: at the beginning of the ledger.
    return await find(connection, ROLLUP) or Cursor(ROLLUP)


async def move(connection: Connection, cursor: Cursor) -> None:
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
    seconds = await connection.scalar(_BEHIND, _parameters(place))
    return 0.0 if seconds is None else max(0.0, float(seconds))


LINE_COLUMNS: Final = tuple(columns_of(usage))
FOREIGN: Final = (
    "its cursor is ahead of all transactions, as after a dump was restored into another cluster: "
    "run `harmony-gateway db upgrade`, then `harmony-gateway usage resume`"
)
_SELECTED: Final = ", ".join(f"line.{name}" for name in LINE_COLUMNS if name != "tx")
_KEY: Final = "line.tx, line.tenant_id, line.response_id, line.seq"
_READ: Final = Statement(f"""
SELECT {_SELECTED}, CAST(CAST(line.tx AS text) AS bigint) AS tx, tenants.name AS tenant_name
FROM usage AS line LEFT JOIN tenants ON tenants.id = line.tenant_id
WHERE line.tx IS NOT NULL
  AND line.tx >= CAST(CAST(:tx AS text) AS xid8)
  AND line.tx <= CAST(CAST(:end_tx AS text) AS xid8)
  AND ({_KEY}) > (CAST(CAST(:tx AS text) AS xid8), :tenant, :response, :seq)
  AND ({_KEY}) <= (CAST(CAST(:end_tx AS text) AS xid8), :end_tenant, :end_response, :end_seq)
ORDER BY {_KEY}
LIMIT :lines_max
""")  # noqa: S608 - constants only
_BEHIND: Final = Statement(f"""
SELECT CAST(extract(epoch FROM now() - line.at) AS double precision)
FROM usage AS line
WHERE line.tx IS NOT NULL
  AND line.tx >= CAST(CAST(:tx AS text) AS xid8)
  AND ({_KEY}) > (CAST(CAST(:tx AS text) AS xid8), :tenant, :response, :seq)
ORDER BY {_KEY}
LIMIT 1
""")  # noqa: S608 - constants only
_OWN: Final = f"tenant_id = '{EVERYONE}' AND name = :name"
_BEGIN: Final = Statement(f"""
INSERT INTO usage_cursors (
    tenant_id, name, tx, of_tenant, response_id, seq, batch, lines, moved_at
)
VALUES ('{EVERYONE}', :name, CAST(CAST(:tx AS text) AS xid8), '{EVERYONE}', '{EVERYONE}', -1,
        0, 0, now())
ON CONFLICT (tenant_id, name) DO NOTHING
""")  # noqa: S608 - constants only
_TAKE: Final = Statement(f"""
UPDATE usage_cursors
SET holder = :holder, held_until = now() + make_interval(secs => :lease_s)
WHERE {_OWN} AND stopped IS NULL
  AND (holder IS NULL OR holder = :holder OR held_until < now())
RETURNING CAST(CAST(tx AS text) AS bigint) AS tx, of_tenant, response_id, seq, batch,
    CAST(CAST(end_tx AS text) AS bigint) AS end_tx, end_tenant, end_response, end_seq
""")  # noqa: S608 - constants only
_BOUND: Final = Statement(f"""
UPDATE usage_cursors
SET end_tx = CAST(CAST(:tx AS text) AS xid8), end_tenant = :tenant, end_response = :response,
    end_seq = :seq
WHERE {_OWN} AND holder = :holder AND batch = :batch
""")  # noqa: S608 - constants only
_DONE: Final = Statement(f"""
UPDATE usage_cursors
SET tx = end_tx, of_tenant = end_tenant, response_id = end_response, seq = end_seq,
    batch = batch + 1, lines = lines + :lines, moved_at = now(),
    end_tx = NULL, end_tenant = NULL, end_response = NULL, end_seq = NULL
WHERE {_OWN} AND holder = :holder AND batch = :batch AND end_tx IS NOT NULL
""")  # noqa: S608 - constants only
_STOP: Final = Statement(
    f"UPDATE usage_cursors SET stopped = :why WHERE {_OWN}"  # noqa: S608 - constants only
)
_SKIP: Final = Statement(f"""
UPDATE usage_cursors
SET tx = end_tx, of_tenant = end_tenant, response_id = end_response, seq = end_seq,
    batch = batch + 1, moved_at = now(),
    end_tx = NULL, end_tenant = NULL, end_response = NULL, end_seq = NULL
WHERE {_OWN} AND end_tx IS NOT NULL AND stopped IS NOT NULL
""")  # noqa: S608 - constants only
_GO_ON: Final = Statement(f"""
UPDATE usage_cursors SET stopped = NULL WHERE {_OWN} AND stopped IS NOT NULL
""")  # noqa: S608 - constants only
_STATES: Final = Statement(f"""
SELECT substr(name, {len(SINK_PREFIX) + 1}) AS name, batch AS batches, lines, moved_at, stopped,
       end_tx IS NOT NULL AS is_under_way
FROM usage_cursors
WHERE tenant_id = '{EVERYONE}' AND name LIKE '{SINK_PREFIX}%' ORDER BY name
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class LineBatch:
    number: int
    lines: Sequence[Row]


async def read_lines(
    database: Database, after: LinePosition, *, lines_max: int
) -> tuple[list[Row], LinePosition]:
    """Return lines behind a place, and the place after them."""
    async with database.runs_transaction() as connection:
        horizon = await read_horizon(connection)
        rows = await _read_lines(connection, after, LinePosition(horizon.tx), lines_max=lines_max)
    return rows, place_of(rows[-1]) if rows else after


def place_of(row: Row) -> LinePosition:
    return LinePosition(row.tx, row.tenant_id, row.response_id, row.seq)


async def next_batch(
    database: Database, sink: str, holder: str, *, lease_s: float, lines_max: int
) -> LineBatch | None:
    """Return the next batch for a sink, leased to `holder`, if it may have one.

    A new sink begins with the lines written from now on. A sink whose place comes from another
    cluster is stopped, because lines written here would never be sent.
    """
    name = SINK_PREFIX + sink
    async with database.runs_transaction() as connection:
        horizon = await read_horizon(connection)
        await connection.execute(_BEGIN, {"name": name, "tx": str(horizon.tx)})
        whose = {"name": name, "holder": holder}
        taken = (await connection.execute(_TAKE, {**whose, "lease_s": lease_s})).one_or_none()
        if taken is None:
            return None
        after = LinePosition(taken.tx, taken.of_tenant, taken.response_id, taken.seq)
        if horizon.is_foreign(after):
            await connection.execute(_STOP, {"name": name, "why": FOREIGN})
            return None
        if taken.end_tx is not None:
            end = LinePosition(taken.end_tx, taken.end_tenant, taken.end_response, taken.end_seq)
            rows = await _read_lines(connection, after, end, lines_max=None)
            return LineBatch(taken.batch, rows)
        rows = await _read_lines(connection, after, LinePosition(horizon.tx), lines_max=lines_max)
        if not rows:
            return None
        bound = {**whose, "batch": taken.batch, **_parameters(place_of(rows[-1]))}
        await connection.execute(_BOUND, bound)
        return LineBatch(taken.batch, rows)


async def batch_done(database: Database, sink: str, holder: str, batch: LineBatch) -> bool:
    """Move the sink's cursor behind this batch. Return False if another process has taken over."""
    async with database.runs_transaction() as connection:
        whose = {"name": SINK_PREFIX + sink, "holder": holder, "batch": batch.number}
        return bool(await connection.count(_DONE, {**whose, "lines": len(batch.lines)}))


async def stop_sink(database: Database, sink: str, why: str) -> None:
    # Until an operator starts the sink again.
    async with database.runs_transaction() as connection:
        await connection.execute(_STOP, {"name": SINK_PREFIX + sink, "why": why})


async def resume_sink(database: Database, sink: str, *, is_delivered: bool) -> bool:
    """Resume a stopped sink, with the unfinished batch or (`is_delivered`) behind it."""
    name = {"name": SINK_PREFIX + sink}
    async with database.runs_transaction() as connection:
        if is_delivered:
            await connection.execute(_SKIP, name)
        return bool(await connection.count(_GO_ON, name))


async def sink_states(database: Database) -> list[Row]:
    async with database.runs_transaction() as connection:
        return await connection.execute(_STATES)


async def sink_behind_s(database: Database, sink: str) -> float:
    async with database.runs_transaction() as connection:
        cursor = await find(connection, SINK_PREFIX + sink)
        return 0.0 if cursor is None else await behind_s(connection, cursor.place)


async def _read_lines(
    connection: Connection, after: LinePosition, end: LinePosition, *, lines_max: int | None
) -> list[Row]:
    parameters: dict[str, Any] = {
        **_parameters(after),
        **{f"end_{name}": value for name, value in _parameters(end).items()},
        "lines_max": lines_max,
    }
    return await connection.execute(_READ, parameters)


def _parameters(place: LinePosition) -> dict[str, Any]:
    return {
        "tx": str(place.tx),
        "tenant": place.tenant,
        "response": place.response,
        "seq": place.seq,
    }
