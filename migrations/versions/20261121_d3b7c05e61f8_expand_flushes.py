"""expand flushes.

What one process commits at once for the runs of a tenant is one row, until it is moved into the
logs of the responses. `writers` is the fence: whoever takes a response from its owner moves it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "d3b7c05e61f8"
down_revision: str | None = "a6e19b04c7d2"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.create_table(
        "writers",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "owner", name="pk_writers"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "flushes",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "owner", "number", name="pk_flushes"),
    )
    # They are gone in a second or two: packing them smaller would cost more than it saves.
    for column in ("members", "entries"):
        op.execute(f"ALTER TABLE flushes ALTER COLUMN {column} SET STORAGE EXTERNAL")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    for table in ("writers", "flushes"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY own_tenant ON {table} USING (tenant_id = {CURRENT_TENANT})")
        op.execute(f"CREATE POLICY runs ON {table} TO {RUNS_ROLE} USING ({is_runs})")
        op.execute(f"GRANT SELECT, UPDATE ON {table} TO {APP_ROLE}")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {RUNS_ROLE}")


def downgrade() -> None:
    """What is in flushes would be lost: every process has to have ended before."""
    op.drop_table("flushes")
    op.drop_table("writers")
