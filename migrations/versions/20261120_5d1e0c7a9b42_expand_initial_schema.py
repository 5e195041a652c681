"""expand initial schema.

Beside the tables: the role of tenant transactions, row-level security as the second wall behind
every `WHERE tenant_id`, and the one function through which a key's hash becomes a tenant.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "5d1e0c7a9b42"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

ROLE = "harmony_gateway_app"

# Roles belong to the whole cluster: another database's migration may create this one at the same
# moment, and may have had another owner. From PostgreSQL 16 on, being a member (as the creator of
# a role is) no longer implies that one may SET ROLE to it.
CREATE_ROLE = f"""
DO $$
DECLARE
    needed text := CASE WHEN current_setting('server_version_num')::int >= 160000
                        THEN 'SET' ELSE 'MEMBER' END;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}') THEN
        BEGIN
            CREATE ROLE {ROLE} NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, '{ROLE}', needed) THEN
        BEGIN
            GRANT {ROLE} TO CURRENT_USER;
        EXCEPTION WHEN unique_violation OR internal_error THEN
            NULL; -- granted, or its row updated, by a concurrent migration of another database
        END;
    END IF;
    IF NOT pg_has_role(current_user, '{ROLE}', needed) THEN
        RAISE insufficient_privilege USING MESSAGE =
            format('%1$I must be able to SET ROLE {ROLE}: GRANT {ROLE} TO %1$I', current_user);
    END IF;
END $$
"""

# Inside of it the current user is the owner, who passes the policies of tenants and api_keys.
FIND_API_KEY = """
CREATE FUNCTION find_api_key(key_hash bytea)
RETURNS TABLE (tenant_id uuid, tenant_name text, key_id uuid, is_enabled boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t.id, t.name, k.id, k.disabled_at IS NULL AND t.disabled_at IS NULL
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.hash = key_hash;
END
"""

CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"

GRANTS = {
    "tenants": "SELECT",
    "responses": "SELECT, INSERT, UPDATE, DELETE",
    "messages": "SELECT, INSERT, UPDATE, DELETE",
    "events": "SELECT, INSERT, DELETE",
    "conversations": "SELECT, INSERT, UPDATE, DELETE",
    "conversation_items": "SELECT, INSERT, DELETE",
    "usage": "SELECT, INSERT",
}
"""Nothing on api_keys: hashes are seen by the owner only."""

OPERATED = ("tenants", "api_keys")
"""What the owner of the tables may read across tenants; content is not among it."""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(CREATE_ROLE)
    create_tenants()
    create_responses()
    create_events()
    create_conversations()
    create_usage()
    op.execute(FIND_API_KEY)
    op.execute("REVOKE ALL ON FUNCTION find_api_key(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_api_key(bytea) TO {ROLE}")
    wall_off()


def downgrade() -> None:
    """The role stays: other databases of the cluster may use it."""
    op.execute("DROP FUNCTION find_api_key(bytea)")
    for table in (
        "usage",
        "conversation_items",
        "conversations",
        "events",
        "messages",
        "responses",
        "api_keys",
        "tenants",
    ):
        op.drop_table(table)


def wall_off() -> None:
    for table in ("api_keys", *GRANTS):
        tenant = "id" if table == "tenants" else "tenant_id"
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY own_tenant ON {table} USING ({tenant} = {CURRENT_TENANT})")
    for table in OPERATED:
        op.execute(f"CREATE POLICY operator ON {table} USING (current_user <> '{ROLE}')")
    for table, privileges in GRANTS.items():
        op.execute(f"GRANT {privileges} ON {table} TO {ROLE}")
    # Reachable through its parent only: no privilege, and no policy that would let a row pass.
    op.execute("ALTER TABLE events_default ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE events_default FORCE ROW LEVEL SECURITY")


def time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def item_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("role", sa.Text()),
        sa.Column("phase", sa.Text()),
        sa.Column("item_id", sa.LargeBinary(), nullable=False),
        sa.Column("call_id", sa.LargeBinary()),
        sa.Column("name", sa.LargeBinary()),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("item", sa.LargeBinary(), nullable=False),
        sa.Column("ids", sa.LargeBinary()),
    ]


def create_tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        time("created_at"),
        time("disabled_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        time("created_at"),
        time("disabled_at", nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_api_keys"),
        sa.UniqueConstraint("hash", name="uq_api_keys_hash"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_api_keys_tenants"),
    )


def create_responses() -> None:
    op.create_table(
        "responses",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        time("created_at"),
        time("root_created_at"),
        time("completed_at", nullable=True),
        sa.Column("parent_id", sa.Uuid()),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
        sa.Column("recoveries", sa.LargeBinary()),
        sa.Column("owner", sa.Text()),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        time("lease_until", nullable=True),
        sa.Column("next_entry", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("fold_version", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_responses"),
        sa.CheckConstraint(
            "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')",
            name=op.f("ck_responses_status"),
        ),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index("ix_responses_tenant_id_parent_id", "responses", ["tenant_id", "parent_id"])
    op.create_index(
        "ix_responses_running",
        "responses",
        ["tenant_id", "id"],
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.create_table(
        "messages",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("is_output", sa.Boolean(), nullable=False),
        *item_columns(),
        sa.PrimaryKeyConstraint("tenant_id", "response_id", "position", name="pk_messages"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "response_id"],
            ["responses.tenant_id", "responses.id"],
            name="fk_messages_responses",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_messages_tenant_id_item_id", "messages", ["tenant_id", sa.text("sha256(item_id)")]
    )


def create_events() -> None:
    op.create_table(
        "events",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("first_entry", sa.Integer(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("entry_count", sa.Integer(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "response_id", "first_entry", "day", name="pk_events"),
        postgresql_partition_by="RANGE (day)",
    )
    op.execute("CREATE TABLE events_default PARTITION OF events DEFAULT")


def create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        time("created_at"),
        sa.Column("metadata", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_conversations"),
    )
    op.create_table(
        "conversation_items",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        *item_columns(),
        sa.PrimaryKeyConstraint(
            "tenant_id", "conversation_id", "position", name="pk_conversation_items"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "conversation_id"],
            ["conversations.tenant_id", "conversations.id"],
            name="fk_conversation_items_conversations",
            ondelete="CASCADE",
        ),
    )


def create_usage() -> None:
    op.create_table(
        "usage",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        time("at"),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "response_id", name="pk_usage"),
    )
    op.create_index("ix_usage_tenant_id_at", "usage", ["tenant_id", "at"])
