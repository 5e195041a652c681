"""expand placements.

Where responses were generated: of each in its row, and what replicas tell each other of all, in a
table that no crash has to survive.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "9d27e4b1c06f"
down_revision: str | None = "f4d8217ab6c3"
branch_labels: str | None = None
depends_on: str | None = None

RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.add_column("responses", sa.Column("placement", sa.LargeBinary()))
    op.create_table(
        "placements",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("load", sa.LargeBinary(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "replica", "number", name="pk_placements"),
        prefixes=["UNLOGGED"],
    )
    op.execute("ALTER TABLE placements ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE placements FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON placements USING (tenant_id = {CURRENT_TENANT})")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON placements TO {RUNS_ROLE} USING ({is_runs})")
    op.execute(f"GRANT SELECT, INSERT, DELETE ON placements TO {RUNS_ROLE}")


def downgrade() -> None:
    op.drop_table("placements")
    op.drop_column("responses", "placement")
