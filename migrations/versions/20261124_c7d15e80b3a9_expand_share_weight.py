"""expand share weight: how many hundredths of the usual share of the backends a tenant has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "c7d15e80b3a9"
down_revision: str | None = "9e2b64f1d07c"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("share_weight", sa.Integer()))


def downgrade() -> None:
    op.drop_column("tenants", "share_weight")
