"""expand parents: the index of parents leaves out responses without one.

Most have none. With them in it, and while the table has no statistics yet, PostgreSQL took this
index to look up a response by its id: whatever was stored then walked all responses of its tenant.
"""

from __future__ import annotations

from alembic import op

revision: str = "a6e19b04c7d2"
down_revision: str | None = "f27a90c3d5b8"
branch_labels: str | None = None
depends_on: str | None = None

INDEX = "ix_responses_tenant_id_parent_id"


def upgrade() -> None:
    make_index("parent_id IS NOT NULL")


def downgrade() -> None:
    make_index("")


def make_index(condition: str) -> None:
    """In the place of the one there is."""
    where = f"WHERE {condition}" if condition else ""
    op.execute(f"CREATE INDEX {INDEX}_new ON responses (tenant_id, parent_id) {where}")
    op.execute(f"DROP INDEX {INDEX}")
    op.execute(f"ALTER INDEX {INDEX}_new RENAME TO {INDEX}")
