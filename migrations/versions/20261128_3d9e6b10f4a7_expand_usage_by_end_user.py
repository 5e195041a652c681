"""expand usage by end user: whether a tenant's usage is added up by day and end user, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "3d9e6b10f4a7"
down_revision: str | None = "5c80a3e1d2f9"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("usage_by_end_user", sa.Text()))
    op.create_check_constraint(
        op.f("ck_tenants_usage_by_end_user"),
        "tenants",
        "usage_by_end_user IN ('refused', 'allowed')",
    )


def downgrade() -> None:
    op.drop_column("tenants", "usage_by_end_user")
