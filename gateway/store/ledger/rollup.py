"""Lines added up by the hour, by the minute and by the day and end user; each exactly once.

One transaction adds the lines of some transactions and moves the cursor behind them. So whoever
reads sums and, of what is behind the cursor, lines, finds each line in one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gateway.store.ledger import cursors
from gateway.store.ledger.cursors import ROLLUP, Cursor, LinePosition
from gateway.store.postgres.statements import Statement
from gateway.store.schema import COST_COLUMNS
from gateway.store.tables.ledger import SUMMED_BY, SUMS

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

# Null stands for the default project (whose id is the tenant's), the default tier, no background. A
# correction is no request.
_KEY_WORDS: Final = {
    "service_tier": "coalesce(line.service_tier, 'default')",
    "background": "coalesce(line.background, false)",
    "project_id": "coalesce(line.project_id, line.tenant_id)",
}
LINE_KEY: Final = {name: _KEY_WORDS.get(name, f"line.{name}") for name in SUMMED_BY if name != "at"}
"""SQL of the columns that a line is summed by, except its time."""
_COUNTED: Final = {
    "requests": "(line.seq = 0)::int",
    "code_sessions": "(line.seq = 0 AND coalesce(line.tools ? 'code_interpreter', false))::int",
}


def _value(name: str) -> str:
    if name in _COUNTED:
        return _COUNTED[name]
    return f"coalesce(line.{name}, 0)" if name in COST_COLUMNS else f"line.{name}"


LINE_VALUES: Final = {name: _value(name) for name in SUMS}
"""SQL of what one line adds to each sum."""
_KEY: Final = ", ".join(LINE_KEY)
_SUMS: Final = ", ".join(SUMS)
_KEY_VALUES: Final = ", ".join(f"{value} AS {name}" for name, value in LINE_KEY.items())
_VALUES: Final = ", ".join(f"{value} AS {name}" for name, value in LINE_VALUES.items())
_SUMMED: Final = ", ".join(f"sum({name})" for name in SUMS)


LINES_MAX: Final = 20_000
"""Lines of one transaction, unless one transaction wrote more by itself."""
MINUTES_S: Final = 48 * 3600.0


def added_to(table: str) -> str:
    """Return the SQL that adds new sums to existing ones."""
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in SUMS)
    return f"DO UPDATE SET {added}"


_BOUND: Final = Statement("""
SELECT CAST(CAST(tx AS text) AS bigint) FROM usage
WHERE tx >= CAST(CAST(:from_tx AS text) AS xid8) AND tx < CAST(CAST(:to_tx AS text) AS xid8)
ORDER BY tx OFFSET :lines_max LIMIT 1
""")
_ADD: Final = Statement(f"""
WITH added AS MATERIALIZED (
    SELECT line.at, {_KEY_VALUES}, line.end_user, {_VALUES}
    FROM usage AS line
    WHERE line.tx >= CAST(CAST(:from_tx AS text) AS xid8)
      AND line.tx < CAST(CAST(:to_tx AS text) AS xid8)
), hours AS (
    INSERT INTO usage_hours (at, {_KEY}, {_SUMS})
    SELECT date_trunc('hour', at, 'UTC'), {_KEY}, {_SUMMED} FROM added
    GROUP BY date_trunc('hour', at, 'UTC'), {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {added_to("usage_hours")}
), minutes AS (
    INSERT INTO usage_minutes (at, {_KEY}, {_SUMS})
    SELECT date_trunc('minute', at, 'UTC'), {_KEY}, {_SUMMED} FROM added
    WHERE at >= now() - make_interval(secs => :minutes_s)
    GROUP BY date_trunc('minute', at, 'UTC'), {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {added_to("usage_minutes")}
), days AS (
    INSERT INTO usage_end_user_days (tenant_id, day, project_id, end_user, model, {_SUMS})
    SELECT tenant_id, CAST(at AT TIME ZONE 'UTC' AS date), project_id, end_user, model, {_SUMMED}
    FROM added
    WHERE end_user IS NOT NULL
      AND tenant_id IN (SELECT id FROM tenants WHERE usage_by_end_user = 'allowed')
    GROUP BY tenant_id, CAST(at AT TIME ZONE 'UTC' AS date), project_id, end_user, model
    ON CONFLICT (tenant_id, day, project_id, end_user, model)
    {added_to("usage_end_user_days")}
)
SELECT count(*) FROM added
""")  # noqa: S608 - constants only
_FORGET_HOUR: Final = Statement(
    "DELETE FROM usage_hours WHERE tenant_id = :tenant AND at = :hour RETURNING at"
)
_ADD_HOUR: Final = Statement(f"""
INSERT INTO usage_hours (at, {_KEY}, {_SUMS})
SELECT CAST(:hour AS timestamptz), {_KEY}, {_SUMMED}
FROM (
    SELECT {_KEY_VALUES}, {_VALUES} FROM usage AS line
    WHERE line.tenant_id = :tenant AND line.at >= :hour AND line.at < :next_hour
      AND (line.tx IS NULL OR line.tx < CAST(CAST(:tx AS text) AS xid8))
) AS added
GROUP BY {_KEY}
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class Advance:
    """Result of one transaction. `is_done`: nothing is left below the horizon. `is_foreign`: it did
    nothing, because the cursor is ahead of all transactions (`cursors.Horizon`).
    """

    lines: int = 0
    is_done: bool = True
    is_foreign: bool = False


async def advance(
    database: Database, *, lines_max: int = LINES_MAX, minutes_s: float = MINUTES_S
) -> Advance | None:
    """Add the next lines to the sums. Return None if another process is doing it.

    Lines younger than `minutes_s` are added up by the minute, too. Raises `StoreUnavailable`.
    """
    async with database.runs_transaction() as connection:
        if not await cursors.try_lock(connection, ROLLUP):
            return None
        cursor = await cursors.find(connection, ROLLUP) or Cursor(ROLLUP)
        horizon = await cursors.horizon(connection)
        if horizon.is_foreign(cursor.place):
            return Advance(is_foreign=True)
        span = {"from_tx": str(cursor.place.tx), "to_tx": str(horizon.tx)}
        bound = await connection.scalar(_BOUND, {**span, "lines_max": lines_max})
        to_tx = horizon.tx if bound is None else max(bound, cursor.place.tx + 1)
        lines = await connection.scalar(_ADD, {**span, "to_tx": str(to_tx), "minutes_s": minutes_s})
        if lines or bound is not None:
            # Else there is nothing to move past.
            moved = replace(
                cursor,
                place=LinePosition(to_tx),
                batch=cursor.batch + 1,
                lines=cursor.lines + lines,
            )
            await cursors.move(connection, moved)
        return Advance(lines, is_done=bound is None)


async def behind_s(database: Database) -> float:
    """Return the age in seconds of the oldest line that is in no sum yet, 0.0 if none.

    Raises `StoreUnavailable`.
    """
    async with database.runs_transaction() as connection:
        cursor = await cursors.find(connection, ROLLUP) or Cursor(ROLLUP)
        return await cursors.behind_s(connection, cursor.place)


async def add_hour_again(database: Database, tenant_id: TenantId, hour: datetime) -> bool:
    """Rebuild the sums of one hour from its lines. Return False if another process adds lines now.

    Call it only while all lines of the hour exist. Raises `StoreUnavailable`.
    """
    async with database.runs_transaction() as connection:
        if not await cursors.try_lock(connection, ROLLUP):
            return False
        await _add_hour_again(connection, tenant_id, hour)
        return True


async def _add_hour_again(connection: Connection, tenant_id: TenantId, hour: datetime) -> None:
    cursor = await cursors.find(connection, ROLLUP) or Cursor(ROLLUP)
    of_hour = {"tenant": tenant_id, "hour": hour}
    await connection.execute(_FORGET_HOUR, of_hour)
    next_hour = hour + timedelta(hours=1)
    tx = str(cursor.place.tx)
    await connection.execute(_ADD_HOUR, {**of_hour, "next_hour": next_hour, "tx": tx})
