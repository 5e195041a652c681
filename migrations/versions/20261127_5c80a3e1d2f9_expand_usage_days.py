"""expand usage days: sums of usage by the day, which those by the hour become after a while."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "5c80a3e1d2f9"
down_revision: str | None = "4b7f02c9d1e8"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
SUMS = (
    *("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
    *("recomputed_tokens", "tool_output_tokens", "tool_calls", "web_searches", "voided_tokens"),
    *("code_sessions", "cost_nano", "input_cost_nano", "cached_cost_nano", "output_cost_nano"),
    "tools_cost_nano",
)
KEY = ("tenant_id", "at", "project_id", "key_id", "model", "service_tier", "background", "kind")


def upgrade() -> None:
    op.create_table(
        "usage_days",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("service_tier", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint(*KEY, name="pk_usage_days"),
    )
    op.execute("ALTER TABLE usage_days ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE usage_days FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON usage_days USING (tenant_id = {CURRENT_TENANT})")
    op.execute(f"GRANT SELECT ON usage_days TO {APP_ROLE}")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON usage_days TO {RUNS_ROLE} USING ({is_runs})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON usage_days TO {RUNS_ROLE}")


def downgrade() -> None:
    op.drop_table("usage_days")
