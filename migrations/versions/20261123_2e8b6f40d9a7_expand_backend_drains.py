"""expand backend drains.

Which backends operators have taken out of use, and what replicas tell of what is still under way
there; the latter in a table that no crash has to survive.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "2e8b6f40d9a7"
down_revision: str | None = "7d20c4b8e1f6"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.create_table(
        "backend_drains",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("drained_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("drained_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", name="pk_backend_drains"),
    )
    op.create_table(
        "drain_reports",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("in_flight", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", "replica", name="pk_drain_reports"),
        prefixes=["UNLOGGED"],
    )
    is_operator = f"current_user <> '{APP_ROLE}'"
    for table in ("backend_drains", "drain_reports"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY own_tenant ON {table} USING (tenant_id = {CURRENT_TENANT})")
        op.execute(f"CREATE POLICY operator ON {table} USING ({is_operator})")
    op.execute(f"GRANT SELECT ON backend_drains TO {RUNS_ROLE}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON drain_reports TO {RUNS_ROLE}")


def downgrade() -> None:
    op.drop_table("drain_reports")
    op.drop_table("backend_drains")
