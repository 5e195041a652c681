"""expand governance.

What is kept of a tenant, and how one is deleted: null where it is as it was before. `deleted_at` is
when that was asked for; its data goes some days later, and until then it can be restored.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "b91f4e07d6a2"
down_revision: str | None = "a7d30e58c1b4"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("retention_type", sa.Text()))
    op.add_column("tenants", sa.Column("deleted_at", sa.DateTime(timezone=True)))
    op.add_column("tenants", sa.Column("held_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    for name in ("retention_type", "deleted_at", "held_at"):
        op.drop_column("tenants", name)
