"""expand usage lines.

A line tells what was asked for and how, and which transaction wrote it, by which readers of all
lines go on. Sums of lines, by the hour and by the minute, and how far these readers have come.
Lines that there are have no transaction: the next revision adds them up.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import UserDefinedType
from typing_extensions import override

revision: str = "6a0d4c92e7f1"
down_revision: str | None = "b91f3c7ae264"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
EVERYONE = "00000000-0000-0000-0000-000000000000"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
ZEROES = (
    "voided_tokens",
    "analysis_tokens",
    "commentary_tokens",
    "final_tokens",
    "arguments_tokens",
)
MAY_BE_NULL: dict[str, Any] = {
    "status": sa.Text(),
    "service_tier": sa.Text(),
    "background": sa.Boolean(),
    "attempts": sa.SmallInteger(),
    "end_user": sa.LargeBinary(),
    "tags": JSONB(),
    "tools": JSONB(),
    "reason": sa.Text(),
    "author": sa.Text(),
}
SUMS = (
    *("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
    *("recomputed_tokens", "tool_output_tokens", "tool_calls", "web_searches", "voided_tokens"),
    *("code_sessions", "cost_nano", "input_cost_nano", "cached_cost_nano", "output_cost_nano"),
    "tools_cost_nano",
)
AGGREGATES = ("usage_hours", "usage_minutes", "usage_end_user_days")


class TransactionId(UserDefinedType[int]):
    cache_ok = True

    @override
    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("usage_tags", sa.Text()))
    for name in ZEROES:
        op.add_column("usage", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.add_column("usage", sa.Column("seq", sa.Integer(), nullable=False, server_default="0"))
    response = sa.text("'response'::text")
    op.add_column("usage", sa.Column("kind", sa.Text(), nullable=False, server_default=response))
    for name, kind in MAY_BE_NULL.items():
        op.add_column("usage", sa.Column(name, kind))
    # In two steps: with the default from the start all lines would have this transaction.
    op.add_column("usage", sa.Column("tx", TransactionId()))
    op.alter_column("usage", "tx", server_default=sa.text("pg_current_xact_id()"))
    for table in ("usage_hours", "usage_minutes"):
        make_sums_by_time(table)
    op.create_table(
        "usage_end_user_days",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("end_user", sa.LargeBinary(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *sums(),
        sa.PrimaryKeyConstraint(
            *("tenant_id", "day", "project_id", "end_user", "model"), name="pk_usage_end_user_days"
        ),
    )
    op.create_table(
        "usage_cursors",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tx", TransactionId(), nullable=False),
        sa.Column("of_tenant", sa.Uuid(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("moved_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("end_tx", TransactionId()),
        sa.Column("end_tenant", sa.Uuid()),
        sa.Column("end_response", sa.Uuid()),
        sa.Column("end_seq", sa.Integer()),
        sa.Column("begun_at", sa.DateTime(timezone=True)),
        sa.Column("holder", sa.Text()),
        sa.Column("held_until", sa.DateTime(timezone=True)),
        sa.Column("stopped", sa.Text()),
        sa.PrimaryKeyConstraint("tenant_id", "name", name="pk_usage_cursors"),
    )
    for table in (*AGGREGATES, "usage_cursors"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY own_tenant ON {table} USING (tenant_id = {CURRENT_TENANT})")
    for table in (*AGGREGATES, "usage_cursors"):
        op.execute(f"GRANT SELECT ON {table} TO {APP_ROLE}")
    # Where sums end and lines begin is the same for all tenants.
    op.execute(f"CREATE POLICY shared ON usage_cursors USING (tenant_id = '{EVERYONE}'::uuid)")
    for table in ("usage", *AGGREGATES, "usage_cursors"):
        is_runs = f"current_user = '{RUNS_ROLE}'"
        op.execute(f"CREATE POLICY runs ON {table} TO {RUNS_ROLE} USING ({is_runs})")
        rights = "SELECT, DELETE" if table == "usage" else "SELECT, INSERT, UPDATE, DELETE"
        op.execute(f"GRANT {rights} ON {table} TO {RUNS_ROLE}")


def sums() -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS]


def make_sums_by_time(table: str) -> None:
    key = ("tenant_id", "at", "project_id", "key_id", "model", "service_tier", "background", "kind")
    op.create_table(
        table,
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("service_tier", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *sums(),
        sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
        postgresql_with={"fillfactor": 50},
    )


def downgrade() -> None:
    for table in ("usage_cursors", *reversed(AGGREGATES)):
        op.drop_table(table)
    op.execute(f"REVOKE SELECT, DELETE ON usage FROM {RUNS_ROLE}")
    op.execute("DROP POLICY runs ON usage")
    for name in ("tx", *MAY_BE_NULL, "kind", "seq", *ZEROES):
        op.drop_column("usage", name)
    op.drop_column("tenants", "usage_tags")
