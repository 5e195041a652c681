"""contract unused: tokens that backends counted themselves, and since when a batch is under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "c4f8d20a917e"
down_revision: str | None = "3d9e6b10f4a7"
branch_labels: str | None = None
depends_on: str | None = None

RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.drop_table("backend_tokens")
    op.drop_column("usage_cursors", "begun_at")


def downgrade() -> None:
    op.add_column("usage_cursors", sa.Column("begun_at", sa.DateTime(timezone=True)))
    op.create_table(
        "backend_tokens",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generated", sa.BigInteger(), autoincrement=False),
        sa.Column("reading", sa.BigInteger(), autoincrement=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False),
        sa.PrimaryKeyConstraint("tenant_id", "backend", "at", name="pk_backend_tokens"),
    )
    op.execute("ALTER TABLE backend_tokens ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE backend_tokens FORCE ROW LEVEL SECURITY")
    own = f"USING (tenant_id = {CURRENT_TENANT})"
    op.execute(f"CREATE POLICY own_tenant ON backend_tokens {own}")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON backend_tokens TO {RUNS_ROLE} USING ({is_runs})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON backend_tokens TO {RUNS_ROLE}")
