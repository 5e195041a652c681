"""Usage lines added up by the hour, by the minute and by the day and end user; and usage by time.

One transaction adds the lines of some transactions, each exactly once, and moves the cursor behind
them. Usage by time is sums, and the lines that are in no sum yet, in one snapshot: nothing is
missing, and nothing counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.store.ledger import cursors
from gateway.store.ledger.cursors import LinePosition
from gateway.store.locks import Lock, try_take
from gateway.store.postgres.statements import Statement
from gateway.store.schema import COST_COLUMNS
from gateway.store.tables.ledger import SUMMED_BY, SUMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import TenantId

# Null stands for the default project (whose id is the tenant's), the default tier, no background. A
# correction is no request.
_KEY_WORDS: Final = {
    "service_tier": "coalesce(line.service_tier, 'default')",
    "background": "coalesce(line.background, false)",
    "project_id": "coalesce(line.project_id, line.tenant_id)",
}
LINE_KEY: Final = {name: _KEY_WORDS.get(name, f"line.{name}") for name in SUMMED_BY if name != "at"}
_COUNTED: Final = {
    "requests": "(line.seq = 0)::int",
    "code_sessions": "(line.seq = 0 AND coalesce(line.tools ? 'code_interpreter', false))::int",
}


def _value(name: str) -> str:
    if name in _COUNTED:
        return _COUNTED[name]
    return f"coalesce(line.{name}, 0)" if name in COST_COLUMNS else f"line.{name}"


LINE_VALUES: Final = {name: _value(name) for name in SUMS}
_KEY: Final = ", ".join(LINE_KEY)
_SUMS: Final = ", ".join(SUMS)
LINE_KEY_AS: Final = ", ".join(f"{value} AS {name}" for name, value in LINE_KEY.items())
LINE_VALUES_AS: Final = ", ".join(f"{value} AS {name}" for name, value in LINE_VALUES.items())
_SUMMED: Final = ", ".join(f"sum({name})" for name in SUMS)


LINES_MAX: Final = 20_000
"""Bound on the lines of one transaction, unless another one wrote more by itself."""
MINUTES_S: Final = 48 * 3600.0


def _added_to(table: str) -> str:
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in SUMS)
    return f"DO UPDATE SET {added}"


_BOUND: Final = Statement("""
SELECT CAST(CAST(tx AS text) AS bigint) FROM usage
WHERE tx >= CAST(CAST(:from_tx AS text) AS xid8) AND tx < CAST(CAST(:to_tx AS text) AS xid8)
ORDER BY tx OFFSET :lines_max LIMIT 1
""")
_ADD: Final = Statement(f"""
WITH added AS MATERIALIZED (
    SELECT line.at, {LINE_KEY_AS}, line.end_user, {LINE_VALUES_AS}
    FROM usage AS line
    WHERE line.tx >= CAST(CAST(:from_tx AS text) AS xid8)
      AND line.tx < CAST(CAST(:to_tx AS text) AS xid8)
), hours AS (
    INSERT INTO usage_hours (at, {_KEY}, {_SUMS})
    SELECT date_trunc('hour', at, 'UTC'), {_KEY}, {_SUMMED} FROM added
    GROUP BY date_trunc('hour', at, 'UTC'), {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {_added_to("usage_hours")}
), minutes AS (
    INSERT INTO usage_minutes (at, {_KEY}, {_SUMS})
    SELECT date_trunc('minute', at, 'UTC'), {_KEY}, {_SUMMED} FROM added
    WHERE at >= now() - make_interval(secs => :minutes_s)
    GROUP BY date_trunc('minute', at, 'UTC'), {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {_added_to("usage_minutes")}
), days AS (
    INSERT INTO usage_end_user_days (tenant_id, day, project_id, end_user, model, {_SUMS})
    SELECT tenant_id, CAST(at AT TIME ZONE 'UTC' AS date), project_id, end_user, model, {_SUMMED}
    FROM added
    WHERE end_user IS NOT NULL
      AND tenant_id IN (SELECT id FROM tenants WHERE usage_by_end_user = 'allowed')
    GROUP BY tenant_id, CAST(at AT TIME ZONE 'UTC' AS date), project_id, end_user, model
    ON CONFLICT (tenant_id, day, project_id, end_user, model)
    {_added_to("usage_end_user_days")}
)
SELECT model, count(*) AS lines,
       coalesce(sum(cost_nano) FILTER (WHERE kind <> 'adjustment'), 0)::bigint AS cost_nano
FROM added GROUP BY model
""")  # noqa: S608 - constants only
_FORGET_HOUR: Final = Statement(
    "DELETE FROM usage_hours WHERE tenant_id = :tenant AND at = :hour RETURNING at"
)
_ADD_HOUR: Final = Statement(f"""
INSERT INTO usage_hours (at, {_KEY}, {_SUMS})
SELECT CAST(:hour AS timestamptz), {_KEY}, {_SUMMED}
FROM (
    SELECT {LINE_KEY_AS}, {LINE_VALUES_AS} FROM usage AS line
    WHERE line.tenant_id = :tenant AND line.at >= :hour AND line.at < :next_hour
      AND (line.tx IS NULL OR line.tx < CAST(CAST(:tx AS text) AS xid8))
) AS added
GROUP BY {_KEY}
""")  # noqa: S608 - constants only


# In one order, so that two processes that do it at once do not wait for each other.
_TO_DAYS: Final = Statement(f"""
WITH gone AS (
    DELETE FROM usage_hours AS gone USING (
        SELECT old.* FROM tenants CROSS JOIN LATERAL (
            SELECT one.tenant_id, one.at, one.ctid AS place FROM usage_hours AS one
            WHERE tenants.held_at IS NULL AND one.tenant_id = tenants.id
              AND one.at < now() - make_interval(secs => CAST(:kept_s AS integer))
            LIMIT :rows_max
        ) AS old
        LIMIT :rows_max
    ) AS expired
    WHERE gone.tenant_id = expired.tenant_id AND gone.at = expired.at AND gone.ctid = expired.place
    RETURNING gone.*
), days AS (
    INSERT INTO usage_days (at, {_KEY}, {_SUMS})
    SELECT date_trunc('day', at, 'UTC'), {_KEY}, {_SUMMED}
    FROM gone GROUP BY 1, {_KEY} ORDER BY 1, {_KEY}
    ON CONFLICT (tenant_id, at, project_id, key_id, model, service_tier, background, kind)
    {_added_to("usage_days")}
)
SELECT count(*) FROM gone
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class Advance:
    """Result of one transaction. `is_done`: nothing is left below the horizon. `costs_nano`, by
    model, is without corrections.
    """

    lines: int = 0
    is_done: bool = True
    is_foreign: bool = False
    costs_nano: Mapping[str, int] = field(default_factory=dict)


async def advance(
    database: Database, *, lines_max: int = LINES_MAX, minutes_s: float = MINUTES_S
) -> Advance | None:
    """Add the next lines to the sums. Return None if another process is doing it.

    Lines younger than `minutes_s` are added up by the minute, too.
    """
    async with database.runs_transaction() as connection:
        if not await try_take(connection, Lock.ROLLUP):
            return None
        cursor = await cursors.of_rollup(connection)
        horizon = await cursors.read_horizon(connection)
        if horizon.is_foreign(cursor.place):
            return Advance(is_foreign=True)
        span = {"from_tx": str(cursor.place.tx), "to_tx": str(horizon.tx)}
        bound = await connection.scalar(_BOUND, {**span, "lines_max": lines_max})
        to_tx = horizon.tx if bound is None else max(bound, cursor.place.tx + 1)
        added = await connection.execute(
            _ADD, {**span, "to_tx": str(to_tx), "minutes_s": minutes_s}
        )
        lines = sum(row.lines for row in added)
        if lines or bound is not None:
            # Else there is nothing to move past.
            moved = replace(
                cursor,
                place=LinePosition(to_tx),
                batch=cursor.batch + 1,
                lines=cursor.lines + lines,
            )
            await cursors.move(connection, moved)
        costs_nano = {row.model: row.cost_nano for row in added}
        return Advance(lines, is_done=bound is None, costs_nano=costs_nano)


async def days_of_hours(connection: Connection, kept_s: int, *, rows_max: int) -> int:
    bounds = {"kept_s": kept_s, "rows_max": rows_max}
    return int(await connection.scalar(_TO_DAYS, bounds))


async def behind_s(database: Database) -> float:
    async with database.runs_transaction() as connection:
        cursor = await cursors.of_rollup(connection)
        return await cursors.behind_s(connection, cursor.place)


async def add_hour_again(database: Database, tenant_id: TenantId, hour: datetime) -> bool:
    """Rebuild the sums of an hour of which all lines exist; False: another process adds lines
    now.
    """
    async with database.runs_transaction() as connection:
        if not await try_take(connection, Lock.ROLLUP):
            return False
        await _add_hour_again(connection, tenant_id, hour)
        return True


async def _add_hour_again(connection: Connection, tenant_id: TenantId, hour: datetime) -> None:
    cursor = await cursors.of_rollup(connection)
    of_hour = {"tenant": tenant_id, "hour": hour}
    await connection.execute(_FORGET_HOUR, of_hour)
    next_hour = hour + timedelta(hours=1)
    tx = str(cursor.place.tx)
    await connection.execute(_ADD_HOUR, {**of_hour, "next_hour": next_hour, "tx": tx})


Unit = Literal["minute", "hour", "day"]
Dimension = Literal["tenant_id", "project_id", "key_id", "model", "service_tier", "background"]
FILTERS: Final = {
    "project_id": "uuid",
    "key_id": "uuid",
    "model": "text",
    "background": "boolean",
    "kind": "text",
}

_SNAPSHOT: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;"
    " SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL jit = off"
)
"""Settings with which the planner knows the cursor's value, and reads the lines behind it by an
index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSpan:
    """Lines with `start` <= at < `end`.

    For `inner_start` <= at < `inner_end`, beginnings of the unit of `sums`, sums are read instead.
    Where sums by the hour may have become sums by the day, these are beginnings of days, and the
    unit of the query is the day.
    """

    start: datetime
    end: datetime
    inner_start: datetime
    inner_end: datetime
    sums: Literal["minute", "hour"] | None = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Query for sums. `tags` are names of tags to sum by; only lines have these and end users. Each
    of `sums` costs time over hundreds of thousands of rows.
    """

    span: LineSpan
    unit: Unit
    dimensions: tuple[Dimension, ...] = ()
    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    by_end_user: bool = False
    sums: tuple[str, ...] = SUMS

    @property
    def by(self) -> tuple[str, ...]:
        of_lines = ("end_user",) if self.by_end_user else ()
        return (*self.dimensions, *of_lines, *(f"tag_{at}" for at in range(len(self.tags))))

    @property
    def reads_lines(self) -> bool:
        # Sums have neither end users nor tags.
        return self.by_end_user or bool(self.tags) or self.span.sums is None


async def read_usage(
    database: Database, tenant_id: TenantId | None, question: Question, *, rows_max: int
) -> list[Row]:
    """Return rows of `bucket`, the dimensions (with `end_user`, `tag_0` …), the sums and
    `background_requests`, earliest first.
    """
    span = question.span
    shape = _Shape(
        is_of_tenant=tenant_id is not None,
        unit=question.unit,
        by=question.by,
        sums=question.sums,
        table=None if question.reads_lines else span.sums,
        has_edges=(span.start, span.end) != (span.inner_start, span.inner_end),
    )
    statement = _statement(shape)
    transaction = (
        database.runs_transaction() if tenant_id is None else database.transaction(tenant_id)
    )
    async with transaction as connection:
        await connection.script(_SNAPSHOT)
        cursor = await cursors.of_rollup(connection)
        parameters: dict[str, Any] = {
            "tenant": tenant_id,
            "start": span.start,
            "end": span.end,
            "inner_start": span.inner_start,
            "inner_end": span.inner_end,
            "tx": str(cursor.place.tx),
            "rows_max": rows_max,
            **{f"f_{name}": question.filters.get(name) for name in FILTERS},
            **{f"tag_{number}": name for number, name in enumerate(question.tags)},
        }
        return await connection.execute(statement, parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    is_of_tenant: bool
    unit: Unit
    by: tuple[str, ...]
    sums: tuple[str, ...]
    table: Literal["minute", "hour"] | None
    has_edges: bool

    def of_tenant(self, prefix: str = "") -> str:
        # A parameter has to be used for its type to be known.
        if self.is_of_tenant:
            return f"{prefix}tenant_id = :tenant"
        return "CAST(:tenant AS uuid) IS NULL"


_SPAN: Final = (
    "CAST(:start AS timestamptz) <= CAST(:end AS timestamptz)"
    " AND CAST(:inner_start AS timestamptz) <= CAST(:inner_end AS timestamptz)"
    " AND CAST(:tx AS text) IS NOT NULL"
)
"""Condition that is true, and uses the parameters that not every source does."""


@cache
def _statement(shape: _Shape) -> Statement:
    by = shape.by
    if shape.table is None:
        sources = [_of_lines(shape, "line.at >= :start AND line.at < :end")]
    else:
        sources = [_behind(shape), _sums(shape, f"usage_{shape.table}s")]
        if shape.unit == "day":
            sources.append(_sums(shape, "usage_days"))
        if shape.has_edges:
            sources.append(_edges(shape))
    names = ", ".join(["bucket", *by])
    summed = "".join(f", CAST(sum({name}) AS bigint) AS {name}" for name in shape.sums)
    background = "CAST(sum(background_requests) AS bigint) AS background_requests"
    union = "\nUNION ALL\n".join(sources)
    return Statement(f"""
SELECT date_trunc('{shape.unit}', at, 'UTC') AS {names}{summed}, {background}
FROM (
{union}
) AS found
WHERE {_SPAN}
GROUP BY {names}
ORDER BY bucket
LIMIT :rows_max
""")  # noqa: S608 - constants, and names of columns


def _behind(shape: _Shape) -> str:
    # Lines that are in no sum yet.
    return _of_lines(
        shape,
        "line.tx >= CAST(CAST(:tx AS text) AS xid8)"
        " AND line.at >= :inner_start AND line.at < :inner_end",
    )


def _edges(shape: _Shape) -> str:
    # Lines outside the range of whole buckets, which sums cannot answer for.
    before = "line.at >= :start AND line.at < :inner_start"
    after = "line.at >= :inner_end AND line.at < :end"
    return _of_lines(shape, f"({before} OR {after})")


def _of_lines(shape: _Shape, span: str) -> str:
    special = {name: f"line.tags ->> :{name}" for name in shape.by if name.startswith("tag_")}
    columns = {**LINE_KEY, **special, "end_user": "line.end_user"}
    names = "".join(f", {columns[name]} AS {name}" for name in shape.by)
    values = "".join(f", {LINE_VALUES[name]} AS {name}" for name in shape.sums)
    values += f", {LINE_VALUES['requests']} * ({LINE_KEY['background']})::int"
    where = " AND ".join([shape.of_tenant("line."), span, *_filters(LINE_KEY)])
    return (
        f"SELECT line.at{names}{values} AS background_requests"  # noqa: S608 - constants only
        f" FROM usage AS line WHERE {where}"
    )


def _sums(shape: _Shape, table: str) -> str:
    names = "".join(f", {name}" for name in (*shape.by, *shape.sums))
    span = "at >= :inner_start AND at < :inner_end"
    where = " AND ".join([shape.of_tenant(), span, *_filters({name: name for name in FILTERS})])
    return (
        f"SELECT at{names}, requests * background::int AS background_requests"  # noqa: S608
        f" FROM {table} WHERE {where}"
    )


def _filters(columns: Mapping[str, str]) -> list[str]:
    return [
        f"(CAST(:f_{name} AS {kind}[]) IS NULL"
        f" OR {columns[name]} = ANY (CAST(:f_{name} AS {kind}[])))"
        for name, kind in FILTERS.items()
    ]


_OWNERS: Final = Statement("""
SELECT id, owner_id FROM api_keys
WHERE tenant_id = :tenant AND owner_type = 'user' AND owner_id IS NOT NULL
""")


async def owners_of_keys(database: Database, tenant_id: TenantId) -> dict[UUID, UUID]:
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_OWNERS, {"tenant": tenant_id})
    return {row.id: row.owner_id for row in rows}


_PERIODS: Final = {
    "total": "'-infinity'::timestamptz",
    "day": "date_trunc('day', now(), 'UTC')",
    "week": "date_trunc('week', now(), 'UTC')",
    "month": "date_trunc('month', now(), 'UTC')",
}
_OF_KEY_SUMS: Final = ("requests", "input_tokens", "output_tokens", "cost_nano")
_OF_KEY: Final = Statement(f"""
SELECT {
    ", ".join(
        f"CAST(coalesce(sum({name}) FILTER (WHERE at >= {begin}), 0) AS bigint) AS {period}_{name}"
        for period, begin in _PERIODS.items()
        for name in _OF_KEY_SUMS
    )
}
FROM (
    SELECT at, {", ".join(_OF_KEY_SUMS)} FROM usage_hours
    WHERE tenant_id = :tenant AND key_id = :key
    UNION ALL
    SELECT at, {", ".join(_OF_KEY_SUMS)} FROM usage_days
    WHERE tenant_id = :tenant AND key_id = :key
    UNION ALL
    SELECT line.at, {", ".join(f"{LINE_VALUES[name]} AS {name}" for name in _OF_KEY_SUMS)}
    FROM usage AS line
    WHERE line.tenant_id = :tenant AND line.key_id = :key
      AND line.tx >= CAST(CAST(:tx AS text) AS xid8)
) AS found
""")  # noqa: S608 - constants, and names of columns


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """Input tokens include cached ones; the cost is in nano-dollars."""

    requests: int
    input_tokens: int
    output_tokens: int
    cost_nano: int


async def usage_of_key(
    database: Database, tenant_id: TenantId, key_id: UUID
) -> dict[str, KeyUsage]:
    """Return a key's usage today, this week (from Monday), this month, and in `total`, in UTC.

    `total` goes back as far as sums are kept.
    """
    async with database.transaction(tenant_id) as connection:
        await connection.script(_SNAPSHOT)
        cursor = await cursors.of_rollup(connection)
        parameters = {"tenant": tenant_id, "key": key_id, "tx": str(cursor.place.tx)}
        row = (await connection.execute(_OF_KEY, parameters)).one()
    return {
        period: KeyUsage(*(row[f"{period}_{name}"] for name in _OF_KEY_SUMS)) for period in _PERIODS
    }
