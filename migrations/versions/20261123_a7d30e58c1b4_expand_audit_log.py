"""expand audit log.

Who changed what, chained per tenant. Nobody may change an entry, and nobody may remove one that is
younger than 400 days, not even the owner of the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "a7d30e58c1b4"
down_revision: str | None = "6c1e9a53d084"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
KEEP = """
CREATE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < now() - interval '400 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only added to' USING ERRCODE = 'insufficient_privilege';
END $$
"""


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("actor", sa.LargeBinary(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("details", sa.LargeBinary(), nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "number", name="pk_audit_log"),
        sa.UniqueConstraint("tenant_id", "id", name="uq_audit_log_tenant_id_id"),
    )
    op.create_index("ix_audit_log_tenant_id_at", "audit_log", ["tenant_id", "at"])
    op.execute(KEEP)
    op.execute(
        "CREATE TRIGGER keep_entries BEFORE UPDATE OR DELETE ON audit_log"
        " FOR EACH ROW EXECUTE FUNCTION keep_audit_log()"
    )
    op.execute(
        "CREATE TRIGGER keep_all BEFORE TRUNCATE ON audit_log"
        " FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_log()"
    )
    op.execute("ALTER TABLE audit_log ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE audit_log FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON audit_log USING (tenant_id = {CURRENT_TENANT})")
    op.execute(f"CREATE POLICY operator ON audit_log USING (current_user <> '{APP_ROLE}')")
    op.execute(f"GRANT SELECT, INSERT ON audit_log TO {APP_ROLE}")
    op.execute(f"GRANT SELECT (tenant_id, number, at, hash), DELETE ON audit_log TO {RUNS_ROLE}")


def downgrade() -> None:
    op.drop_table("audit_log")
    op.execute("DROP FUNCTION keep_audit_log()")
