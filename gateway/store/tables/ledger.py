from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.store.schema import COST_COLUMNS
from gateway.store.tables.columns import (
    DERIVED,
    EVERYTHING,
    OF_NO_TENANT,
    ROOM_FOR_UPDATES,
    SETTINGS,
    Access,
    Kept,
    Lifetime,
    bigint,
    boolean,
    bytea,
    date,
    double,
    index,
    integer,
    jsonb,
    keys_of_table,
    older_than,
    smallint,
    table,
    tenant_id,
    text,
    time,
    typed,
    unique,
    uuid,
    xid8,
)

if TYPE_CHECKING:
    from sqlalchemy import Column

_COUNTED: Final = (
    *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "recomputed_tokens"),
    *("tool_output_tokens", "tool_calls", "web_searches", "voided_tokens"),
)
_CHANNELS: Final = ("analysis_tokens", "commentary_tokens", "final_tokens", "arguments_tokens")
_ALWAYS_COUNTED: Final = {"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
_BILLED: Final = "numbers, for who is shown the bill"


def _summed_by() -> list[Column[Any]]:
    return [
        tenant_id(),
        time("at", key=True),
        uuid("project_id", key=True),
        uuid("key_id", key=True),
        text("model", Kept.WORD, key=True),
        text("service_tier", Kept.WORD, key=True),
        boolean("background", key=True),
        text("kind", Kept.WORD, key=True),
    ]


def _sums() -> list[Column[Any]]:
    return [bigint(name) for name in ("requests", *_COUNTED, "code_sessions", *COST_COLUMNS)]


# Every reader of lines has a cursor, and nothing is added up without one.
_READ_BY_ALL: Final = (
    "(tx IS NULL OR tx < (SELECT min(tx) FROM usage_cursors))"
    " AND EXISTS (SELECT FROM usage_cursors WHERE name = 'rollup')"
)
# No foreign key: usage outlives the response. `seq`: 0 is the response, greater numbers are
# corrections (kind `adjustment`, with a `reason` and an `author`), signed.
# `tx`: the transaction that wrote it (`store.ledger.cursors`). `tools`: calls by tool, as JSON.
# `end_user` and `tags`: see `gateway.metering`.
usage: Final = table(
    "usage",
    tenant_id(),
    uuid("response_id", key=True),
    uuid("key_id"),
    text("model", Kept.WORD),
    time("at"),
    *(
        integer(name, default=None if name in _ALWAYS_COUNTED else "0")
        for name in (*_COUNTED, *_CHANNELS)
    ),
    integer("seq", key=True, default="0"),
    text("kind", Kept.WORD, default="'response'::text"),
    text("status", Kept.WORD, null=True),
    text("service_tier", Kept.WORD, null=True),
    boolean("background", null=True),
    smallint("attempts", null=True),
    bytea("end_user", Kept.DIGEST, null=True, scrubbed=True),
    jsonb("tags", Kept.DECLARED, null=True, scrubbed=True),
    jsonb("tools", Kept.WORD, null=True),
    text("reason", Kept.WORD, null=True),
    text("author", Kept.WORD, null=True),
    xid8("tx", null=True, default="ledger_tx(pg_current_xact_id())"),
    uuid("project_id", null=True),
    uuid("price_id", null=True),
    *(bigint(name, null=True) for name in COST_COLUMNS),
    index("tenant_id", "at"),
    # Not by tenant first: it is for who reads the new lines of all, in the order of their commits.
    index("tx", "tenant_id", "response_id", "seq", name="ix_usage_tx", where="tx IS NOT NULL"),
    lifetime=Lifetime(
        erased="the end user, and tags",
        expires="ledger.lines_s",
        stays=f"{_BILLED}; no words",
        expired=(f"{older_than('at', ':lines_s')} AND {_READ_BY_ALL}",),
    ),
    access=Access(app="SELECT, INSERT", runs="SELECT, DELETE", of_runs=True),
)
# Sums of lines, by the hour and, of the last days, by the minute (`at`: its beginning). Where a
# line has null, these have its meaning: the default project, no background.
usage_hours: Final = table(
    "usage_hours",
    *_summed_by(),
    *_sums(),
    lifetime=Lifetime(expires="ledger.hours_s", stays=_BILLED),
    access=Access(app="SELECT", runs=EVERYTHING, of_runs=True),
    is_upserted=True,
    postgresql_with=ROOM_FOR_UPDATES,
)
usage_minutes: Final = table(
    "usage_minutes",
    *_summed_by(),
    *_sums(),
    lifetime=Lifetime(
        expires="ledger.minutes_s", stays=_BILLED, expired=(older_than("at", ":minutes_s"),)
    ),
    access=Access(app="SELECT", runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
    postgresql_with=ROOM_FOR_UPDATES,
)
# Sums by the hour become sums by the day after a while; each line is counted in one of the two.
usage_days: Final = table(
    "usage_days",
    *_summed_by(),
    *_sums(),
    lifetime=Lifetime(
        expires="ledger.days_s", stays=_BILLED, expired=(older_than("at", ":days_s"),)
    ),
    access=Access(app="SELECT", runs=EVERYTHING, of_runs=True),
    is_upserted=True,
)
# By the day and end user, of tenants that want it.
usage_end_user_days: Final = table(
    "usage_end_user_days",
    tenant_id(),
    date("day", key=True),
    uuid("project_id", key=True),
    bytea("end_user", Kept.DIGEST, key=True),
    text("model", Kept.WORD, key=True),
    *_sums(),
    lifetime=Lifetime(
        erased="those of the end user",
        expires="ledger.end_user_days_s",
        expired=("day < CAST(now() - make_interval(secs => :end_user_days_s) AS date)",),
    ),
    access=Access(app="SELECT", runs=EVERYTHING, of_runs=True),
    is_upserted=True,
)
# Progress of the readers of all tenants' usage lines (rows of the nil tenant): the line that a
# reader has read last. `batch`: number of batches; `moved_at`: time of the last one. `end_*`: end
# of the batch that `holder` is reading, with a lease until `held_until`. `stopped`: why the reader
# waits for an operator.
usage_cursors: Final = table(
    "usage_cursors",
    tenant_id(),
    text("name", Kept.WORD, key=True),
    xid8("tx"),
    uuid("of_tenant"),
    uuid("response_id"),
    integer("seq"),
    bigint("batch"),
    bigint("lines"),
    time("moved_at"),
    xid8("end_tx", null=True),
    uuid("end_tenant", null=True),
    uuid("end_response", null=True),
    integer("end_seq", null=True),
    text("holder", Kept.WORD, null=True),
    time("held_until", null=True),
    text("stopped", Kept.WORD, null=True),
    lifetime=OF_NO_TENANT,
    access=Access(app="SELECT", runs=EVERYTHING, of_runs=True, shared=True),
    not_exported="of no tenant",
    is_upserted=True,
)
# Prices of one tenant, or, with the nil tenant, of all. Rows are only added; an end is set once.
prices: Final = table(
    "prices",
    tenant_id(),
    uuid("id", key=True),
    text("component", Kept.WORD, key=True),
    text("model", Kept.WORD),
    text("service_tier", Kept.WORD),
    bigint("nano_per_unit"),
    time("valid_from"),
    time("valid_until", null=True),
    lifetime=Lifetime(stays=_BILLED),
    access=Access(app="SELECT", runs="SELECT", operated=True, of_runs=True, shared=True),
    not_exported="the operator's",
)
# Limits of the tenant, a project or a key (`scope`, `scope_id`): see `gateway.limits.rules`.
limits: Final = table(
    "limits",
    tenant_id(),
    text("scope", Kept.WORD, key=True),
    uuid("scope_id", key=True),
    text("model", Kept.WORD, key=True),
    text("what", Kept.WORD, key=True),
    integer("window_s", key=True),
    bigint("value"),
    text("mode", Kept.WORD),
    time("updated_at"),
    lifetime=SETTINGS,
    access=Access(app=EVERYTHING, runs="SELECT", operated=True, of_runs=True),
    is_upserted=True,
)
# `cap`, like `threshold` and `amount` below, is in nano-dollars or in tokens, by `unit`; `span`
# is the interval. `channel`: where an alert goes, as JSON.
budgets: Final = table(
    "budgets",
    tenant_id(),
    uuid("id", key=True),
    text("scope", Kept.WORD),
    uuid("scope_id"),
    text("unit", Kept.WORD),
    text("span", Kept.WORD),
    bigint("cap"),
    text("mode", Kept.WORD),
    time("created_at"),
    unique(
        *("tenant_id", "scope", "scope_id", "unit", "span"),
        name="uq_budgets_tenant_id_scope",
        is_upserted=True,
    ),
    lifetime=SETTINGS,
    access=Access(app=EVERYTHING, runs="SELECT", operated=True, of_runs=True),
)
spend_alerts: Final = table(
    "spend_alerts",
    tenant_id(),
    uuid("id", key=True),
    text("scope", Kept.WORD),
    uuid("scope_id"),
    text("unit", Kept.WORD),
    text("span", Kept.WORD),
    bigint("threshold"),
    bytea("channel", Kept.WORD),
    time("created_at"),
    lifetime=SETTINGS,
    access=Access(app=EVERYTHING, runs="SELECT", operated=True, of_runs=True),
)
# `told`: the channels that have delivered it or never will (words with spaces between them);
# `sent_at`: the time when all had.
alert_firings: Final = table(
    "alert_firings",
    tenant_id(),
    uuid("alert_id", key=True),
    time("starts_at", key=True),
    time("fired_at"),
    time("sent_at", null=True),
    smallint("attempts"),
    time("due_at"),
    text("told", Kept.WORD, null=True),
    lifetime=SETTINGS,
    access=Access(app="SELECT (tenant_id, alert_id), DELETE", runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
)
# Running total of a meter that each replica has spent in one interval; the replica '' holds the
# corrections of reconciliation, and the number of mails of alerts.
spend: Final = table(
    "spend",
    tenant_id(),
    text("meter", Kept.WORD, key=True),
    time("starts_at", key=True),
    text("replica", Kept.WORD, key=True),
    bigint("amount"),
    time("at"),
    lifetime=SETTINGS,
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
)
# Level of a bucket that all replicas share, and the amount that it granted last. UNLOGGED.
buckets: Final = table(
    "buckets",
    tenant_id(),
    text("name", Kept.WORD, key=True),
    double("level"),
    time("at"),
    double("granted"),
    lifetime=SETTINGS,
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
    prefixes=["UNLOGGED"],
)
# Requests in progress, or amounts reserved, in each replica. UNLOGGED.
limit_reports: Final = table(
    "limit_reports",
    tenant_id(),
    text("name", Kept.WORD, key=True),
    text("replica", Kept.WORD, key=True),
    time("at"),
    bigint("amount"),
    lifetime=SETTINGS,
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
    prefixes=["UNLOGGED"],
)
# Stored bytes at the last measurement (`replication.storage_meter`); the nil project's row has the
# total of the tenant. `bytes` and `at` are null before the first measurement.
stored_bytes: Final = table(
    "stored_bytes",
    tenant_id(),
    uuid("project_id", key=True),
    bigint("bytes", null=True),
    time("at", null=True),
    time("due_at"),
    lifetime=SETTINGS,
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
)

COUNTS: Final = typed(usage, " ".join((*_COUNTED, *_CHANNELS)))
METERED: Final = typed(usage, "kind service_tier attempts end_user tags tools")
SUMS: Final = tuple(str(column.name) for column in _sums())
SUMMED_BY: Final = ("tenant_id", *keys_of_table("usage_hours"))
