"""expand initial schema.

Build the tables of `gateway.store.tables` with roles, policies, privileges, functions and
triggers. No release has this revision yet, so a change of the tables is a change of what it
builds. A second revision has to freeze it first: put the statements that
`alembic upgrade head --sql` writes in the place of `upgrade`.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy.schema import CreateIndex, CreateTable

from gateway.store.migration.functions import DROP_LEDGER_TX, FUNCTIONS, TRIGGERS, create_ledger_tx
from gateway.store.migration.verification import MAKE_ROLE, ROLES, requirements
from gateway.store.tables.columns import columns_of, metadata

revision: str = "7a1d4c60b2e9"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for role in ROLES:
            op.execute(MAKE_ROLE.format(role=role))
    op.execute(create_ledger_tx(0))
    create_tables()
    for function in FUNCTIONS:
        op.execute(function.create)
    for statements in TRIGGERS.values():
        for statement in statements:
            op.execute(statement)
    # Row-level security, policies and privileges.
    made = (statement for requirement in requirements() for statement in requirement.mend)
    for statement in dict.fromkeys(made):
        op.execute(statement)


def create_tables() -> None:
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            op.execute(CreateIndex(index))
        for name, column in columns_of(table).items():
            if not column.info["packed"]:
                op.execute(f"ALTER TABLE {table.name} ALTER COLUMN {name} SET STORAGE EXTERNAL")
    op.execute("CREATE TABLE events_default PARTITION OF events DEFAULT")
    # Reachable through its parent only: no privilege, and no policy that would let a row pass.
    op.execute("ALTER TABLE events_default ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    """The roles stay: other databases of the cluster may use them."""
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function.signature}")
    for table in reversed(metadata.sorted_tables):
        op.execute(f"DROP TABLE {table.name}")
    for function_of_trigger in TRIGGERS:
        op.execute(f"DROP FUNCTION {function_of_trigger}")
    op.execute(DROP_LEDGER_TX)
