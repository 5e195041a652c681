"""expand includable: what `include` shows of an item, for readers who ask for it later.

A column without a default, so no row is rewritten. Replicas of the release before leave it null:
what their responses left out cannot be asked for.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "f4d8217ab6c3"
down_revision: str | None = "a4c1f7d20b68"
branch_labels: str | None = None
depends_on: str | None = None

TABLES = ("messages", "conversation_items")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("includable", sa.LargeBinary()))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "includable")
