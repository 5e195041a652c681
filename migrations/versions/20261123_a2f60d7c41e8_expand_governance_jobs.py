"""expand governance jobs.

When a tenant was removed; how far the sealing of what it has under its newest key has come; and who
removes old entries of the audit log may say so in it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "a2f60d7c41e8"
down_revision: str | None = "41c7e0d9b8a5"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("purged_at", sa.DateTime(timezone=True)))
    op.create_table(
        "reseals",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("of_table", sa.Text(), nullable=True),
        sa.Column("place", sa.LargeBinary(), nullable=True),
        sa.Column("written", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_reseals"),
    )
    op.execute("ALTER TABLE reseals ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE reseals FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON reseals USING (tenant_id = {CURRENT_TENANT})")
    op.execute(f"CREATE POLICY operator ON reseals USING (current_user <> '{APP_ROLE}')")
    op.execute(f"GRANT INSERT ON audit_log TO {RUNS_ROLE}")


def downgrade() -> None:
    op.execute(f"REVOKE INSERT ON audit_log FROM {RUNS_ROLE}")
    op.drop_table("reseals")
    op.drop_column("tenants", "purged_at")
