"""expand stored bytes: what tenants and projects have stored, as it was measured last.

The row of the nil project is of all that a tenant has, and says when it is due again. `bytes` and
`at` are null until the first measurement.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "41c7e0d9b8a5"
down_revision: str | None = "f5b2e81c6a04"
branch_labels: str | None = None
depends_on: str | None = None

RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.create_table(
        "stored_bytes",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("bytes", sa.BigInteger()),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "project_id", name="pk_stored_bytes"),
    )
    op.execute("ALTER TABLE stored_bytes ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stored_bytes FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON stored_bytes USING (tenant_id = {CURRENT_TENANT})")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON stored_bytes TO {RUNS_ROLE} USING ({is_runs})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON stored_bytes TO {RUNS_ROLE}")


def downgrade() -> None:
    op.drop_table("stored_bytes")
