"""expand background shares: who is claimed next, and how many of a project or key may run.

The indexes are for claims: the keys that have something queued, each with its oldest first, and
what is generated with a durable log. Both are built while everything goes on, and have rows of
running responses alone. Who claims may see which key took the place of which, for limits of keys
hold for the key that follows. `background_shares` is UNLOGGED: a crash may empty it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "9e2b64f1d07c"
down_revision: str | None = "a2f60d7c41e8"
branch_labels: str | None = None
depends_on: str | None = None

RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
SEEN_OF_KEYS = "tenant_id, id, replaced_by"
INDEXES = {
    "ix_responses_queued": "(tenant_id, key_id, id) WHERE status = 'queued'",
    "ix_responses_generated": "(tenant_id, id) WHERE status = 'in_progress' AND durable",
}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for name, described in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON responses {described}")
    op.create_table(
        "background_shares",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("served", sa.Double(), nullable=False),
        sa.Column("expected", sa.Double(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_background_shares"),
        prefixes=["UNLOGGED"],
    )
    op.execute("ALTER TABLE background_shares ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE background_shares FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY own_tenant ON background_shares USING (tenant_id = {CURRENT_TENANT})"
    )
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON background_shares TO {RUNS_ROLE} USING ({is_runs})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON background_shares TO {RUNS_ROLE}")
    op.execute(f"GRANT SELECT ({SEEN_OF_KEYS}) ON api_keys TO {RUNS_ROLE}")


def downgrade() -> None:
    op.execute(f"REVOKE SELECT ({SEEN_OF_KEYS}) ON api_keys FROM {RUNS_ROLE}")
    op.drop_table("background_shares")
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
