"""expand conversations.

Who writes to a conversation, and where a response found it; the dialect of a key; traces of agents.
`find_principal` returns the dialect, too, so it is dropped and made again: a function's result
cannot be widened.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "f27a90c3d5b8"
down_revision: str | None = "c41d7b0e95fa"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"

POLICY = {
    "on_disconnect": "text",
    "log_retention_s": "integer",
    "response_retention_s": "integer",
    "background_running_max": "integer",
    "background_queued_max": "integer",
    "reasoning_summary": "text",
    "reasoning_budget_tokens": "integer",
    "service_tier_max": "text",
}
OF_RESPONSES = ("conversation_id", "conversation_end")


def upgrade() -> None:
    op.add_column(
        "conversations",
        sa.Column("next_position", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.add_column("conversations", sa.Column("writer", sa.Uuid()))
    op.add_column("responses", sa.Column("conversation_id", sa.Uuid()))
    op.add_column("responses", sa.Column("conversation_end", sa.BigInteger()))
    op.create_index(
        "ix_conversation_items_tenant_id_item_id",
        "conversation_items",
        ["tenant_id", sa.text("sha256(item_id)")],
    )
    op.add_column("api_keys", sa.Column("dialect", sa.Text()))
    op.create_check_constraint(
        op.f("ck_api_keys_dialect"), "api_keys", "dialect IN ('openai', 'openresponses')"
    )
    make_find_principal(with_dialect=True)
    create_traces()
    for column in OF_RESPONSES:
        op.execute(f"GRANT SELECT ({column}) ON responses TO {RUNS_ROLE}")


def downgrade() -> None:
    op.drop_table("traces")
    make_find_principal(with_dialect=False)
    op.drop_column("api_keys", "dialect")
    op.drop_index("ix_conversation_items_tenant_id_item_id", "conversation_items")
    for column in OF_RESPONSES:
        op.drop_column("responses", column)
    op.drop_column("conversations", "writer")
    op.drop_column("conversations", "next_position")


def create_traces() -> None:
    op.create_table(
        "traces",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.LargeBinary(), nullable=False),
        sa.Column("record_id", sa.LargeBinary(), nullable=False),
        sa.Column("response_id", sa.Uuid()),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key", name="pk_traces"),
        sa.CheckConstraint("kind IN ('trace', 'span')", name="ck_traces_kind"),
    )
    op.create_index("ix_traces_tenant_id_received_at", "traces", ["tenant_id", "received_at"])
    op.create_index(
        "ix_traces_tenant_id_trace_id", "traces", ["tenant_id", sa.text("sha256(trace_id)")]
    )
    op.execute("ALTER TABLE traces ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE traces FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON traces USING (tenant_id = {CURRENT_TENANT})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON traces TO {APP_ROLE}")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON traces TO {RUNS_ROLE} USING ({is_runs})")
    op.execute(f"GRANT SELECT (tenant_id, key, received_at), DELETE ON traces TO {RUNS_ROLE}")


def make_find_principal(*, with_dialect: bool) -> None:
    """In the place of the one there is."""
    result = ", ".join(f"{name} {kind}" for name, kind in POLICY.items())
    columns = ", ".join(f"t.{name}" for name in POLICY)
    if with_dialect:
        result, columns = f"{result}, dialect text", f"{columns}, k.dialect"
    op.execute("DROP FUNCTION find_principal(bytea)")
    op.execute(f"""
CREATE FUNCTION find_principal(key_hash bytea)
RETURNS TABLE (
    tenant_id uuid, tenant_name text, key_id uuid, is_enabled boolean, {result}
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t.id, t.name, k.id, k.disabled_at IS NULL AND t.disabled_at IS NULL, {columns}
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.hash = key_hash;
END
""")
    op.execute("REVOKE ALL ON FUNCTION find_principal(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_principal(bytea) TO {APP_ROLE}")
