"""expand recoveries: the column that some databases were made without.

The first revision was changed after it had made databases, so those lack `responses.recoveries`
whatever they were upgraded to. Nothing is locked where it is there.
"""

from __future__ import annotations

from alembic import op

revision: str = "b8e40d29f6a3"
down_revision: str | None = "d3b7c05e61f8"
branch_labels: str | None = None
depends_on: str | None = None

ADD_COLUMN = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                   WHERE attrelid = 'responses'::regclass AND attname = 'recoveries'
                     AND NOT attisdropped) THEN
        ALTER TABLE responses ADD COLUMN recoveries bytea;
    END IF;
END $$
"""


def upgrade() -> None:
    op.execute(ADD_COLUMN)


def downgrade() -> None:
    """The column stays: the revision before has it, too."""
