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
    from gateway.settings.ledger import Ledger
    from gateway.store.postgres.database import Database

_KEPT_FROM: Final = "now() - make_interval(secs => CAST(:kept_s AS integer))"


def _removal(table: str, time: str = "at", kind: str = "timestamptz") -> str:
    # A bounded number of rows of each tenant that is not held.
    return f"""
    DELETE FROM {table} AS gone USING (
        SELECT old.* FROM tenants CROSS JOIN LATERAL (
            SELECT one.tenant_id, one.{time}, one.ctid AS place FROM {table} AS one
            WHERE tenants.held_at IS NULL AND one.tenant_id = tenants.id
              AND one.{time} < CAST({_KEPT_FROM} AS {kind})
            LIMIT :rows_max
        ) AS old
        LIMIT :rows_max
    ) AS expired
    WHERE gone.tenant_id = expired.tenant_id AND gone.{time} = expired.{time}
      AND gone.ctid = expired.place
    RETURNING gone.*
    """  # noqa: S608 - constants only


# Raw SQL: rows are found by their place, a batch of each tenant. Every reader of lines has a
# cursor, and nothing is added up without one.
_LINES: Final = Statement(f"""
WITH gone AS (
    DELETE FROM usage AS gone USING (
        SELECT old.tenant_id, old.response_id, old.seq FROM tenants CROSS JOIN LATERAL (
            SELECT line.tenant_id, line.response_id, line.seq FROM usage AS line
            WHERE tenants.held_at IS NULL AND line.tenant_id = tenants.id
              AND line.at < {_KEPT_FROM}
              AND (line.tx IS NULL OR line.tx < (SELECT min(tx) FROM usage_cursors))
            LIMIT :rows_max
        ) AS old
        WHERE EXISTS (SELECT FROM usage_cursors WHERE name = '{ROLLUP}')
        LIMIT :rows_max
    ) AS expired
    WHERE gone.tenant_id = expired.tenant_id AND gone.response_id = expired.response_id
      AND gone.seq = expired.seq
    RETURNING gone.seq
)
SELECT count(*) FROM gone
""")  # noqa: S608 - constants only
_KEY: Final = ", ".join(name for name in SUMMED_BY if name != "at")
# In one order, so that two processes that do it at once do not wait for each other.
_TO_DAYS: Final = Statement(f"""
WITH gone AS ({_removal("usage_hours")}), days AS (
    INSERT INTO usage_days (at, {_KEY}, {", ".join(SUMS)})
    SELECT date_trunc('day', at, 'UTC'), {_KEY}, {", ".join(f"sum({name})" for name in SUMS)}
    FROM gone GROUP BY 1, {_KEY} ORDER BY 1, {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {added_to("usage_days")}
)
SELECT count(*) FROM gone
""")  # noqa: S608 - constants only
_MINUTES, _DAYS, _END_USER_DAYS = (
    Statement(f"WITH gone AS ({removal}) SELECT count(*) FROM gone")  # noqa: S608 - constants only
    for removal in (
        _removal("usage_minutes"),
        _removal("usage_days"),
        _removal("usage_end_user_days", "day", "date"),
    )
)


async def remove_expired(
    database: Database, keep: Ledger, *, rows_max: int, batches_max: int = 100
) -> int:
    """Remove up to `batches_max * rows_max` expired rows of each kind, and sum up hours into days.

    Return the number of rows removed. Raises `StoreUnavailable`; earlier batches stay removed.
    """
    kinds = {
        _TO_DAYS: keep.hours_s,
        _LINES: keep.lines_s,
        _MINUTES: keep.minutes_s,
        _DAYS: keep.days_s,
        _END_USER_DAYS: keep.end_user_days_s,
    }
    removed = 0
    for statement, kept_s in kinds.items():
        for _ in range(batches_max):
            async with database.runs_transaction() as connection:
                await removing(connection)
                parameters = {"kept_s": kept_s, "rows_max": rows_max}
                rows: int = await connection.scalar(statement, parameters)
            removed += rows
            if rows < rows_max:
                break
    return removed
