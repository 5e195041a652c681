"""The end of lines and sums that have expired. A line stays until it is added up and was sent.

Nothing goes of a tenant that is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.ledger.cursors import ROLLUP
from gateway.store.ledger.rollup import added_to
from gateway.store.postgres.removals import removing
from gateway.store.postgres.statements import Statement
from gateway.store.tables.ledger import SUMMED_BY, SUMS

if TYPE_CHECKING:
    from gateway.settings.sections import Ledger
    from gateway.store.postgres.database import Database

# Every reader of lines has a cursor, and nothing is added up without one.
_LINES: Final = Statement(f"""
DELETE FROM usage AS gone USING (
    SELECT old.tenant_id, old.response_id, old.seq FROM tenants CROSS JOIN LATERAL (
        SELECT line.tenant_id, line.response_id, line.seq FROM usage AS line
        WHERE tenants.held_at IS NULL AND line.tenant_id = tenants.id
          AND line.at < now() - make_interval(secs => CAST(:kept_s AS integer))
          AND (line.tx IS NULL OR line.tx < (SELECT min(tx) FROM usage_cursors))
        LIMIT :rows_max
    ) AS old
    WHERE EXISTS (SELECT FROM usage_cursors WHERE name = '{ROLLUP}')
    LIMIT :rows_max
) AS expired
WHERE gone.tenant_id = expired.tenant_id AND gone.response_id = expired.response_id
  AND gone.seq = expired.seq
""")  # noqa: S608 - constants only


_KEY: Final = ", ".join(name for name in SUMMED_BY if name != "at")
_OLD_HOURS: Final = """
    SELECT old.* FROM tenants CROSS JOIN LATERAL (
        SELECT one.tenant_id, one.at, one.ctid AS place FROM usage_hours AS one
        WHERE tenants.held_at IS NULL AND one.tenant_id = tenants.id
          AND one.at < now() - make_interval(secs => CAST(:kept_s AS integer))
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
"""
# In one order, so that two processes that do it at once do not wait for each other.
_TO_DAYS: Final = Statement(f"""
WITH gone AS (
    DELETE FROM usage_hours AS gone USING ({_OLD_HOURS}) AS expired
    WHERE gone.tenant_id = expired.tenant_id AND gone.at = expired.at AND gone.ctid = expired.place
    RETURNING gone.*
), days AS (
    INSERT INTO usage_days (at, {_KEY}, {", ".join(SUMS)})
    SELECT date_trunc('day', at, 'UTC'), {_KEY}, {", ".join(f"sum({name})" for name in SUMS)}
    FROM gone GROUP BY 1, {_KEY} ORDER BY 1, {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {added_to("usage_days")}
)
SELECT count(*) FROM gone
""")  # noqa: S608 - constants only


def _sums(table: str) -> Statement:
    return Statement(f"""
DELETE FROM {table} AS gone USING (
    SELECT old.* FROM tenants CROSS JOIN LATERAL (
        SELECT one.tenant_id, one.at, one.ctid AS place FROM {table} AS one
        WHERE tenants.held_at IS NULL AND one.tenant_id = tenants.id
          AND one.at < now() - make_interval(secs => CAST(:kept_s AS integer))
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE gone.tenant_id = expired.tenant_id AND gone.at = expired.at AND gone.ctid = expired.place
""")  # noqa: S608 - constants only


_DAYS: Final = Statement("""
DELETE FROM usage_end_user_days AS gone USING (
    SELECT old.* FROM tenants CROSS JOIN LATERAL (
        SELECT one.tenant_id, one.day, one.ctid AS place FROM usage_end_user_days AS one
        WHERE tenants.held_at IS NULL AND one.tenant_id = tenants.id
          AND one.day < CAST(now() - make_interval(secs => CAST(:kept_s AS integer)) AS date)
        LIMIT :rows_max
    ) AS old
    LIMIT :rows_max
) AS expired
WHERE gone.tenant_id = expired.tenant_id AND gone.day = expired.day AND gone.ctid = expired.place
""")


async def remove_expired(
    database: Database, keep: Ledger, *, rows_max: int, batches_max: int = 100
) -> int:
    """Remove up to `batches_max * rows_max` expired rows of each kind, and sum up hours into days.

    Return the number of rows removed. Raises `StoreUnavailable`; earlier batches stay removed.
    """
    kinds = {
        _LINES: keep.lines_s,
        _sums("usage_minutes"): keep.minutes_s,
        _sums("usage_days"): keep.days_s,
        _DAYS: keep.end_user_days_s,
    }
    removed = await _hours_to_days(database, keep, rows_max=rows_max, batches_max=batches_max)
    for statement, kept_s in kinds.items():
        for _ in range(batches_max):
            async with database.runs_transaction() as connection:
                await removing(connection)
                rows = await connection.count(statement, {"kept_s": kept_s, "rows_max": rows_max})
            removed += rows
            if rows < rows_max:
                break
    return removed


async def _hours_to_days(
    database: Database, keep: Ledger, *, rows_max: int, batches_max: int
) -> int:
    moved = 0
    for _ in range(batches_max):
        async with database.runs_transaction() as connection:
            await removing(connection)
            asked = {"kept_s": keep.hours_s, "rows_max": rows_max}
            rows: int = await connection.scalar(_TO_DAYS, asked)
        moved += rows
        if rows < rows_max:
            break
    return moved
