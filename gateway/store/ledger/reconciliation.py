"""Compare lines with the responses that they are of, and with the sums that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.store.ledger import cursors
from gateway.store.ledger.cursors import ROLLUP, SINK_PREFIX, Cursor
from gateway.store.ledger.sums import LINE_KEY, LINE_VALUES
from gateway.store.postgres.statements import Statement
from gateway.store.tables.ledger import COUNTS, SUMS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.store.limits.reconciliation import Correction
    from gateway.store.postgres.database import Database, Row

_UNMETERED: Final = Statement("""
SELECT r.tenant_id, r.id
FROM tenants t CROSS JOIN LATERAL (
    SELECT one.tenant_id, one.id FROM responses AS one
    WHERE one.tenant_id = t.id AND one.status IN ('completed', 'incomplete', 'cancelled')
      AND one.completed_at >= now() - make_interval(secs => :back_s)
      AND one.completed_at < now() - interval '1 minute'
      AND NOT EXISTS (
          SELECT FROM usage AS line
          WHERE line.tenant_id = one.tenant_id AND line.response_id = one.id AND line.seq = 0
      )
    LIMIT :rows_max
) AS r
LIMIT :rows_max
""")
_UNBILLED: Final = Statement("""
SELECT count(*) FROM tenants t CROSS JOIN LATERAL (
    SELECT FROM responses AS one
    WHERE one.tenant_id = t.id AND one.status = 'failed'
      AND one.completed_at >= now() - make_interval(secs => :back_s)
      AND NOT EXISTS (
          SELECT FROM usage AS line
          WHERE line.tenant_id = one.tenant_id AND line.response_id = one.id AND line.seq = 0
      )
) AS r
""")
_KEY: Final = ", ".join(LINE_KEY)
_KEY_VALUES: Final = ", ".join(f"{value} AS {name}" for name, value in LINE_KEY.items())
_VALUES: Final = ", ".join(f"{value} AS {name}" for name, value in LINE_VALUES.items())
_DIFFERS: Final = " OR ".join(
    f"coalesce(sum(line.{name}), 0) <> coalesce(sum(line.summed_{name}), 0)" for name in SUMS
)
_NONE: Final = ", ".join(f"0 AS summed_{name}" for name in SUMS)
_SUMMED: Final = ", ".join(f"0 AS {name}" for name in SUMS)
_AS_SUMMED: Final = ", ".join(f"{name} AS summed_{name}" for name in SUMS)
# Both of one statement: what is added up meanwhile is in neither of the two, or in both.
_WRONG_HOURS: Final = Statement(f"""
WITH cursor AS (
    SELECT coalesce(max(tx), CAST('0' AS xid8)) AS tx FROM usage_cursors WHERE name = '{ROLLUP}'
)
SELECT tenant_id, hour FROM (
    SELECT date_trunc('hour', line.at, 'UTC') AS hour, {_KEY_VALUES}, {_VALUES}, {_NONE}
    FROM usage AS line, cursor
    WHERE line.at >= CAST(:since AS timestamptz) AND (line.tx IS NULL OR line.tx < cursor.tx)
    UNION ALL
    SELECT at AS hour, {_KEY}, {_SUMMED}, {_AS_SUMMED}
    FROM usage_hours WHERE at >= CAST(:since AS timestamptz)
) AS line
GROUP BY tenant_id, hour, {_KEY}
HAVING {_DIFFERS}
ORDER BY hour
LIMIT :rows_max
""")  # noqa: S608 - constants only
_SINCE: Final = Statement("""
SELECT date_trunc('hour', now() - make_interval(secs => :back_s), 'UTC')
""")
_SAMPLE: Final = Statement(f"""
SELECT line.tenant_id, line.response_id, {", ".join(f"line.{name}" for name in COUNTS)}
FROM usage AS line JOIN responses AS one
     ON one.tenant_id = line.tenant_id AND one.id = line.response_id
WHERE line.at >= now() - make_interval(secs => :back_s) AND line.seq = 0
  AND line.kind = 'response' AND one.durable
  AND one.status IN ('completed', 'incomplete', 'cancelled', 'failed')
ORDER BY random()
LIMIT :rows_max
""")  # noqa: S608 - constants only
_STOPPED: Final = Statement(
    "SELECT name FROM usage_cursors WHERE stopped IS NOT NULL ORDER BY name"
)


@dataclass(frozen=True, slots=True)
class Found:
    """Differences of the last `back_s` seconds, up to a bound of each kind.

    `unmetered` are responses that ended with output and have no line, by tenant; `wrong_hours` the
    hours of tenants whose sums differ from their lines. `unbilled` counts responses that failed
    without a line: mostly foreground ones whose process was lost with what it knew. `compared_logs`
    counts lines compared with the logs of their responses; the logs in `wrong_logs` differ.
    `corrected` are the meters whose recorded spending was corrected.
    """

    unmetered: tuple[tuple[UUID, UUID], ...] = ()
    wrong_hours: tuple[tuple[UUID, datetime], ...] = ()
    unbilled: int = 0
    behind_s: float = 0.0
    stopped_sinks: tuple[str, ...] = ()
    compared_logs: int = 0
    wrong_logs: tuple[tuple[UUID, UUID], ...] = ()
    corrected: tuple[Correction, ...] = ()

    @property
    def agrees(self) -> bool:
        # Lines, responses, logs and sums match.
        return not (self.unmetered or self.wrong_hours or self.wrong_logs)


async def sample(database: Database, *, back_s: float, rows_max: int) -> Sequence[Row]:
    """Return random lines of responses that have a log, with all columns that count.

    Raises `StoreUnavailable`.
    """
    async with database.runs_transaction() as connection:
        return await connection.execute(_SAMPLE, {"back_s": back_s, "rows_max": rows_max})


async def compare(database: Database, *, back_s: float, rows_max: int) -> Found:
    """Compare lines with responses and sums. Raises `StoreUnavailable`."""
    async with database.runs_transaction() as connection:
        asked = {"back_s": back_s, "rows_max": rows_max}
        unmetered = await connection.execute(_UNMETERED, asked)
        unbilled = await connection.scalar(_UNBILLED, {"back_s": back_s})
        since = await connection.scalar(_SINCE, {"back_s": back_s})
        hours = await connection.execute(_WRONG_HOURS, {"since": since, "rows_max": rows_max})
        cursor = await cursors.find(connection, ROLLUP) or Cursor(ROLLUP)
        behind_s = await cursors.behind_s(connection, cursor.place)
        stopped = await connection.scalars(_STOPPED)
    return Found(
        unmetered=tuple((row.tenant_id, row.id) for row in unmetered),
        wrong_hours=tuple(dict.fromkeys((row.tenant_id, row.hour) for row in hours)),
        unbilled=unbilled,
        behind_s=behind_s,
        stopped_sinks=tuple(name.removeprefix(SINK_PREFIX) for name in stopped),
    )
