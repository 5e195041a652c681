"""expand backend tokens.

What backends say to have generated, by the hour, beside what replicas have received of them; and
by which ways an alert was told.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "4b7f02c9d1e8"
down_revision: str | None = "c7d15e80b3a9"
branch_labels: str | None = None
depends_on: str | None = None

RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
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
    op.add_column("alert_firings", sa.Column("told", sa.Text()))


def downgrade() -> None:
    op.drop_column("alert_firings", "told")
    op.drop_table("backend_tokens")
