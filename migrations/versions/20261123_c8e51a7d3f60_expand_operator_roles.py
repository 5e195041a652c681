"""expand operator roles.

What a key of an operator may do; null: everything, as of all keys that there are. The function is
one more beside `find_operator`, which the release before goes on to call.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "c8e51a7d3f60"
down_revision: str | None = "b39e5f7d1c08"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"


def upgrade() -> None:
    op.add_column("operator_keys", sa.Column("role", sa.Text()))
    op.execute("""
CREATE FUNCTION find_operator_role(key_hash bytea) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT k.role FROM operator_keys k WHERE k.hash = key_hash;
END
""")
    op.execute("REVOKE ALL ON FUNCTION find_operator_role(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_operator_role(bytea) TO {APP_ROLE}")


def downgrade() -> None:
    op.execute("DROP FUNCTION find_operator_role(bytea)")
    op.drop_column("operator_keys", "role")
